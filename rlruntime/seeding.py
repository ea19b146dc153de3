"""Named random streams from one seed.

Every consumer of randomness has a stream of its own (environment `i`, policy, shuffle, evaluation, ...), so that
adding one consumer doesn't change what another draws. Streams follow NumPy's ``SeedSequence`` spawning; see
https://numpy.org/doc/stable/reference/random/parallel.html.
"""

from __future__ import annotations

import zlib

import numpy as np

ENVIRONMENT = "environment"
POLICY = "policy"
SAMPLER = "sampler"
HINDSIGHT = "hindsight"
SHUFFLE = "shuffle"
NETWORK = "network"
EVALUATION = "evaluation"
CONFIRMATION = "confirmation"
FINAL_EVALUATION = "final-evaluation"


def stream_seed(seed: int, stream: str, *indices: int) -> int:
    """Return a seed in ``[0, 2**31)`` for one stream; the same arguments give the same seed on every machine.

    Args:
        seed: the job's seed.
        stream: name of the consumer, such as ``environment``.
        indices: which of several consumers, such as the environment's number and the number of its restart.
    """
    key = (zlib.crc32(stream.encode()), *indices)
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint32)[0] >> 1)


def stream_seeds(seed: int, stream: str, count: int, *indices: int) -> list[int]:
    """Return ``count`` seeds of one stream, by number."""
    return [stream_seed(seed, stream, *indices, i) for i in range(count)]
