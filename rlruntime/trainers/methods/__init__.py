"""How an algorithm gets its data: what one iteration of training is, on and off policy.

A method joins a collector, a learner and, off policy, a replay buffer. The loop in `rlruntime.trainers.loop` drives it
and knows nothing of algorithms. May import collectors, storages and algorithms; never the loop.
"""
