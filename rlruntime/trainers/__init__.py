"""Trainers: the loop, its algorithms, and what surrounds it: evaluation, checkpoints, callbacks, loggers, the run
folder.

May import everything below: collectors, policies, transforms, environments, losses, metrics, spec. Nothing here knows
of the command line, of terminals or of Kubernetes.
"""
