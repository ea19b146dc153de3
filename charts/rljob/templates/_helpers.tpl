{{/* Names. */}}

{{- define "rljob.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "rljob.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 46 | trimAll "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 46 | trimAll "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 46 | trimAll "-" }}
{{- end -}}
{{- end }}

{{/* Name of the operator's own objects. */}}
{{- define "rljob.operator" -}}
{{ include "rljob.fullname" . }}-operator
{{- end }}

{{- define "rljob.account" -}}
{{ .Values.serviceAccount.name | default (include "rljob.operator" .) }}
{{- end }}

{{/* Labels that never change: those by which the Deployment knows its pods. */}}
{{- define "rljob.selector" -}}
app.kubernetes.io/name: {{ include "rljob.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels that the chart sets itself, whatever values say. */}}
{{- define "rljob.ownLabels" -}}
{{- toYaml (dict
  "app.kubernetes.io/name" (include "rljob.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "rljob"
  "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") | trunc 63)) }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "rljob.labels" -}}
{{- include "rljob.labelsWith" (list . dict) }}
{{- end }}

{{/* Labels of an object that has some of its own, which go before those of every object. Arguments: the chart's root, its own. */}}
{{- define "rljob.labelsWith" -}}
{{- $more := index . 1 | default dict }}
{{- with index . 0 }}
{{- include "rljob.yaml" (merge (include "rljob.ownLabels" . | fromYaml) $more (.Values.commonLabels | default dict)) }}
{{- end }}
{{- end }}

{{/* Values. */}}

{{/* A mapping or a list as YAML, without the keys that are null: so a key of the defaults or of an earlier file is dropped. */}}
{{- define "rljob.yaml" -}}
{{- $value := deepCopy . }}
{{- $_ := include "rljob.dropNulls" $value }}
{{- toYaml $value }}
{{- end }}

{{/* Takes the keys that are null out of a mapping, and of all that it or a list holds. */}}
{{- define "rljob.dropNulls" -}}
{{- range $key, $value := . }}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) }}
{{- $_ := include "rljob.dropNulls" $value }}
{{- else if and (kindIs "invalid" $value) (kindIs "map" $) }}
{{- $_ := unset $ $key }}
{{- end }}
{{- end }}
{{- end }}

{{/* An image as one word. Arguments: the image's values, the chart's root. */}}
{{- define "rljob.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1).Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A probe. Arguments: its path, its times. */}}
{{- define "rljob.probe" -}}
{{- include "rljob.yaml" (merge (dict "httpGet" (dict "path" (index . 0) "port" "metrics")) (index . 1)) }}
{{- end }}

{{/* Labels as KEY=VALUE,KEY=VALUE in the order of their keys. */}}
{{- define "rljob.pairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{ join "," $pairs }}
{{- end }}

{{/* Where the job of `helm test` runs. */}}
{{- define "rljob.smokeNamespace" -}}
{{ .Values.smokeTest.namespace | default (first (append (.Values.watch.namespaces | default list) .Release.Namespace)) }}
{{- end }}

{{/* What doesn't fit together. */}}
{{- define "rljob.check" -}}
{{- $fullname := include "rljob.fullname" . -}}
{{- if not (regexMatch "^[a-z]" $fullname) -}}
{{- fail (printf "names would begin with %s, and a Service's and an RLJob's begin with a letter: set fullnameOverride" $fullname) -}}
{{- end -}}
{{- if contains "." $fullname -}}
{{- fail (printf "names would begin with %s, and a Service's and an RLJob's hold no dot: set fullnameOverride" $fullname) -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty: name the operator's account, since that of the namespace is every pod's there" -}}
{{- end -}}
{{- $scraper := .Values.networkPolicies.scraper -}}
{{- if and $scraper.podSelector (not $scraper.namespaceSelector) -}}
{{- fail "networkPolicies.scraper.podSelector needs networkPolicies.scraper.namespaceSelector: say in which namespace these pods are" -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.networkPolicies.jobs.enabled (not $scraper.namespaceSelector) -}}
{{- fail "metrics.podMonitor.enabled lets Prometheus scrape jobs, and networkPolicies.jobs.enabled keeps it out: set networkPolicies.scraper.namespaceSelector to the labels of its namespace, or networkPolicies.jobs.enabled to false" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.networkPolicies.operator.enabled (not $scraper.namespaceSelector) -}}
{{- fail "metrics.serviceMonitor.enabled lets Prometheus scrape the operator, and networkPolicies.operator.enabled keeps it out: set networkPolicies.scraper.namespaceSelector to the labels of its namespace, or networkPolicies.operator.enabled to false" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.service.enabled: it scrapes the pods behind that Service" -}}
{{- end -}}
{{- if and .Values.dashboards.enabled (hasKey (include "rljob.ownLabels" . | fromYaml) .Values.dashboards.label) -}}
{{- fail (printf "dashboards.label %s is a label that the chart sets itself: give the key that Grafana's sidecar looks for, such as grafana_dashboard" .Values.dashboards.label) -}}
{{- end -}}
{{- if and .Values.smokeTest.namespace .Values.watch.namespaces (not (has .Values.smokeTest.namespace .Values.watch.namespaces)) -}}
{{- fail (printf "smokeTest.namespace %s is none of watch.namespaces: the operator would not act there" .Values.smokeTest.namespace) -}}
{{- end -}}
{{- end }}
