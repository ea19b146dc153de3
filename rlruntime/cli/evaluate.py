"""`rljob evaluate RUN`: lets a run's policy act in its own environment, and says what that brings."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlruntime.cli.user_code import add_code_option, use_code
from rlruntime.command_line import option_type, whole_number
from rlruntime.errors import EXIT_OK
from rlruntime.spec.base import MAX_INT

if TYPE_CHECKING:
    from rlruntime.trainers.evaluation import EvaluationResult

VIDEO_EPISODES = 3


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="evaluate a trained policy",
        description="Let a run's policy act in whole episodes of its own environment. Without options this repeats the"
        " evaluation at the end of the run, seeds included.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder that rljob run wrote")
    parser.add_argument("--episodes", type=_count, metavar="N", help="default: as in the manifest")
    parser.add_argument(
        "--seed", type=_seed, metavar="S", help="the episodes' seeds derive from it (default: the run's)"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--stochastic", dest="deterministic", action="store_false", help="sample the actions")
    mode.add_argument("--deterministic", action="store_true", help="take the most probable actions")
    parser.add_argument(
        "--video",
        action="store_true",
        help=f"write the first {VIDEO_EPISODES} episodes as RUN/videos/episode-N.mp4; needs rljob[video]",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="how the outcome is printed")
    add_code_option(parser)
    parser.set_defaults(handler=run, deterministic=None)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print the outcome, and return the exit code."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    use_code(arguments.run, arguments.code)
    from rlruntime.cli.video import record_episodes, require_video
    from rlruntime.policies.artifact import load_policy
    from rlruntime.seeding import FINAL_EVALUATION, stream_seed, stream_seeds
    from rlruntime.spec.loader import load_manifests
    from rlruntime.trainers.evaluation import Evaluator
    from rlruntime.trainers.run_folder import RunFolder

    folder = RunFolder.open(arguments.run)
    job = load_manifests(str(folder.manifest))[0]
    training = job.spec.training
    settings = training.evaluation
    episodes = arguments.episodes or settings.episodes
    deterministic = settings.deterministic if arguments.deterministic is None else arguments.deterministic
    seed = training.seed if arguments.seed is None else arguments.seed
    if arguments.video:
        require_video(training.env)
    noise_seed = stream_seed(seed, f"{FINAL_EVALUATION}-noise")
    policy = load_policy(folder.path, seed=noise_seed)
    evaluator = Evaluator(training.env, episodes=episodes, deterministic=deterministic)
    try:
        result = evaluator.evaluate(
            policy.module, stream_seeds(seed, FINAL_EVALUATION, episodes), noise_seed=noise_seed
        )
    finally:
        evaluator.close()
    videos: list[Path] = []
    if arguments.video:
        seeds = result.seeds[:VIDEO_EPISODES]
        videos = record_episodes(training.env, policy, seeds, folder.path / "videos", deterministic=deterministic)
    document = {"name": job.metadata.name, "run": str(folder.path), "seed": seed, "deterministic": deterministic}
    document |= {**summary(result), "videos": [str(path) for path in videos]}
    if arguments.log_format == "json":
        print(json.dumps(document, allow_nan=False))
    else:
        print("\n".join(lines(document)))
    return EXIT_OK


def summary(result: EvaluationResult) -> dict[str, Any]:
    """Return the numbers of an evaluation as JSON values."""
    return {
        "episodes": len(result.returns),
        "rewardMean": result.mean,
        "rewardStd": result.std,
        "rewardMin": float(result.returns.min()),
        "rewardMax": float(result.returns.max()),
        "lengthMean": float(result.lengths.mean()),
        "lengthMin": int(result.lengths.min()),
        "lengthMax": int(result.lengths.max()),
        "rewards": result.returns.tolist(),
        "lengths": result.lengths.tolist(),
    }


def lines(document: dict[str, Any]) -> list[str]:
    """Return the outcome for people."""
    actions = "most probable actions" if document["deterministic"] else "sampled actions"
    episodes = "1 episode" if document["episodes"] == 1 else f"{document['episodes']} episodes"
    text = [
        f"{document['name']}: {episodes}, {actions}, seed {document['seed']}",
        f"  reward  mean {document['rewardMean']:.6g}  std {document['rewardStd']:.6g}"
        f"  min {document['rewardMin']:.6g}  max {document['rewardMax']:.6g}",
        f"  length  mean {document['lengthMean']:.6g}  min {document['lengthMin']}  max {document['lengthMax']}",
    ]
    return [*text, *(f"  wrote {path}" for path in document["videos"])]


@option_type("give a whole number of episodes, at least 1")
def _count(text: str) -> int:
    return whole_number(text, 1)


@option_type(f"give a whole number from 0 to {MAX_INT}")
def _seed(text: str) -> int:
    return whole_number(text, 0, MAX_INT)
