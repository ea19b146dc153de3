"""Vector environments: one protocol, filled by an in-process loop, vectorised entry points, a process pool and EnvPool.

Belongs here: building environments from an `EnvConfig`, describing their spaces, stepping copies of them, their
snapshots, and measuring backends. Start with `rlruntime.envs.make.make_vector_env`. May import NumPy, Gymnasium,
`rlruntime.spec` and `rlruntime.errors`; never torch, so that worker processes start fast, and nothing of transforms or
above.
"""
