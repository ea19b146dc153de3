"""Weight synchronisation: one protocol between who learns and who acts, and the schemes that carry the weights.

`protocol.py` says what is promised; `manifest.py` what the weights are, checked before a byte moves; `snapshot.py` one
version of them in flat memory; `mapping.py` what is published under which names; `joining.py` how a process becomes a
receiver; `schemes/` the ways that weights take.

May import policies and what lies below them; never collectors, trainers, storages or the command line. Schemes start no
process: whoever does hands it one end of a connection. Here both ends stay in one process:

>>> from torch import nn
>>> from rlruntime.weights.joining import join
>>> from rlruntime.weights.schemes.shared_memory import SharedMemoryPublisher
>>> learns, acts = nn.Linear(3, 2), nn.Linear(3, 2)
>>> publisher = SharedMemoryPublisher({"policy": learns}, timeout_s=10.0)
>>> receiver = join(publisher.invite("collector-0"), {"policy": acts}, timeout_s=10.0)
>>> publisher.wait_joined(timeout_s=10.0)
>>> publication = publisher.publish({"policy": learns})
>>> receiver.acquire(min_version=publication.version, timeout_s=10.0)
1
>>> publication.wait_applied(timeout_s=10.0)["collector-0"].status.value
'applied'
>>> bool((acts.weight == learns.weight).all())
True
>>> receiver.close()
>>> publisher.close()
"""
