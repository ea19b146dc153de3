{{/*
What the operator may do with jobs: the one list, for a ClusterRole or for the Role of each namespace. It reads no
Secret, changes no pod, and touches no object's metadata. Which APIs there are, every account may read.
*/}}
{{- define "rljob.rules" -}}
- apiGroups: [rljob.io]
  resources: [rljobs]
  verbs: [get, list, watch, delete] # deleted once ttlSecondsAfterFinished has passed
- apiGroups: [rljob.io]
  resources: [rljobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps, services, persistentvolumeclaims]
  verbs: [get, create] # got where the name is taken, to see by whom
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list] # listed for a pod that is being created for long
{{- if .Values.networkPolicies.jobs.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create] # got where the name is taken, to see by whom
{{- end }}
{{- end }}

{{/* What it may do in its own namespace, where there are two of it. A creation can't be limited to a name. */}}
{{- define "rljob.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "rljob.operator" . }}]
  verbs: [get, update]
{{- end }}
