"""Build the programs of the tests' clusters that are found nowhere, into the user's cache; needs no package.

`make programs` runs it. Tests build what they need themselves; this does so ahead of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from cluster_harness import binaries, products
from cluster_harness.errors import ClusterError


def main() -> int:
    """Build them, and return the exit code."""
    try:
        binaries.find(products.EVERYTHING)
    except ClusterError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
