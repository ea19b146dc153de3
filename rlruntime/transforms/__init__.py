"""Transforms between environments, policies and buffers, vectorised over copies and steps.

Belongs here: the transforms (`base.py` says what one is, and which seats it can take), the environment behind
transforms (`environment.py`), columns of buffers (`columns.py`), and the rule that places a job's (`staging.py`).
May import environments, losses, metrics and the spec; never policies, storages, collectors or trainers.
"""
