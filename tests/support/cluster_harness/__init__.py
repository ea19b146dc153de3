"""A real Kubernetes for tests and for `make cluster`: its binaries, its control plane, its nodes, and their end.

Every process is started by a guard, a process of its own that ends all of them, and removes what they left, when its
owner closes it or dies. Nothing here may import the runtime or the operator: what is tested is not needed for the test.
`leftovers` imports the standard library alone, since the guard starts with it in a few milliseconds.
"""
