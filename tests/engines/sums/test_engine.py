"""The kernel operator against its sum written out, its laws (causality to the bit, states, costs), its compilation."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.engines.sums import engine, passes
from regard.engines.sums.engine import kernel_average
from regard.engines.sums.step import Averaged
from regard.features.maps import FEATURE_MAPS
from regard.features.projections import draw_projection

BATCH, KV_HEADS, DIM, VALUE = 2, 2, 4, 3
MAPS = [
    ("elu_plus_one", "elu_plus_one"),
    ("relu", "relu"),
    ("sigmoid", "softmax_features"),
    ("identity", "identity"),
    ("taylor", "taylor"),
    ("positive_random", "positive_random"),
    ("hyperbolic_random", "hyperbolic_random"),
    ("trigonometric", "trigonometric"),
    ("relu_random", "relu_random"),
]


class Case(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    sum: Tensor
    top: Tensor | None
    options: dict


def case(
    maps: tuple[str, str] = ("elu_plus_one", "elu_plus_one"),
    *,
    queries: int = 70,
    keys: int = 70,
    causal: bool = True,
    group: int = 1,
    weighted: bool = False,
    masked: bool = False,
    state: bool = False,
    rotary: bool = False,
    normalise: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    dim: int = DIM,
) -> Case:
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    map_ = FEATURE_MAPS[maps[0]]
    q, k = randn(BATCH, KV_HEADS * group, queries, dim), randn(BATCH, KV_HEADS, keys, dim)
    v = randn(BATCH, KV_HEADS, keys, VALUE)
    options: dict = {"query_map": maps[0], "key_map": maps[1], "causal": causal, "normalise": normalise, "scale": 0.7}
    rows = 8 // map_.per_row
    features = map_.count(dim, rows)
    if map_.random:
        options["projection"] = torch.stack([draw_projection(rows, dim, g) for _ in range(KV_HEADS)]).to(dtype)
    if weighted:
        options["log_weight"] = randn(BATCH, KV_HEADS, keys)
    if masked:
        real = torch.rand(BATCH, keys, generator=g) > 0.3
        options["key_mask"] = real
        k, v = k * real[:, None, :, None], v * real[:, None, :, None]
    if rotary:
        angle = torch.arange(keys)[:, None] * torch.rand(features // 2, generator=g, dtype=torch.float64)
        options["rotation"] = torch.stack([angle.cos(), angle.sin()]).to(dtype)
    sum = torch.zeros(BATCH, KV_HEADS, features, VALUE + 1, dtype=dtype)
    top = torch.full((BATCH, KV_HEADS), float("-inf"), dtype=dtype)
    if state:
        sum, top = sum + torch.rand(sum.shape, generator=g, dtype=torch.float64).to(dtype), randn(BATCH, KV_HEADS)
    scaled = weighted or maps[0] in ("positive_random", "hyperbolic_random", "trigonometric")
    return Case(q, k, v, sum, top if scaled else None, options)


def written_out(c: Case) -> tuple[Tensor, Tensor]:
    """Values and totals from the matrix of all weights, features unstabilised."""
    o, group = c.options, c.q.shape[1] // c.k.shape[1]

    def per_query_head(x: Tensor) -> Tensor:
        return x.repeat_interleave(group, -3)

    projection = o.get("projection")
    fq = FEATURE_MAPS[o["query_map"]](c.q * o["scale"], None if projection is None else per_query_head(projection))
    fk = FEATURE_MAPS[o["key_map"]](c.k * o["scale"], projection)
    queries, keys = c.q.shape[2], c.k.shape[2]
    if "rotation" in o:
        turn = torch.complex(*o["rotation"])

        def turned(f: Tensor, by: Tensor) -> Tensor:
            return torch.view_as_real(torch.complex(f[..., 0::2], f[..., 1::2]) * by).flatten(-2)

        fq, fk = turned(fq, turn[keys - queries :]), turned(fk, turn)
    weight = torch.ones_like(c.k[..., 0])
    if "log_weight" in o:
        weight = weight * o["log_weight"].exp()
    if "key_mask" in o:
        weight = weight * o["key_mask"][:, None]
    pairs = fq @ per_query_head(fk * weight[..., None]).mT
    if o["causal"]:
        pairs = pairs * torch.ones(queries, keys, dtype=pairs.dtype).tril(keys - queries)
    columns = torch.cat([c.v, torch.ones_like(c.v[..., :1])], -1)
    start = c.sum if c.top is None else c.sum * c.top.exp()[..., None, None]
    y = pairs @ per_query_head(columns) + fq @ per_query_head(start)
    total = y[..., -1]
    divisor = total.masked_fill(total == 0, float("inf")) if o["normalise"] else torch.ones_like(total)
    return y[..., :-1] / divisor[..., None], total


def run(c: Case) -> Averaged:
    return kernel_average(*c[:5], **c.options)


def unscaled(c: Case, out: Averaged) -> tuple[Tensor, Tensor]:
    """Values and totals without the scale exp(highest)."""
    if c.top is None:
        return out.values, out.total
    factor = out.highest.exp()
    return out.values if c.options["normalise"] else out.values * factor[..., None], out.total * factor


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()


@pytest.mark.parametrize("maps", MAPS, ids=lambda m: "-".join(m))
def test_values_and_gradients_are_those_of_the_sum(maps: tuple[str, str]) -> None:
    """Float64, 1e-10: every map; causal or not; prefix; groups; log weights; masks; states; rotation."""
    for causal, (queries, keys), bits in itertools.product(
        (True, False), ((70, 70), (33, 100), (1, 1)), range(0, 32, 3)
    ):
        group, weighted, masked, state, rotary = (1 + bits % 2, *(bool(bits >> i & 1) for i in (1, 2, 3, 4)))
        normalise = maps[0] != "identity" and not rotary
        if rotary and (maps[0] == "taylor" or (queries != keys and not causal)):
            continue
        c = case(
            maps, queries=queries, keys=keys, causal=causal, group=group, weighted=weighted, masked=masked, state=state,
            rotary=rotary, normalise=normalise, seed=bits,
        )  # fmt: skip
        inputs = [x.requires_grad_() for x in (c.q, c.k, c.v, c.sum, c.options.get("log_weight")) if x is not None]
        found, expected = unscaled(c, run(c)), written_out(c)
        where = f"{causal=} {queries=} {keys=} {group=} {weighted=} {masked=} {state=} {rotary=}"
        given = [torch.randn_like(x) / x.detach().abs().mean().clamp_min(1e-3) for x in expected]
        slopes = [
            torch.autograd.grad(sum((x * g).sum() for x, g in zip(pair, given, strict=True)), inputs, retain_graph=True)
            for pair in (found, expected)
        ]
        for x, y in (*zip(found, expected, strict=True), *zip(*slopes, strict=True)):
            assert (x - y).abs().max() < 1e-10 * max(1.0, y.abs().max().item()), where


def test_across_spans_of_kept_states() -> None:
    """Longer than several spans, so that the backward pass starts from kept states."""
    for maps in (MAPS[0], MAPS[5]):
        c = case(maps, queries=1100, keys=1300)
        inputs = [x.requires_grad_() for x in (c.q, c.k, c.v)]
        values, expected = run(c).values, written_out(c)[0]
        assert relative(values, expected) < 1e-10
        g = torch.randn_like(values)
        for x, y in zip(torch.autograd.grad(values, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True):
            assert relative(x, y) < 1e-10


def first_change(c: Case, at: int, factor: float) -> int | None:
    """The first query whose output bits change when tokens from `at` on do; None: no earlier query does."""
    before = run(c).values
    q, k, v = (torch.cat([x[:, :, :at], factor * x[:, :, at:].flip(2) + 1], 2) for x in (c.q, c.k, c.v))
    after = run(c._replace(q=q, k=k, v=v)).values
    changed = (before[:, :, :at] != after[:, :, :at]).any(-1).any(1).any(0)
    return int(changed.nonzero()[0]) if changed.any() else None


@pytest.mark.parametrize("maps", [MAPS[0], MAPS[4], MAPS[5], MAPS[7]], ids=lambda m: m[0])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_later_token_changes_an_earlier_bit(maps: tuple[str, str], weighted: bool) -> None:
    c = case(maps, queries=150, keys=150, weighted=weighted, dtype=torch.float32)
    for at, factor in itertools.product((1, 2, 33, 63, 64, 65, 100, 128, 149), (1.0, 30.0)):
        assert first_change(c, at, factor) is None


def test_a_maximum_over_a_span_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(MAPS[5], queries=150, keys=150, dtype=torch.float32)
    exact = passes.scales

    def by_span(log: Tensor, top: Tensor, dtype: torch.dtype) -> passes.Scales:
        """The same sums in real numbers, but relative to a maximum that later keys may raise."""
        highest = torch.maximum(top, log.amax((0, 2)))
        scales = exact(log, highest, dtype)
        before = (top - highest).exp().to(dtype)
        row, carry = scales.row.clone(), scales.carry.clone()
        row[: len(before)] *= before[:, None, None]
        carry[0] *= before[:, None, None]
        return scales._replace(row=row, carry=carry)

    whole = run(c).values
    monkeypatch.setattr(passes, "scales", by_span)
    torch.testing.assert_close(run(c).values, whole, rtol=1e-4, atol=1e-4)
    assert any(first_change(c, at, 30.0) is not None for at in (33, 100))


def test_decay_over_a_long_past_keeps_its_precision_in_float64() -> None:
    """w_j = -cumsum(log gate) reaches 5e4, where float32 resolves 4e-3: given in float64 it loses nothing."""
    c = case(queries=2000, keys=2000, dtype=torch.float32)
    log_gate = torch.full((BATCH, KV_HEADS, 2000), -25.0, dtype=torch.float64) * torch.rand(2000, dtype=torch.float64)
    weight = -log_gate.cumsum(-1)
    top = torch.full((BATCH, KV_HEADS), float("-inf"), dtype=torch.float64)
    found = run(c._replace(top=top, options={**c.options, "log_weight": weight})).values
    fq, fk = (torch.where(x > 0, x + 1, x.exp()) for x in (0.7 * c.q.double(), 0.7 * c.k.double()))
    logs = (fq @ fk.mT).log() + weight[..., None, :]
    seen = torch.ones(2000, 2000, dtype=torch.bool).tril()
    expected = logs.masked_fill(~seen, float("-inf")).softmax(-1) @ c.v.double()
    assert relative(found.double(), expected) < 2e-6


def test_autocast_changes_nothing() -> None:
    for queries in (1, 70):
        c = case(MAPS[5], queries=queries, keys=queries, dtype=torch.float32)
        inputs = [x.requires_grad_() for x in (c.q, c.k, c.v)]
        plain = run(c).values
        slopes = torch.autograd.grad(plain.square().sum(), inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = run(c).values
            assert torch.equal(plain, cast)
            for x, y in zip(slopes, torch.autograd.grad(cast.square().sum(), inputs), strict=True):
                assert torch.equal(x, y) or queries == 1


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel())
        return out


def test_nothing_of_length_by_features_or_by_length_is_made() -> None:
    """Beyond the outputs, forward and backward: chunks, and one state per 512 keys."""
    length, features, value = 2048, 64, 16
    q, k = torch.randn(2, 1, 1, length, 8).unbind()
    v, w = torch.randn(1, 1, length, value), draw_projection(features, 8, torch.Generator())[None]
    sum, top = torch.zeros(1, 1, features, value + 1), torch.full((1, 1), float("-inf"))
    maps = ("positive_random", "positive_random")
    for causal in (True, False):
        with Largest() as made:
            given = engine.Arguments(
                q, k, v, sum, top, w, None, None, None, *maps, 1.0, normalise=True, causal=causal, keep=True
            )
            out = engine.forward(given)
            of = engine.Results(torch.ones_like(v), *[None] * 6)
            engine.backward(given, out, of, {})
        allowed = max(length * value, 8 * features * (value + 1), 64 * 64)
        assert made.elements <= allowed < length * features


def test_what_is_kept_for_the_backward_pass() -> None:
    c = case(MAPS[5], queries=2048, keys=2048, dtype=torch.float32)
    kept: list[int] = []
    q = c.q.requires_grad_()

    def pack(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run(c._replace(q=q))
    states = 4 * BATCH * KV_HEADS * 8 * (VALUE + 1)
    assert sum(kept) <= sum(x.numel() for x in (c.q, c.k, c.v, c.v)) + BATCH * KV_HEADS * 2048 + 2 * states + 200


@pytest.mark.parametrize("maps", [MAPS[0], MAPS[5]], ids=lambda m: m[0])
def test_one_node_at_any_length(maps: tuple[str, str]) -> None:
    nodes = []

    def count(graph: torch.fx.GraphModule, _: object):
        nodes.append(sum("regard" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    base = case(maps, dtype=torch.float32)

    def fixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel_average(q, k, v, base.sum, base.top, **base.options).values

    compiled = torch.compile(fixed, backend=count, fullgraph=True, dynamic=False)
    for length in (100, 300):
        c = case(maps, queries=length, keys=length, dtype=torch.float32)
        assert torch.equal(compiled(c.q, c.k, c.v), fixed(c.q, c.k, c.v))
    assert nodes == [1, 1]
    traced = torch.compile(fixed, backend="aot_eager", fullgraph=True)
    c = case(maps, queries=80, keys=80, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in (c.q, c.k, c.v)]
    slopes = [torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (traced, fixed)]
    assert all(torch.equal(x, y) for x, y in zip(*slopes, strict=True))


def test_the_operator_keeps_torchs_rules() -> None:
    c = case(MAPS[5], queries=5, keys=9, weighted=True, masked=True)
    o = c.options
    inputs = [x.requires_grad_() for x in (c.q, c.k, c.v, c.sum)]
    arguments = (
        *inputs, c.top, o["projection"], o["log_weight"].requires_grad_(), o["key_mask"], None, *MAPS[5], 1.0, True,
        True, True,
    )  # fmt: skip
    torch.library.opcheck(
        torch.ops.regard.kernel.default,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_operations_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for length in (512, 1024):
        c = case(queries=length, keys=length)
        with FlopCounterMode(display=False) as counter:
            run(c._replace(q=c.q.requires_grad_())).values.sum().backward()
        counts.append(counter.get_total_flops())
    assert math.log2(counts[1] / counts[0]) == pytest.approx(1, abs=1e-9)
    rows, pairs, state = BATCH * KV_HEADS * 512, 64 * (DIM + VALUE + 1), DIM * (VALUE + 1)
    assert counts[0] == 2 * rows * (pairs + 2 * state) + 2 * rows * (64 * (3 * DIM + 2 * (VALUE + 1)) + 5 * state)
