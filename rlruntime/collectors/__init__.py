"""Collectors: they step environments with a policy and fill rollouts.

`protocol.py` says what all have in common, `rollout.py` what they fill; `inline.py`, `async_envs.py`,
`sync_process.py` and `async_process.py` are the collectors, `make.py` builds one from a manifest. `trajectories.py`
splits rollouts, `transitions.py` makes rows for replay of them, `evaluator.py` evaluates beside training. What a
rollout comes to, such as rewards and statistics, is computed by the side that learns (`accounting.py`), whoever
collected it.

May import policies, weights, storages, transforms, environments, losses, metrics and the spec; never trainers or the
command line.
"""
