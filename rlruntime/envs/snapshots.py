"""The state of one environment as bytes, and the proof that it continues bit for bit.

An environment is a chain of wrappers around a base; a vector environment of Gymnasium may hold several such chains. The
snapshot is one pickle of every link's attributes, in which a reference to a link is a number, so that what links share
stays shared. It is not the pickle of the environment itself: many environments define that one as "build a new one".

Not stored, but taken from the environment that is restored: its ``spec``, functions without state, and for
MuJoCo the model, the renderer and the data object, whose integration state (`mj_getState` with `mjSTATE_INTEGRATION`),
or all of it where an environment needs that, is stored in its place. What can't be pickled (files, sockets, generators,
most C++ objects) makes the environment not restorable. State outside the object, in globals or in a server, is never
captured; the replay of `prove_snapshot` finds out where it matters within its steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import time
import types
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rlruntime.envs.sampling import ActionSampler, mask_of
from rlruntime.errors import CheckpointError

FORMAT = 1
_LINK, _OWN = "link", "own"
_KEPT = ("spec", "_cached_spec", "env_fns")
_MUJOCO_KEPT = ("model", "data", "mujoco_renderer")
_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), np.ndarray, np.generic, type, types.ModuleType)
_REPLAY_STEPS, _WARM_UP_STEPS = 24, 3
_SEED = 20_011


@dataclass(frozen=True)
class SnapshotProof:
    """What a replay on scratch environments showed.

    Attributes:
        restorable: whether a restored environment continued bit for bit.
        reason: why not, in a few words; empty where it did.
        baseline: fingerprint of what is not stored, which a later snapshot must still have.
        full: whether MuJoCo's whole data is needed, since the environment reads quantities derived in an earlier step.
    """

    restorable: bool
    reason: str = ""
    baseline: bytes = b""
    full: bool = False


class _NotRestorableError(Exception):
    """The environment holds something that can't be put into a snapshot."""


def capture(env: Any, extra: Any = None, *, baseline: bytes | None = None, full: bool = False) -> bytes | None:
    """Return the state of an environment or of a Gymnasium vector environment; None where it can't be had.

    Args:
        env: the outermost wrapper.
        extra: picklable value stored beside the state and returned by `restore`.
        baseline: `SnapshotProof.baseline`; the answer is None where what is not stored changed since.
        full: `SnapshotProof.full`.
    """
    try:
        if baseline is not None and fingerprint(env) != baseline:
            return None
        return _capture(env, extra, full)
    except Exception:
        return None


def restore(env: Any, blob: bytes) -> Any:
    """Put a state into an environment built the same way, reset or not, and return ``extra`` of `capture`.

    Raises:
        CheckpointError: the state is of another environment or of another format, or can't be read.
    """
    links = list(_links(env))
    try:
        document = _Unpickler(io.BytesIO(blob), links).load()
    except Exception as error:
        raise CheckpointError(
            f"the environment snapshot can't be read: {type(error).__name__}: {error}",
            remedy="build the environment as it was built then",
        ) from error
    if document["format"] != FORMAT:
        raise CheckpointError("the environment snapshot has another format", value=document["format"])
    names = [_type_name(link) for link in links]
    if document["types"] != names:
        raise CheckpointError(
            "the environment snapshot is of another environment",
            value=" > ".join(document["types"]),
            remedy=f"this job builds {' > '.join(names)}",
        )
    for link, state, mujoco_state in zip(links, document["states"], document["mujoco"], strict=True):
        kept = {name: link.__dict__[name] for name in _kept_names(link) if name in link.__dict__}
        link.__dict__.clear()
        link.__dict__.update(state)
        link.__dict__.update(kept)
        if mujoco_state is not None:
            _set_mujoco_state(link, mujoco_state)
    return document["extra"]


def prove_snapshot(
    make_env: Callable[[], Any], *, budget_s: float = 30.0, clock: Callable[[], float] = time.monotonic
) -> SnapshotProof:
    """Find out whether an environment's state can be captured and restored, by a replay on scratch environments.

    One is stepped, captured, and stepped on through a reset, then captured again and reset at once; each state is put
    into a new environment that takes the same actions. Observations, rewards, flags and masks must agree bit for bit.

    Args:
        make_env: returns a new environment or vector environment of Gymnasium.
        budget_s: seconds after which the proof is given up, and the state counts as one that can't be restored.
        clock: seconds, monotonic.
    """
    scratch: list[Any] = []
    deadline_s = clock() + budget_s

    def check_time() -> None:
        if clock() > deadline_s:
            raise TimeoutError(f"its steps are too slow to prove it within {budget_s:g} s")

    def new_env() -> Any:
        scratch.append(make_env())
        return scratch[-1]

    try:
        original = new_env()
        baseline = fingerprint(original)
        if fingerprint(new_env()) != baseline:
            return SnapshotProof(False, "two new environments differ in what is not stored")
        has_mujoco = any(map(_is_mujoco, _links(original)))
        for full in (False, True) if has_mujoco else (False,):
            if _continues_alike(original, new_env, full, check_time):
                return SnapshotProof(True, baseline=baseline, full=full)
        return SnapshotProof(False, "the restored environment continued differently")
    except Exception as error:
        return SnapshotProof(False, f"{type(error).__name__}: {error}")
    finally:
        for env in scratch:
            _close_quietly(env)


def _continues_alike(original: Any, new_env: Callable[[], Any], full: bool, check_time: Callable[[], None]) -> bool:
    begin = _Moment(False, mask_of(*original.reset(seed=_SEED)))
    _, moment = _replay(original, _WARM_UP_STEPS, begin, check_time, reset_at=-1)
    for reset_at in (_REPLAY_STEPS // 2, 0):
        blob = _capture(original, None, full)
        expected, later = _replay(original, _REPLAY_STEPS, moment, check_time, reset_at=reset_at)
        other = new_env()
        restore(other, blob)
        found, _ = _replay(other, _REPLAY_STEPS, moment, check_time, reset_at=reset_at)
        if not identical(expected, found):
            return False
        moment = later
    return True


def fingerprint(env: Any) -> bytes:
    """Return a hash of what snapshots leave out although it could change: MuJoCo models."""
    digest = hashlib.sha256()
    for link in _links(env):
        if _is_mujoco(link):
            digest.update(_model_bytes(link.model))
    return digest.digest()


def identical(a: Any, b: Any) -> bool:
    """Tell whether two nested values are equal bit for bit, NaN included."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, np.ndarray | np.generic) and a.dtype != object:
        return (
            isinstance(b, np.ndarray | np.generic)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, float):
        return isinstance(b, float) and np.float64(a).tobytes() == np.float64(b).tobytes()
    return bool(np.all(a == b))


def _capture(env: Any, extra: Any, full: bool) -> bytes:
    links = list(_links(env))
    for link in links:
        slots = [name for cls in type(link).__mro__ for name in cls.__dict__.get("__slots__", ())]
        if slots:
            raise _NotRestorableError(f"{_type_name(link)} has slots")
    states = [{name: value for name, value in link.__dict__.items() if name not in _kept_names(link)} for link in links]
    document = {
        "format": FORMAT,
        "types": [_type_name(link) for link in links],
        "states": states,
        "mujoco": [_get_mujoco_state(link, full) if _is_mujoco(link) else None for link in links],
        "extra": extra,
    }
    buffer = io.BytesIO()
    _Pickler(buffer, links).dump(document)
    return buffer.getvalue()


def _links(env: Any) -> Iterator[Any]:
    """Yield the wrappers from the outside in, the base, and below a vector environment those of its copies."""
    while True:
        yield env
        if isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
            env = env.env
            continue
        for copy in getattr(env, "envs", ()) if isinstance(env, gym.vector.VectorEnv) else ():
            yield from _links(copy)
        return


def _type_name(link: Any) -> str:
    return f"{type(link).__module__}.{type(link).__qualname__}"


def _kept_names(link: Any) -> tuple[str, ...]:
    return _KEPT + _MUJOCO_KEPT if _is_mujoco(link) else _KEPT


class _Pickler(pickle.Pickler):
    """Pickles attributes; links, and what belongs to the environment that is restored, become references."""

    def __init__(self, buffer: io.BytesIO, links: list[Any]) -> None:
        super().__init__(buffer, protocol=5)
        self._references: dict[int, tuple[Any, ...]] = {id(link): (_LINK, i) for i, link in enumerate(links)}
        members = {id(link) for link in links}
        for i, link in enumerate(links):
            for name, value in link.__dict__.items():
                keeps_own = name in _kept_names(link) or (
                    isinstance(value, types.FunctionType) and _stateless(value, members)
                )
                if keeps_own and not isinstance(value, _CONSTANTS):
                    self._references.setdefault(id(value), (_OWN, i, name))

    def persistent_id(self, obj: Any) -> Any:
        return self._references.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, gym.Env | gym.vector.VectorEnv | gym.utils.EzPickle):
            raise _NotRestorableError(f"it holds a {_type_name(obj)} that pickles as a new one")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, links: list[Any]) -> None:
        super().__init__(buffer)
        self._links = links

    def persistent_load(self, reference: Any) -> Any:
        link = self._links[reference[1]]
        return link if reference[0] == _LINK else link.__dict__[reference[2]]


def _stateless(function: types.FunctionType, members: set[int]) -> bool:
    """Tell whether a function holds nothing that could change: it closes over links, spaces and constants only."""
    for cell in function.__closure__ or ():
        content = cell.cell_contents
        if id(content) in members or isinstance(content, (*_CONSTANTS, gym.Space)):
            continue
        if isinstance(content, types.FunctionType) and _stateless(content, members):
            continue
        return False
    return True


def _is_mujoco(link: Any) -> bool:
    data = link.__dict__.get("data")
    return data is not None and type(data).__name__ == "MjData" and type(data).__module__.startswith("mujoco")


def _get_mujoco_state(link: Any, full: bool) -> Any:
    """Return the integration state as an array, or the pickle of the whole data, which brings its model along."""
    import mujoco

    if full:
        return zlib.compress(pickle.dumps(link.data, protocol=5), level=1)
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(link.model, kind), np.float64)
    mujoco.mj_getState(link.model, link.data, state, kind)
    return state


def _set_mujoco_state(link: Any, state: Any) -> None:
    import mujoco

    if isinstance(state, bytes):
        mujoco.mj_copyData(link.data, link.model, pickle.loads(zlib.decompress(state)))
    else:
        mujoco.mj_setState(link.model, link.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)


def _model_bytes(model: Any) -> bytes:
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


class _Moment(NamedTuple):
    """What the next step needs to know: which episodes have ended, and the action mask."""

    ended: Any
    mask: Any


def _replay(
    env: Any, num_steps: int, moment: _Moment, check_time: Callable[[], None], *, reset_at: int
) -> tuple[list[Any], _Moment]:
    """Step with the same allowed actions each time, resetting where an episode ended and once in between.

    Args:
        env: stepped.
        num_steps: how often.
        moment: from which it goes on.
        check_time: called before each step; raises when it is time to give up.
        reset_at: the step before which there is a reset; -1 for none.

    Returns:
        all that came out, and the moment at the end.
    """
    batched = isinstance(env, gym.vector.VectorEnv)
    by_mask = batched and env.metadata.get("autoreset_mode") is gym.vector.AutoresetMode.DISABLED
    sampler, record = ActionSampler(env, _SEED), []
    ended, mask = moment
    for number in range(num_steps):
        check_time()
        begun: Any = None
        if number == reset_at or (np.any(ended) and not batched):
            begun = env.reset()
        elif by_mask and np.any(ended):
            begun = env.reset(options={"reset_mask": np.array(ended)})
        if begun is not None:
            record.append(_copy(begun[0]))
            mask = mask_of(*begun)
        observation, reward, terminated, truncated, info = env.step(sampler.draw(mask))
        mask = _copy(mask_of(observation, info))
        record.append([_copy(observation), _copy(reward), _copy(terminated), _copy(truncated), mask])
        ended = np.logical_or(terminated, truncated)
    return record, _Moment(ended, mask)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_copy(inner) for inner in value]
    return np.array(value) if not isinstance(value, str | type(None)) else value


def _close_quietly(env: Any) -> None:
    with contextlib.suppress(Exception):
        env.close()
