"""Weight synchronisation: one protocol between who learns and who acts, and the schemes that carry the weights.

`protocol.py` says what is promised; `manifest.py` what the weights are, checked before a byte moves; `snapshot.py` one
version of them in flat memory; `joining.py` how a process becomes a receiver; `schemes/` the ways between processes.

May import policies and what lies below them; never collectors, trainers, storages or the command line. Schemes start no
process: whoever does hands it one end of a connection.
"""
