"""Decides what to do for a job: a pure function from what was observed to a plan.

Inside: `observed`, what is known of a job and its pods; `plan`, what is to be done; one small file per rule; `decide`,
which puts the rules in their order. Nothing here does I/O, reads a clock, draws a random number or logs: the time and
the token's name are arguments, and the same arguments give the same plan.

May import: `rljob_operator.builders`, `rlruntime.spec`, `rlruntime.errors` and the standard library. Never a Kubernetes
client, kopf, or anything else of the operator.
"""
