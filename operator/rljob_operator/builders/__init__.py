"""Pure functions from a manifest to Kubernetes objects, as plain dicts that are ready for JSON.

Inside: one module per kind of object, and what they share: names, labels, the owner, the overlay of a role's template.
They do no I/O, read no clock and draw no random number; the same arguments give the same object.

May import: `rlruntime.spec`, `rlruntime.errors` and the standard library. Never a Kubernetes client, nor anything else
of the operator.
"""
