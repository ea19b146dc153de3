"""What a run offers to others over the network: the port with metrics, probes and status.

Belongs here: servers and their clients. May import anything below `rlruntime.cli`, but never trains by itself.
"""
