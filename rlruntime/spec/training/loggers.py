"""Settings of the loggers in `spec.training.loggers`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlruntime.spec.base import AsTuple, SpecModel

Tags = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AsTuple]


class TensorBoardConfig(SpecModel):
    """`type: TensorBoard`: event files."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """Where the event files go. Unset: `tensorboard/` in the run's folder."""


class WandBConfig(SpecModel):
    """`type: WandB`: a run of Weights & Biases. The key comes from the variable `WANDB_API_KEY`."""

    project: Annotated[str, Field(min_length=1)] = "rljob"
    """Project that the run belongs to."""
    entity: Annotated[str, Field(min_length=1)] | None = None
    """User or team that owns the project. Unset: the account's default."""
    name: Annotated[str, Field(min_length=1)] | None = None
    """Name of the run. Unset: the name of the run's folder."""
    tags: Tags = Field(default=(), max_length=32)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes into the run's folder only, for `wandb sync` later."""


class MLflowConfig(SpecModel):
    """`type: MLflow`: a run of an MLflow tracking server or store."""

    tracking_uri: Annotated[str, Field(min_length=1)] | None = None
    """Server or store, such as `http://mlflow:5000`. Unset: `MLFLOW_TRACKING_URI`, or what MLflow takes by itself."""
    experiment: Annotated[str, Field(min_length=1)] = "rljob"
    """Experiment that the run belongs to; made when there is none."""
    name: Annotated[str, Field(min_length=1)] | None = None
    """Name of the run. Unset: the name of the run's folder."""
