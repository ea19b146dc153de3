"""What is published under which names, where who acts has other names than who learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rlruntime.errors import ConfigError, shorten
from rlruntime.weights.manifest import named_tensors
from rlruntime.weights.protocol import Weights

Tensors = dict[str, Tensor]
"""By full name, ``<model>/<name in its state_dict>``."""


@dataclass(frozen=True)
class WeightMap:
    """Selects, renames and transforms weights on their way from who learns to who acts.

    For each tensor the rule with its full name counts, else that with the longest prefix, else ``others``. The outcome
    is what the manifest is made of, so that names, shapes and dtypes are compared with the receiver's before a byte
    moves, and again at every publication.

    >>> import torch
    >>> to_actor = WeightMap(prefixes={"policy/encoder.": "actor/body."}, names={"policy/actor_head": "actor/head"})
    >>> learns = {"encoder.0": torch.ones(2), "actor_head": torch.ones(3), "critic_head": torch.ones(1)}
    >>> {model: sorted(tensors) for model, tensors in to_actor({"policy": learns}).items()}
    {'actor': ['body.0', 'head']}

    Attributes:
        names: full names, ``<model>/<name>``, to the receiver's; None leaves a tensor out.
        prefixes: beginnings of full names to the receiver's; None leaves out what begins so.
        others: what becomes of tensors that no rule names: they are left out, or keep their names.
        function: given the selected tensors by the receiver's full names, without gradients; returns those that are
            published: cast, cut, transposed, joined. It must leave the given ones as they are.
    """

    names: Mapping[str, str | None] = field(default_factory=dict)
    prefixes: Mapping[str, str | None] = field(default_factory=dict)
    others: Literal["Drop", "Keep"] = "Drop"
    function: Callable[[Tensors], Mapping[str, Tensor]] | None = None

    def __call__(self, weights: Weights) -> dict[str, Tensors]:
        """Return what is published of some weights, by model.

        Raises:
            ConfigError: a rule fits nothing, two tensors get one name, or a name has no model.
        """
        with torch.no_grad():
            selected = self._select(weights)
            outcome = selected if self.function is None else dict(self.function(selected))
        by_model: dict[str, Tensors] = {}
        for full_name, tensor in outcome.items():
            model, slash, name = full_name.partition("/")
            if not (model and slash and name):
                raise ConfigError(
                    "a published tensor's name is <model>/<name>", value=shorten(full_name), remedy="give it a model"
                )
            by_model.setdefault(model, {})[name] = tensor
        return by_model

    def _select(self, weights: Weights) -> Tensors:
        selected: Tensors = {}
        sources: dict[str, str] = {}
        unused = {*self.names, *self.prefixes}
        for model, state in weights.items():
            for name, tensor in named_tensors(state).items():
                source = f"{model}/{name}"
                rule, target = self._target(source)
                unused.discard(rule)
                if target is None:
                    continue
                if target in selected:
                    raise ConfigError(
                        f"{sources[target]} and {source} would both be published as {target}",
                        remedy="give one of them another name, or leave it out",
                    )
                selected[target], sources[target] = tensor, source
        if unused:
            raise ConfigError(
                "a rule of the weight map fits none of the weights",
                value=sorted(unused)[0],
                remedy="names begin with that of the model, as in policy/actor_head.weight",
            )
        return selected

    def _target(self, source: str) -> tuple[str, str | None]:
        """Return the rule that counts for a tensor, and the name it is published under."""
        if source in self.names:
            return source, self.names[source]
        fitting = [prefix for prefix in self.prefixes if source.startswith(prefix)]
        if not fitting:
            return "", source if self.others == "Keep" else None
        longest = max(fitting, key=len)
        beginning = self.prefixes[longest]
        return longest, None if beginning is None else beginning + source.removeprefix(longest)
