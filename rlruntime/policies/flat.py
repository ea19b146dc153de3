"""All parameters of a module in one flat tensor, and their gradients in another."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """Make the parameters of ``module`` views into one tensor, and their ``.grad`` views into another.

    Zeroing, clipping and an optimiser step are then one operation each, however many layers there are. Names, shapes
    and ``state_dict`` of the module stay as they are; tied parameters are stored once.

    Attributes:
        data: ``[P]`` all parameters, in the order of ``module.parameters()``.
        grad: ``[P]`` their gradients, accumulated by ``backward``.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("the module has no parameters that learn")
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) > 1:
            raise ValueError(f"parameters must share one dtype and device, got {sorted(map(str, kinds))}")
        with torch.no_grad():
            self.data = torch.cat([parameter.reshape(-1) for parameter in self.parameters])
            self.grad = torch.zeros_like(self.data)
            offset = 0
            for parameter in self.parameters:
                size = parameter.numel()
                parameter.data = self.data[offset : offset + size].view_as(parameter)
                parameter.grad = self.grad[offset : offset + size].view_as(parameter)
                offset += size

    def clip_grad_norm_(self, max_norm: float | None) -> Tensor:
        """Scale the gradient to a Euclidean norm of at most ``max_norm`` (None: leave it); return that before."""
        norm = torch.dot(self.grad, self.grad).sqrt_()
        if max_norm is not None:
            self.grad.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm


class Adam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) on flat parameters, by PyTorch's fused kernel.

    ``torch.optim.Adam`` does the same with the bookkeeping of parameter groups, which costs more than the step itself
    here. Moments that have become subnormal (below 1.2e-38 in magnitude) count as 0: a unit whose ReLU lets nothing
    through any more leaves a multitude of them within a thousand steps, and a processor takes twenty times as long
    with each.

    Attributes:
        first_moment, second_moment: ``[P]``.
        step_count: scalar float32, steps taken.
    """

    def __init__(self, flat: FlatParameters, *, epsilon: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.flat, self.epsilon, self.betas = flat, epsilon, betas
        self.first_moment = torch.zeros_like(flat.data)
        self.second_moment = torch.zeros_like(flat.data)
        self.step_count = torch.zeros((), device=flat.data.device)
        self._flush_after = _flushes_subnormal_numbers()

    def step(self, learning_rate: float) -> None:
        """Move the parameters by their accumulated gradient."""
        self.step_count += 1
        torch.set_flush_denormal(True)
        try:
            torch._fused_adam_(
                [self.flat.data],
                [self.flat.grad],
                [self.first_moment],
                [self.second_moment],
                [],
                [self.step_count],
                lr=learning_rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
                grad_scale=None,
                found_inf=None,
            )
        finally:
            torch.set_flush_denormal(self._flush_after)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments and the number of steps."""
        return {
            "first_moment": self.first_moment,
            "second_moment": self.second_moment,
            "step_count": self.step_count,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state_dict`` returned."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def _flushes_subnormal_numbers() -> bool:
    """Whether this thread takes subnormal numbers for 0 already."""
    return float(torch.full((), 1e-39) * 1.0) == 0.0
