"""RLJob's operator: what an `RLJob` becomes on Kubernetes.

Inside: `builders`, pure functions from a manifest to Kubernetes objects; `planner`, pure functions from what was
observed of a job to what is to be done; `kube`, the client; `reconcile`, which observes and carries out; `handlers`,
where kopf's events come in; the command `rljob-operator`.

May import: `rlruntime.spec`, `rlruntime.errors`, PyYAML, kopf, the Kubernetes client, aiohttp, the Prometheus
client and the standard library, each where `.importlinter` allows it. Never any other package of the runtime, and
never torch, numpy or gymnasium: the operator's image holds none of them. The folder that holds this package is no
package itself: as `operator` it would hide the standard library's module of that name.
"""
