"""Measure RLJob's operator beside KubeRay, the training operator, and a client that only creates objects.

Every case has a control plane of its own, on this machine, with simulated nodes. A line of JSON is printed for each,
then the tables. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests" / "support")]

from case import Result, measure  # noqa: E402
from cluster_harness.errors import ClusterError  # noqa: E402
from contenders import CONTENDERS  # noqa: E402
from table import tables  # noqa: E402

_ROUND = ("rljob", "kuberay", "floor", "rljob-ends", "pytorchjob-ends")
_LARGE = ("rljob", "kuberay")
_SINGLE = ("rljob", "kuberay", "rljob-ordered")
_DEADLINE_S = 300.0


def main() -> int:
    """Measure what the command line asks for."""
    options = parsed()
    results: list[Result] = []
    for name, jobs, one_by_one in planned(options):
        try:
            result = measure(CONTENDERS[name], jobs, one_by_one=one_by_one, deadline_s=_DEADLINE_S)
        except (ClusterError, TimeoutError) as error:
            print(f"{name}, {jobs} jobs: {error or 'not done in time'}", file=sys.stderr)
            return 1
        line = json.dumps(result)
        print(line, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")
        results.append(result)
    print()
    print(tables(results))
    return 0


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of --jobs jobs, one case after the other (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=300, help="jobs at once; 0 for no rounds (%(default)s)")
    parser.add_argument(
        "--large", type=int, default=1000, help="jobs at once, each case once; 0 for none (%(default)s)"
    )
    parser.add_argument("--single", type=int, default=30, help="jobs one by one; 0 for none (%(default)s)")
    parser.add_argument("--cases", nargs="+", choices=CONTENDERS, metavar="CASE", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--out", type=Path, help="file to which the lines of JSON are added")
    return parser.parse_args()


def planned(options: argparse.Namespace) -> Iterator[tuple[str, int, bool]]:
    """Yield name, number of jobs, and whether they come one by one, of all cases in their order."""
    for _ in range(options.rounds if options.jobs else 0):
        yield from ((name, options.jobs, False) for name in options.cases or _ROUND)
    if options.large:
        yield from ((name, options.large, False) for name in options.cases or _LARGE)
    if options.single:
        yield from ((name, options.single, True) for name in options.cases or _SINGLE if CONTENDERS[name].jobs)


if __name__ == "__main__":
    sys.exit(main())
