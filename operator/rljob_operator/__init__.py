"""RLJob's operator: what an `RLJob` becomes on Kubernetes.

Inside: `builders`, pure functions from a manifest to Kubernetes objects; what is made of them; the command
`rljob-operator`.

May import: `rlruntime.spec`, `rlruntime.errors`, PyYAML and the standard library. Never any other package of the
runtime, and never torch, numpy or gymnasium: the operator's image holds none of them. The folder that holds this
package is no package itself: as `operator` it would hide the standard library's module of that name.
"""
