"""RLJob's runtime: reinforcement-learning jobs from one manifest, or from Python.

Importing the package is light: nothing of torch is loaded before a name that needs it is used.
"""

from __future__ import annotations

__version__ = "0.1.0"
