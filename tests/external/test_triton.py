"""The Triton kernels, run by Triton's interpreter (TRITON_INTERPRET=1, which `make external` sets) or on a GPU."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: make external")

from regard.engines.gpu import linear_triton
from regard.engines.gpu._interpreter import INTERPRETED
from regard.engines.kernels import forced
from regard.testing import CHECKS, check_attention

if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("no CUDA device and TRITON_INTERPRET is not 1", allow_module_level=True)

pytestmark = pytest.mark.external
DEVICE = "cpu" if INTERPRETED else "cuda"


def definition(fq: Tensor, fk: Tensor, v: Tensor, sum: Tensor, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Every pair, in float64."""
    group = fq.shape[1] // fk.shape[1]
    columns = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    pairs = (fq @ fk.repeat_interleave(group, 1).mT).tril()
    y = pairs @ columns.repeat_interleave(group, 1) + fq @ sum.repeat_interleave(group, 1)
    values, total = y[..., :-1], y[..., -1]
    return values / total[..., None] if normalise else values, total, sum + fk.mT @ columns


def errors(
    shape: tuple[int, ...], dtype: torch.dtype, normalise: bool, average=linear_triton.causal_average
) -> list[float]:
    """Of values, total, sums and of the gradients of fq, fk, v and sums, each relative to its largest number."""
    heads, kv_heads, length, features, value = shape
    draw = torch.Generator().manual_seed(0)

    def randn(*size: int) -> Tensor:
        return torch.randn(2, *size, generator=draw, dtype=torch.float64)

    kept = torch.promote_types(dtype, torch.float32)
    fq, fk = randn(heads, length, features).abs(), randn(kv_heads, length, features).abs()
    v, sum = randn(kv_heads, length, value), randn(kv_heads, features, value + 1).abs()
    ours = [
        x.to(DEVICE, kind).requires_grad_() for x, kind in zip((fq, fk, v, sum), (dtype,) * 3 + (kept,), strict=True)
    ]
    exact = [x.detach().cpu().double().requires_grad_() for x in ours]
    got = average(*ours, normalise=normalise)
    wanted = definition(*exact, normalise=normalise)
    outer = [randn(*x.shape[1:]) for x in wanted]
    torch.autograd.backward(got, [g.to(x) for g, x in zip(outer, got, strict=True)])
    torch.autograd.backward(wanted, outer)
    pairs = [*zip(got, wanted, strict=True), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]
    with torch.no_grad():
        return [float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in pairs]


SHAPES = [
    pytest.param((2, 2, 5, 4, 3), id="less than a chunk"),
    pytest.param((4, 2, 130, 20, 17), id="grouped heads, odd sizes"),
    pytest.param((2, 1, 70, 130, 70), id="several blocks of features and columns"),
    pytest.param((1, 1, 128, 64, 64), id="whole chunks"),
]


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_backward_are_the_definition(shape, normalise):
    assert max(errors(shape, torch.float64, normalise)) < 1e-13


@pytest.mark.parametrize("shape", SHAPES)
def test_float32(shape):
    assert max(errors(shape, torch.float32, normalise=True)) < 2e-6


def test_bfloat16_errs_at_most_twice_as_much_as_the_definition_in_bfloat16():
    def rounded(fq, fk, v, sum, *, normalise):
        return definition(fq, fk, v, sum.to(fq.dtype), normalise)

    shape = (4, 2, 130, 20, 17)
    ours, plain = (errors(shape, torch.bfloat16, True, average) for average in (linear_triton.causal_average, rounded))
    assert all(a <= 2 * b for a, b in zip(ours, plain, strict=True)), (ours, plain)


def test_rows_without_weight_are_zero():
    zero = torch.zeros(1, 1, 70, 16, device=DEVICE)
    v, start = torch.randn(1, 1, 70, 16, device=DEVICE), torch.zeros(1, 1, 16, 17, device=DEVICE)
    values, total, _ = linear_triton.causal_average(zero, zero, v, start, normalise=True)
    assert torch.equal(values, torch.zeros_like(values))
    assert torch.equal(total, torch.zeros_like(total))


@pytest.mark.timeout(1200)  # in the interpreter
@pytest.mark.parametrize("spec", ["linear", "linear(rotary=True)"])
def test_the_mechanism_keeps_the_contract(spec):
    with forced("triton"):
        results = check_attention(spec, options=None if "(" in spec else [{}], device=DEVICE)
    assert [f"{r.check}: {r.message}" for r in results if r.status == "failed"] == []
    assert len(results) == len(CHECKS)
