"""The config model of each built-in part, so that a config can be checked without importing the part itself."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from rlruntime.errors import ConfigError
from rlruntime.registry import ENTRY_POINT_GROUP, nearest_remedy
from rlruntime.spec.base import SpecModel
from rlruntime.spec.problems import Locate, ManifestError, Path, model_error, nowhere, path_text
from rlruntime.spec.training.advantages import GAEConfig, VTraceConfig
from rlruntime.spec.training.collectors import (
    AsyncEnvCollectorConfig,
    AsyncProcessCollectorConfig,
    InlineCollectorConfig,
    SyncProcessCollectorConfig,
)
from rlruntime.spec.training.component import Component
from rlruntime.spec.training.loggers import MLflowConfig, TensorBoardConfig, WandBConfig
from rlruntime.spec.training.network import CNNConfig, GRUConfig, LSTMConfig, MLPConfig
from rlruntime.spec.training.storages import (
    ConsumingSamplerConfig,
    ImmutableWriterConfig,
    ListStorageConfig,
    MaxValueWriterConfig,
    MemoryMappedStorageConfig,
    PrioritizedSamplerConfig,
    PrioritizedSliceSamplerConfig,
    PromptGroupSamplerConfig,
    RoundRobinWriterConfig,
    SharedTensorStorageConfig,
    SliceSamplerConfig,
    SliceWithoutReplacementSamplerConfig,
    StalenessBoundedSamplerConfig,
    TensorStorageConfig,
    UniformSamplerConfig,
    WithoutReplacementSamplerConfig,
)
from rlruntime.spec.training.training import TrainingSpec
from rlruntime.spec.training.transforms import TRANSFORM_CONFIGS

BUILTIN_CONFIGS: dict[tuple[str, str], type[SpecModel]] = {
    ("network", "MLP"): MLPConfig,
    ("network", "CNN"): CNNConfig,
    ("collector", "Inline"): InlineCollectorConfig,
    ("collector", "SyncProcess"): SyncProcessCollectorConfig,
    ("collector", "AsyncProcess"): AsyncProcessCollectorConfig,
    ("collector", "AsyncEnv"): AsyncEnvCollectorConfig,
    ("network", "LSTM"): LSTMConfig,
    ("network", "GRU"): GRUConfig,
    ("advantage", "GAE"): GAEConfig,
    ("advantage", "VTrace"): VTraceConfig,
    **{("transform", name): model for name, model in TRANSFORM_CONFIGS.items()},
    ("storage", "Tensor"): TensorStorageConfig,
    ("storage", "SharedTensor"): SharedTensorStorageConfig,
    ("storage", "MemoryMapped"): MemoryMappedStorageConfig,
    ("storage", "List"): ListStorageConfig,
    ("writer", "RoundRobin"): RoundRobinWriterConfig,
    ("writer", "MaxValue"): MaxValueWriterConfig,
    ("writer", "Immutable"): ImmutableWriterConfig,
    ("sampler", "Uniform"): UniformSamplerConfig,
    ("sampler", "WithoutReplacement"): WithoutReplacementSamplerConfig,
    ("sampler", "Prioritized"): PrioritizedSamplerConfig,
    ("sampler", "StalenessBounded"): StalenessBoundedSamplerConfig,
    ("sampler", "Slice"): SliceSamplerConfig,
    ("sampler", "SliceWithoutReplacement"): SliceWithoutReplacementSamplerConfig,
    ("sampler", "PrioritizedSlice"): PrioritizedSliceSamplerConfig,
    ("sampler", "PromptGroup"): PromptGroupSamplerConfig,
    ("sampler", "Consuming"): ConsumingSamplerConfig,
    ("logger", "TensorBoard"): TensorBoardConfig,
    ("logger", "WandB"): WandBConfig,
    ("logger", "MLflow"): MLflowConfig,
}
"""Config model by kind and registered name. There is no built-in callback: those are the user's own."""


def check_components(training: TrainingSpec, locate: Locate = nowhere) -> None:
    """Check type and config of every pluggable part, as far as that goes without importing it.

    A part named `package.module:Object`, or offered by an installed package, is left to the start of the run. So is an
    unknown name in a job that imports modules, which may register it.

    Args:
        training: what to check.
        locate: says where a path of the manifest stands, for the problems.

    Raises:
        ManifestError: an unknown name (the nearest is given), or a config that its model refuses; holds every problem.
    """
    problems: list[ConfigError] = []
    for kind, component, path in components_of(training):
        if not training.env.imports:
            problems.extend(_unknown_name(kind, component, path, locate))
        try:
            parse_component_config(kind, component, path_text(path), _below(locate, path))
        except ManifestError as error:
            problems.extend(error.problems)
    if problems:
        raise ManifestError(problems)


def components_of(training: TrainingSpec) -> Iterator[tuple[str, Component, Path]]:
    """Yield kind, component and path in the manifest of every part with a registry. Wrappers are Gymnasium's own."""
    root = ("spec", "training")
    yield "network", training.network, (*root, "network")
    if training.critic_network is not None:
        yield "network", training.critic_network, (*root, "criticNetwork")
    if training.ppo is not None and training.ppo.advantage is not None:
        yield "advantage", training.ppo.advantage, (*root, "ppo", "advantage")
    yield "collector", training.collector, (*root, "collector")
    replay: list[tuple[str, tuple[Component, ...], Path]] = []
    if training.replay is not None:
        for side in ("write", "read"):
            components = getattr(training.replay.transforms, side)
            replay.append(("transform", components, (*root, "replay", "transforms", side)))
        for kind in ("storage", "sampler", "writer"):
            yield kind, getattr(training.replay, kind), (*root, "replay", kind)
    lists: tuple[tuple[str, tuple[Component, ...], Path], ...] = (
        ("transform", training.env.transforms, (*root, "env", "transforms")),
        ("callback", training.callbacks, (*root, "callbacks")),
        ("logger", training.loggers, (*root, "loggers")),
        *replay,
    )
    for kind, components, path in lists:
        for index, component in enumerate(components):
            yield kind, component, (*path, index)


def parse_component_config(
    kind: str, component: Component, field: str, locate: Locate = nowhere
) -> SpecModel | dict[str, Any]:
    """Return the config of a built-in part as its model, and that of any other part as it is.

    Args:
        kind: such as ``network``.
        component: the part.
        field: path of the part in the manifest, such as ``spec.training.network``.
        locate: says where a path of the config stands, for the problems.

    Raises:
        ManifestError: the model refuses the config; holds every problem.
    """
    model = BUILTIN_CONFIGS.get((kind, component.type))
    if model is None:
        return component.config
    try:
        return model.model_validate(component.config, by_alias=True, by_name=False)
    except ValidationError as error:
        raise model_error(error, model, component.config, at=f"{field}.config", locate=locate) from None


def _below(locate: Locate, path: Path) -> Locate:
    return lambda sub_path: locate((*path, "config", *sub_path))


def _unknown_name(kind: str, component: Component, path: Path, locate: Locate) -> list[ConfigError]:
    name = component.type
    if ":" in name or (kind, name) in BUILTIN_CONFIGS or entry_points(group=ENTRY_POINT_GROUP, name=f"{kind}.{name}"):
        return []
    known = [builtin for builtin_kind, builtin in BUILTIN_CONFIGS if builtin_kind == kind]
    remedy = nearest_remedy(name, known) or f"use {', '.join([*known, 'package.module:Object'])}"
    field, source = path_text((*path, "type")), locate((*path, "type"))
    return [ConfigError(f"there is no {kind} of this name", field=field, value=name, remedy=remedy, source=source)]
