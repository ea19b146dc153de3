"""Products of matrices: both kernels give what double precision says, to float32 rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rlruntime.policies.products import (
    BlasProducts,
    Layer,
    OneDnnProducts,
    Products,
    choose_kernel,
    has_onednn,
    kernel_name,
    make_products,
)

KERNELS = [
    pytest.param(BlasProducts(), id="blas"),
    pytest.param(
        OneDnnProducts() if has_onednn() else None,
        id="onednn",
        marks=pytest.mark.skipif(not has_onednn(), reason="PyTorch was built without oneDNN"),
    ),
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(num_in: int, num_out: int) -> tuple[nn.Linear, Layer]:
    module = nn.Linear(num_in, num_out)
    with torch.no_grad():
        module.weight.copy_(drawn(num_out, num_in, seed=1))
        module.bias.copy_(drawn(num_out, seed=2))
    module.weight.grad, module.bias.grad = torch.zeros(num_out, num_in), torch.zeros(num_out)
    return module, Layer.of(module)


def assert_float32_close(found: Tensor, exact: Tensor, terms: int) -> None:
    """Sums of ``terms`` products of numbers near 1 are off by rounding alone: bfloat16 or TF32 are a thousand times as
    far off.
    """
    assert found.dtype == torch.float32
    assert not found.requires_grad
    error = float((found.double() - exact).abs().max())
    assert error < 1e-6 * terms**0.5 * 4


@pytest.mark.parametrize("products", KERNELS)
@pytest.mark.parametrize("rows", [1, 37, 256])
@pytest.mark.parametrize(("num_in", "num_out"), [(1, 256), (4, 256), (256, 256), (256, 2), (256, 12), (100, 70)])
def test_both_kernels_are_exact_to_float32_rounding(products: Products, rows: int, num_in: int, num_out: int) -> None:
    module, layer = layer_of(num_in, num_out)
    inputs, gradient = drawn(rows, num_in, seed=3), drawn(rows, num_out, seed=4)
    weight, bias = module.weight.detach().double(), module.bias.detach().double()
    exact = inputs.double() @ weight.t() + bias
    assert_float32_close(products.linear(inputs, layer, torch.empty(rows, num_out)), exact, num_in)
    assert_float32_close(products.linear_relu(inputs, layer, torch.empty(rows, num_out)), exact.relu(), num_in)
    found = products.input_gradient(gradient, layer, torch.empty(rows, num_in))
    assert_float32_close(found, gradient.double() @ weight, num_out)
    for columns in (slice(0, num_in), slice(num_in // 2, num_in), slice(num_in - 1, num_in)):
        found = products.column_gradient(gradient, layer, columns)
        assert_float32_close(found, gradient.double() @ weight[:, columns], num_out)
    assert layer.weight_grad is not None
    products.weight_gradient(gradient, inputs, layer.weight_grad)
    assert module.weight.grad is not None
    assert_float32_close(module.weight.grad, gradient.double().t() @ inputs.double(), rows)


@pytest.mark.parametrize("products", KERNELS)
@pytest.mark.parametrize("num_out", [1, 10, 24, 100, 256, 300])
def test_a_weight_that_is_no_number_or_infinite_shows_in_every_row_behind_a_relu(
    products: Products, num_out: int
) -> None:
    _, layer = layer_of(256, num_out)
    layer.weight.fill_(float("nan"))
    rows = torch.ones(256, 256)
    assert bool(products.linear_relu(rows, layer, torch.empty(256, num_out)).isnan().all())
    assert bool(products.linear(rows, layer, torch.empty(256, num_out)).isnan().all())
    layer.weight.fill_(float("inf"))
    assert bool(products.linear_relu(rows, layer, torch.empty(256, num_out)).isposinf().all())


@pytest.mark.parametrize(
    ("capability", "vendor", "family", "kernel"),
    [
        ("AVX512", "AuthenticAMD", 26, "onednn"),  # Zen 5
        ("AVX512_BF16", "AuthenticAMD", 27, "onednn"),
        ("AVX512_BF16", "AuthenticAMD", 25, "blas"),  # Zen 4 takes 512 bits in halves
        ("AVX512", "CentaurHauls", 7, "onednn"),
        ("AVX512", "GenuineIntel", 6, "blas"),
        ("AVX2", "AuthenticAMD", 26, "blas"),
        ("AVX2", "GenuineIntel", 6, "blas"),
        ("DEFAULT", "", 0, "blas"),
        ("AVX512", "", 0, "blas"),
    ],
)
def test_onednn_is_chosen_where_mkl_leaves_half_of_the_processor_idle(
    capability: str, vendor: str, family: int, kernel: str
) -> None:
    processor = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\n"
    assert choose_kernel(capability, processor if vendor else "") == kernel


def test_float32_products_take_the_machines_kernel_and_others_blas() -> None:
    assert kernel_name() in (["blas", "onednn"] if has_onednn() else ["blas"])
    assert make_products(torch.zeros(1)).name == kernel_name()
    assert make_products(torch.zeros(1, dtype=torch.float64)).name == "blas"


def test_a_layers_tensors_are_the_modules_memory() -> None:
    module, layer = layer_of(3, 2)
    layer.weight.fill_(5.0)
    assert module.weight.tolist() == [[5.0] * 3] * 2
    assert layer.weight_t.shape == (3, 2)
    assert layer.weight_grad is module.weight.grad
