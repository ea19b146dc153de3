"""The ways that weights take: nowhere (one process), by shared memory, through a socket.

A scheme has a publisher and a receiver; `remote.py` holds what those between processes have in common, `members.py` the
publisher's view of the receivers, `wire.py` the messages. May import what `rlruntime.weights` may.
"""
