"""What MuJoCo has to say, where its users look.

By itself it prints a warning twice for each model that is loaded, and adds it to a file ``MUJOCO_LOG.TXT`` in the
current folder: for one deprecated attribute in a model that comes with Gymnasium that is dozens of lines a run.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def hear_mujoco(entry_point: Any = None) -> None:
    """Have MuJoCo's warnings of this process printed once each, on standard error, unless somebody listens to them
    already. What is deprecated is told to those alone who ask Python for warnings, by ``-W`` or ``PYTHONWARNINGS``.

    Args:
        entry_point: of the environment that is about to be built. Where it isn't MuJoCo's, and nobody has imported
            MuJoCo, nothing is done.
    """
    if "mujoco" not in sys.modules and "mujoco" not in str(entry_point):
        return
    try:
        import mujoco
    except ImportError:  # building the environment says so
        return
    if hasattr(mujoco, "set_mju_user_warning") and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_pass_on)


def _pass_on(text: str) -> None:
    if "deprecated" in text and not sys.warnoptions:
        return
    with contextlib.suppress(OSError):  # nothing may be raised into MuJoCo
        print(f"MuJoCo: {text.strip()}", file=sys.stderr, flush=True)
