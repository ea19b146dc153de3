"""Runs all measurements in turn, several rounds, and prints medians and ratios as Markdown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OURS = (
    "collect:Loop", "collect:VectorEntryPoint", "bare:sync", "bare:vector_entry_point", "train:Loop",
    "train:VectorEntryPoint", "sac:Pendulum-v1", "sac:HalfCheetah-v5",
)  # fmt: skip
# Two processes on two cores: TorchRL's best, so its multi-process collectors aren't pinned to one.
PEERS = (
    "collect:sb3", "collect:torchrl-single", "collect:torchrl-multisync", "collect:torchrl-multiasync", "train:sb3",
    "train:sbx", "sac:sb3/Pendulum-v1", "sac:sbx/Pendulum-v1", "sac:sb3/HalfCheetah-v5", "sac:sbx/HalfCheetah-v5",
)  # fmt: skip
_UNPINNED = ("collect:torchrl-multisync", "collect:torchrl-multiasync")
_LIMIT_S = 300
Results = dict[str, list[dict[str, float]]]


def measure(python: str, script: str, case: str) -> dict[str, float]:
    """Run one measurement in a process of its own and return what it printed."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    jax = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}
    command = [python, str(HERE / script), case]
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(
        command,
        env={**os.environ, **one_thread, **jax},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        preexec_fn=None if case in _UNPINNED else lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", required=True, help="interpreter of the peers' environment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="only these, without the tables")
    arguments = parser.parse_args()
    results: Results = {}
    for number in range(arguments.rounds):
        for script, python, cases in (
            ("ours.py", sys.executable, OURS),
            ("peers.py", arguments.peers_python, PEERS),
        ):
            for case in (name for name in cases if not arguments.cases or name in arguments.cases):
                print(f"round {number + 1}: {case}", file=sys.stderr)
                name = f"{'rljob' if script == 'ours.py' else 'peer'} {case}"
                results.setdefault(name, []).append(measure(python, script, case))
    if arguments.cases:
        print(json.dumps(results))
        return
    print(f"{processor()}; medians of {arguments.rounds}, one core.\n")
    print(collection_table(results))
    print(training_table(results))
    print(sac_table(results))


def collection_table(results: Results) -> str:
    """Return frames per second of collection, and what a step costs beside the bare one."""
    lines = ["| collection | frames/s | to Stable-Baselines3 | to TorchRL's best |", "|---|---|---|---|"]
    names = [name for name in results if " collect:" in name]
    sb3 = median(results, "peer collect:sb3", "frames_per_second")
    torchrl = max(median(results, name, "frames_per_second") for name in names if "torchrl" in name)
    for name in names:
        rate = median(results, name, "frames_per_second")
        lines.append(f"| {name} | {rate:,.0f} | {rate / sb3:.2f}x | {rate / torchrl:.2f}x |")
    lines += ["", "| a step of 16 copies | us | RLJob to bare |", "|---|---|---|"]
    for backend, mode in (("Loop", "sync"), ("VectorEntryPoint", "vector_entry_point")):
        ours = median(results, f"rljob collect:{backend}", "step_us")
        bare = median(results, f"rljob bare:{mode}", "step_us")
        lines += [f"| rljob {backend} | {ours:.1f} | {ours / bare:.2f}x |", f"| bare {mode} | {bare:.1f} | |"]
    return "\n".join(lines) + "\n"


def training_table(results: Results) -> str:
    """Return frames per second of PPO end to end, warm-up and what was learned."""
    lines = [
        "| PPO end to end | frames/s | to Stable-Baselines3 | to sbx | warm-up s | reward (each round) |",
        "|---|---|---|---|---|---|",
    ]
    sb3, sbx = (median(results, f"peer train:{name}", "frames_per_second") for name in ("sb3", "sbx"))
    for name in (name for name in results if " train:" in name):
        rate, warm = median(results, name, "frames_per_second"), median(results, name, "warm_up_s")
        rewards = ", ".join(f"{result['reward']:.0f}" for result in results[name])
        lines.append(f"| {name} | {rate:,.0f} | {rate / sb3:.2f}x | {rate / sbx:.2f}x | {warm:.1f} | {rewards} |")
    return "\n".join(lines) + "\n"


def sac_table(results: Results) -> str:
    """Return frames per second of SAC end to end, by environment."""
    lines = [
        "| SAC end to end | frames/s | to Stable-Baselines3 | to sbx | warm-up s |",
        "|---|---|---|---|---|",
    ]
    for env_id in ("Pendulum-v1", "HalfCheetah-v5"):
        names = (f"rljob sac:{env_id}", f"peer sac:sb3/{env_id}", f"peer sac:sbx/{env_id}")
        rates = [median(results, name, "frames_per_second") for name in names]
        for name, rate in zip(names, rates, strict=True):
            warm = median(results, name, "warm_up_s")
            lines.append(f"| {name} | {rate:,.0f} | {rate / rates[1]:.2f}x | {rate / rates[2]:.2f}x | {warm:.1f} |")
    return "\n".join(lines) + "\n"


def median(results: Results, name: str, figure: str) -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(result[figure] for result in results[name])


def processor() -> str:
    """Return the processor's name, and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main()
