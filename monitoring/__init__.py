"""What a platform team watches RLJob with, as code: dashboards, alerts and the page of metrics, and a renderer.

`python -m monitoring` writes the files that are checked in, and with ``--check`` says which are not as they would be
written. Names of metrics come from `rlruntime.metrics.names` and `rljob_operator.metrics`. No part of either package.
"""
