"""Replay: storages that hold rows, writers that place them, samplers that draw them, and the buffer of all three.

Array storages hold one packed row matrix with a typed view of each column; a TensorDict is made only where one is asked
for. Every row has a position, counted from the first row ever written: the slot it lies in is the position modulo the
capacity, and the rows at hand are those of a window of positions. Samplers follow the window, so that a writer needs
to know none of them, and may live in another process.

May import: torch, NumPy, tensordict (late: it takes as long to import as torch), `rlruntime.spec`, `rlruntime.registry`
and `rlruntime.errors`. Never policies, collectors or trainers.
"""
