"""What a run measures of itself: phase timers, metric names, and the Prometheus exporter.

Belongs here: anything that counts or times. Imports the standard library and prometheus-client; never torch, and
nothing of the runtime above `rlruntime.spec`.
"""
