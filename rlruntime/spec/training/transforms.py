"""Settings of the built-in transforms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlruntime.spec.base import (
    AsTuple,
    Fraction,
    Int,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SpecModel,
    Whole,
    refusal,
)
from rlruntime.spec.training.env import ImportPath

Key = Annotated[str, Field(min_length=1, max_length=253)]
Keys = Annotated[tuple[Key, ...], AsTuple]
Numbers = Annotated[tuple[float, ...], AsTuple]
ChannelAxis = Literal["Auto", "First", "Last"]


class KeyedConfig(SpecModel):
    """A transform of observations that changes some keys, each by itself."""

    keys: Keys = Field(default=(), max_length=64)
    """Keys of a Dict observation that are changed. Empty: all that the transform can take."""


class ObservationNormConfig(KeyedConfig):
    """`type: ObservationNorm`: observations brought to mean 0 and standard deviation 1, by running moments or by given
    ones."""

    clip: PositiveFloat = 10.0
    """Largest magnitude of a normalised number, in standard deviations."""
    epsilon: PositiveFloat = 1e-8
    """Added to the variance before the division."""
    loc: Numbers | None = Field(default=None, max_length=65536)
    """Mean to subtract, one number or one per element. Unset: the running mean. Needs `scale`."""
    scale: Annotated[tuple[PositiveFloat, ...], AsTuple] | None = Field(default=None, max_length=65536)
    """Standard deviation to divide by, one number or one per element. Unset: the running one. Needs `loc`."""

    @model_validator(mode="after")
    def _both_or_none(self) -> ObservationNormConfig:
        if (self.loc is None) != (self.scale is None):
            raise refusal("give loc and scale together", remedy="give both, or none for running moments")
        return self


class RewardNormConfig(SpecModel):
    """`type: RewardNorm`: rewards divided by the running standard deviation of the discounted return."""

    clip: PositiveFloat = 10.0
    """Largest magnitude of a normalised reward, in standard deviations."""
    gamma: Fraction | None = None
    """Discount per step of that return. Unset: the algorithm's own."""
    epsilon: PositiveFloat = 1e-8
    """Added to the variance before the division."""


class FlattenObservationConfig(KeyedConfig):
    """`type: FlattenObservation`: arrays of several dimensions made vectors."""


class CatTensorsConfig(SpecModel):
    """`type: CatTensors`: several keys of a Dict observation joined into one, along their last dimension."""

    keys: Keys = Field(default=(), max_length=64)
    """Keys to join, in this order. Empty: all numeric ones, in alphabetical order."""
    out_key: Key | None = None
    """Name of what they become. Unset: the observation is that one array, where no other key is left."""
    keep: bool = False
    """Whether the joined keys stay beside it; needs `outKey`."""


class SelectConfig(SpecModel):
    """`type: Select`: only these keys of a Dict observation."""

    keys: Keys = Field(min_length=1, max_length=64)
    """Keys that stay."""


class ExcludeConfig(SpecModel):
    """`type: Exclude`: a Dict observation without these keys."""

    keys: Keys = Field(min_length=1, max_length=64)
    """Keys that go."""


class RenameConfig(SpecModel):
    """`type: Rename`: other names for keys of a Dict observation."""

    names: dict[str, str] = Field(min_length=1, max_length=64)
    """New name by old name."""


class SqueezeConfig(KeyedConfig):
    """`type: Squeeze`: one dimension of size 1 less."""

    dim: Int = -1
    """Dimension of one copy's observation: 0 is the first, -1 the last."""


class UnsqueezeConfig(KeyedConfig):
    """`type: Unsqueeze`: one dimension of size 1 more."""

    dim: Int = -1
    """Where it stands afterwards: 0 is the first, -1 the last."""


class PermuteConfig(KeyedConfig):
    """`type: Permute`: dimensions in another order."""

    dims: Annotated[tuple[Int, ...], AsTuple] = Field(min_length=1, max_length=8)
    """For each dimension of the outcome, which one of the observation it is."""


class DTypeCastConfig(KeyedConfig):
    """`type: DTypeCast`: numbers of another type. Environments store every float as float32."""

    dtype: Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
    """The type."""


class DoubleToFloatConfig(KeyedConfig):
    """`type: DoubleToFloat`: float64 made float32."""


class UnaryConfig(KeyedConfig):
    """`type: Unary`: a function of every number, or of every row."""

    function: str = Field(min_length=1, max_length=253)
    """A name (`abs`, `exp`, `log1p`, `neg`, `sigmoid`, `sign`, `sqrt`, `square`, `symlog`, `tanh`), or
    `package.module:function` of rows `[N, ...]`, called the same way wherever the transform runs."""


class ToFloatImageConfig(KeyedConfig):
    """`type: ToFloatImage`: images of bytes made float32 from 0 to 1, channels first."""

    channels: ChannelAxis = "Auto"
    """Where the channels of the image are. `Auto`: the smaller of its first and last dimension."""


class ResizeConfig(KeyedConfig):
    """`type: Resize`: images of another size."""

    height: PositiveInt
    """Pixels."""
    width: PositiveInt
    """Pixels."""
    interpolation: Literal["Area", "Bilinear", "Nearest"] = "Area"
    """How a pixel is made of those that it covers: their mean, a bilinear mixture, or the nearest one."""
    channels: ChannelAxis = "Auto"
    """Where the channels of the image are. `Auto`: the smaller of its first and last dimension."""


class GrayScaleConfig(KeyedConfig):
    """`type: GrayScale`: colour images made grey (ITU-R BT.601); one channel stays."""

    channels: ChannelAxis = "Auto"
    """Where the channels of the image are. `Auto`: the smaller of its first and last dimension."""


class CropConfig(KeyedConfig):
    """`type: Crop`: a rectangle of each image."""

    top: NonNegativeInt = 0
    """Pixels above it."""
    left: NonNegativeInt = 0
    """Pixels left of it."""
    height: PositiveInt
    """Pixels."""
    width: PositiveInt
    """Pixels."""
    channels: ChannelAxis = "Auto"
    """Where the channels of the image are. `Auto`: the smaller of its first and last dimension."""


class CenterCropConfig(KeyedConfig):
    """`type: CenterCrop`: the rectangle in the middle of each image."""

    height: PositiveInt
    """Pixels."""
    width: PositiveInt
    """Pixels."""
    channels: ChannelAxis = "Auto"
    """Where the channels of the image are. `Auto`: the smaller of its first and last dimension."""


class CatFramesConfig(KeyedConfig):
    """`type: CatFrames`: the last observations of the episode joined into one."""

    frames: PositiveInt = 4
    """How many, the newest last."""
    dim: Int = -1
    """Dimension of one copy's observation that they are joined along."""
    padding: Literal["Repeat", "Zeros"] = "Repeat"
    """What stands for observations before the first: that one again, or zeros."""


class TimeMaxPoolConfig(KeyedConfig):
    """`type: TimeMaxPool`: the largest of the last observations of the episode, element by element."""

    frames: PositiveInt = 2
    """How many."""


class ActionHistoryConfig(SpecModel):
    """`type: ActionHistory`: the last actions of the episode, as a part of the observation."""

    length: PositiveInt = 1
    """How many, the newest last; 0 (for categories: -1) where there was none yet."""
    key: Key = "action_history"
    """Key of the Dict observation that has them."""


class StepCounterConfig(SpecModel):
    """`type: StepCounter`: the decisions made in this episode, as a part of the observation, and a limit to them."""

    limit: PositiveInt | None = None
    """Decisions after which an episode is truncated. Unset: none."""
    key: Key = "step_count"
    """Key of the Dict observation that counts."""


class RewardSumConfig(SpecModel):
    """`type: RewardSum`: the sum of this episode's rewards, as a part of the observation."""

    key: Key = "episode_reward"
    """Key of the Dict observation that has it."""


class InitTrackerConfig(SpecModel):
    """`type: InitTracker`: whether an observation is the first of its episode, as a part of it."""

    key: Key = "is_init"
    """Key of the Dict observation that says so."""


class TrajectoryCounterConfig(SpecModel):
    """`type: TrajectoryCounter`: a number for each episode, as a part of the observation."""

    key: Key = "trajectory"
    """Key of the Dict observation that has it."""


class TargetReturnConfig(SpecModel):
    """`type: TargetReturn`: the return that is still to be reached in this episode, as a part of the observation."""

    target: float
    """At the start of an episode."""
    mode: Literal["Reduce", "Constant"] = "Reduce"
    """Whether each reward is subtracted from it."""
    key: Key = "target_return"
    """Key of the Dict observation that has it."""


class RewardScalingConfig(SpecModel):
    """`type: RewardScaling`: `scale * reward + loc`."""

    scale: float = 1.0
    """Factor; not 0."""
    loc: float = 0.0
    """Added afterwards."""

    @model_validator(mode="after")
    def _scale_is_not_zero(self) -> RewardScalingConfig:
        if self.scale == 0.0:
            raise refusal("a scale of 0 leaves nothing to learn from", "scale")
        return self


class RewardClippingConfig(SpecModel):
    """`type: RewardClipping`: rewards cut off at two bounds."""

    low: float = -1.0
    """Smallest reward."""
    high: float = 1.0
    """Largest reward."""

    @model_validator(mode="after")
    def _in_order(self) -> RewardClippingConfig:
        if self.low >= self.high:
            raise refusal("low must be below high", "low", value=self.low)
        return self


class RewardSignConfig(SpecModel):
    """`type: RewardSign`: -1, 0 or 1."""


class BinarizeRewardConfig(SpecModel):
    """`type: BinarizeReward`: 1 for a reward above 0, else 0."""


class RewardToGoConfig(SpecModel):
    """`type: RewardToGo`: the discounted sum of the rewards from each step to the end of its episode or rollout."""

    gamma: Fraction = 1.0
    """Discount per step."""


class LineariseRewardsConfig(SpecModel):
    """`type: LineariseRewards`: several rewards made one, for rows of a buffer that hold several."""

    weights: Numbers = Field(min_length=1, max_length=64)
    """Weight of each."""


class ActionScalingConfig(SpecModel):
    """`type: ActionScaling`: the policy acts in other bounds than the environment's."""

    low: float = -1.0
    """The policy's lower bound, for every dimension."""
    high: float = 1.0
    """The policy's upper bound, for every dimension."""

    @model_validator(mode="after")
    def _in_order(self) -> ActionScalingConfig:
        if self.low >= self.high:
            raise refusal("low must be below high", "low", value=self.low)
        return self


class ActionDiscretizerConfig(SpecModel):
    """`type: ActionDiscretizer`: the policy chooses among evenly spaced values of a Box action."""

    intervals: Annotated[int, Field(ge=2), Whole] = 5
    """How many values each dimension has."""
    points: Literal["Centres", "Edges"] = "Centres"
    """Whether they are the middles of equal intervals, or begin and end at the bounds."""


class ActionMaskConfig(SpecModel):
    """`type: ActionMask`: a key of the observation says which actions are allowed."""

    key: Key = "action_mask"
    """Key with one entry per action, 0 where it is forbidden. The policy sees it as a mask, not as an observation."""


class FrameSkipConfig(SpecModel):
    """`type: FrameSkip`: each action is repeated, and its rewards are summed; the end of an episode stops it."""

    frames: PositiveInt = 4
    """Steps of the environment in one decision."""
    max_pool: PositiveInt = 1
    """Frames, at most `frames`, whose largest values are the observation: 2 against sprites that flicker."""

    @model_validator(mode="after")
    def _pool_fits(self) -> FrameSkipConfig:
        if self.max_pool > self.frames:
            raise refusal("can't be more than frames", "maxPool", value=self.max_pool)
        return self


class NoopResetConfig(SpecModel):
    """`type: NoopReset`: an episode begins after a random number of steps that do nothing."""

    max_noops: PositiveInt = 30
    """Most steps; at least one is taken."""
    action: Int | None = None
    """What does nothing, as the environment counts its actions. Unset: its first action, or zeros for a Box."""


class EndOfLifeConfig(SpecModel):
    """`type: EndOfLife`: in training, the loss of a life ends the episode; the game goes on in the next one."""

    action: Int | None = None
    """Action of the step that stands for the reset after a lost life. Unset: the first action, or zeros for a Box."""


class RandomTruncationConfig(SpecModel):
    """`type: RandomTruncation`: in training, an episode is truncated at random, so that copies don't march in step."""

    probability: Annotated[float, Field(gt=0, lt=1)]
    """That a step is the last one."""


class ModuleTransformConfig(SpecModel):
    """`type: ModuleTransform`: a module of PyTorch."""

    factory: ImportPath | None = None
    """`package.module:callable` that returns the `torch.nn.Module`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the factory."""
    seed: NonNegativeInt = 0
    """Of the parameters that the factory draws, so that they are the same in every process and run."""
    in_keys: Keys = Field(default=(), max_length=64)
    """Keys of a Dict observation that it is called with, one argument each. Empty: the whole observation, as it is."""
    out_keys: Keys = Field(default=(), max_length=64)
    """Names of what it returns. Empty: that is the whole observation."""
    keep: bool = False
    """Whether the keys that it was called with stay."""
    inverse: bool = False
    """Whether it maps the policy's actions to the environment's instead of observations."""
    requires_grad: bool = False
    """Whether it learns with the policy that it is a part of."""
    device: Annotated[str, Field(min_length=1, max_length=16)] | None = None
    """Where it computes. Unset: where its inputs are."""
    shape: Annotated[tuple[PositiveInt, ...], AsTuple] | None = Field(default=None, max_length=8)
    """Shape of one row of what it returns, or, where it maps actions, of the policy's action. Unset: tried out."""
    low: float | None = None
    """Lower bound of that. Unset: none."""
    high: float | None = None
    """Upper bound of that. Unset: none."""


TRANSFORM_CONFIGS: dict[str, type[SpecModel]] = {
    "ObservationNorm": ObservationNormConfig,
    "RewardNorm": RewardNormConfig,
    "FlattenObservation": FlattenObservationConfig,
    "CatTensors": CatTensorsConfig,
    "Select": SelectConfig,
    "Exclude": ExcludeConfig,
    "Rename": RenameConfig,
    "Squeeze": SqueezeConfig,
    "Unsqueeze": UnsqueezeConfig,
    "Permute": PermuteConfig,
    "DTypeCast": DTypeCastConfig,
    "DoubleToFloat": DoubleToFloatConfig,
    "Unary": UnaryConfig,
    "ToFloatImage": ToFloatImageConfig,
    "Resize": ResizeConfig,
    "GrayScale": GrayScaleConfig,
    "Crop": CropConfig,
    "CenterCrop": CenterCropConfig,
    "CatFrames": CatFramesConfig,
    "TimeMaxPool": TimeMaxPoolConfig,
    "ActionHistory": ActionHistoryConfig,
    "StepCounter": StepCounterConfig,
    "RewardSum": RewardSumConfig,
    "InitTracker": InitTrackerConfig,
    "TrajectoryCounter": TrajectoryCounterConfig,
    "TargetReturn": TargetReturnConfig,
    "RewardScaling": RewardScalingConfig,
    "RewardClipping": RewardClippingConfig,
    "RewardSign": RewardSignConfig,
    "BinarizeReward": BinarizeRewardConfig,
    "RewardToGo": RewardToGoConfig,
    "LineariseRewards": LineariseRewardsConfig,
    "ActionScaling": ActionScalingConfig,
    "ActionDiscretizer": ActionDiscretizerConfig,
    "ActionMask": ActionMaskConfig,
    "FrameSkip": FrameSkipConfig,
    "NoopReset": NoopResetConfig,
    "EndOfLife": EndOfLifeConfig,
    "RandomTruncation": RandomTruncationConfig,
    "ModuleTransform": ModuleTransformConfig,
}
"""Model by registered name."""
