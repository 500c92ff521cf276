"""Scaled dot-product attention against loops and laws written from its definition."""

import math

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.core.attention import Call, merge
from regard.core.bias import ScoreBias
from regard.engines.dense.fused import MATERIALISED_PAIRS, choose
from regard.engines.kernels import forced
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, keep: list[bool]) -> torch.Tensor:
    """One head, one pair at a time."""
    n, m, d = len(q), len(k), q.shape[1]
    out = torch.zeros(n, v.shape[1], dtype=torch.float64)
    for i in range(n):
        seen = [j for j in range(m) if keep[j] and (not causal or j <= i + m - n)]
        odds = [math.exp(sum(float(q[i, c] * k[j, c]) for c in range(d)) / math.sqrt(d)) for j in seen]
        for odd, j in zip(odds, seen, strict=True):
            out[i] += odd / sum(odds) * v[j]
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_pairs_one_at_a_time(length: int, causal: bool) -> None:
    q, k, v = draw(length, 3), draw(length + 2, 3, seed=1), draw(length + 2, 2, seed=2)
    keep = [j % 5 != 1 for j in range(length + 2)]
    heads = regard.Heads(count=1, key_dim=3, value_dim=2, causal=causal)
    got = regard.build("softmax", heads)(q[None, None], k[None, None], v[None, None], key_mask=torch.tensor([keep]))
    torch.testing.assert_close(got.values[0, 0], loop(q, k, v, causal=causal, keep=keep), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("length", [1, 3, 15, 40])
def test_rows_of_nan_alone(length: int, masked: bool, causal: bool) -> None:
    """Torch's kernel answers them with 0 below 16 keys: where the query or every key that it sees is NaN."""
    mechanism = regard.build("softmax", regard.Heads(count=2, kv_count=1, key_dim=3, causal=causal))
    q, k, v = (draw(2, heads, length, 3, seed=seed).float() for seed, heads in enumerate((2, 1, 1)))
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[:, 1 : 3 if masked else 1] = False
    spoilt = q.clone()
    spoilt[1, 0, -1, 1] = math.nan
    values = mechanism(spoilt, k, v, key_mask=mask if masked else None).values
    expected = torch.zeros(2, 2, length, dtype=torch.bool)
    expected[1, 0, -1] = True
    assert torch.equal(values.isnan().all(-1), expected)
    k[0, 0, 0, 0] = math.nan
    values = mechanism(q, k, v, key_mask=mask if masked else None).values
    assert values[0].isnan().all()
    assert values[1].isfinite().all()


@pytest.mark.parametrize("engine", ["fused", "tiles", "chunks"])
@pytest.mark.parametrize("scale", [1e4, 1e10, 1e19])
def test_keys_of_any_size_are_numbers(scale: float, engine: str) -> None:
    """Logits up to float32's largest number; each row is the value of its best key, and gradients are finite."""
    q, k, v = (draw(1, 1, 40, 16, seed=s).float() for s in range(3))
    leaves = [x.requires_grad_() for x in (q, (k * scale).detach(), v)]
    with forced(engine):
        values = regard.build("softmax", regard.Heads(count=1, key_dim=16, causal=True))(*leaves).values
    best = (q @ k.mT).double().masked_fill(torch.ones(40, 40, dtype=torch.bool).triu(1), -math.inf).argmax(-1)
    torch.testing.assert_close(values, v[:, :, best[0, 0]])
    assert all(x.isfinite().all() for x in torch.autograd.grad(values.square().sum(), leaves))


def test_golden_values() -> None:
    q = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)[None, None]
    k = torch.tensor([[1.0], [0.0]], dtype=torch.float64)[None, None]
    v = torch.tensor([[4.0], [8.0]], dtype=torch.float64)[None, None]
    full = regard.attend(q, k, v).flatten().tolist()
    assert full == pytest.approx([6.0, 5.0], abs=1e-12)  # weights 1/2, 1/2; then 3/4, 1/4
    assert regard.attend(q, k, v, causal=True).flatten().tolist() == pytest.approx([4.0, 5.0], abs=1e-12)
    assert regard.attend(q, k, v, scale=2.0).flatten().tolist() == pytest.approx([6.0, 4.4], abs=1e-12)


@pytest.mark.parametrize("engine", ["fused", "tiles", "chunks"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (70, 70), (130, 300)])
def test_every_engine_is_the_definition(engine: str, causal: bool, queries: int, keys: int) -> None:
    heads = regard.Heads(count=4, key_dim=8, value_dim=5, kv_count=2, causal=causal)
    leaves = [draw(2, 4, queries, 8), draw(2, 2, keys, 8, seed=1), draw(2, 2, keys, 5, seed=2)]
    leaves += [draw(4, queries + keys, seed=3), draw(2, 4, queries, 3, seed=4), draw(4, queries + keys, 3, seed=5)]
    leaves = [x.requires_grad_() for x in leaves]
    keep = draw(2, keys, seed=6) > -0.5
    keep[1, : keys // 2] = False

    def values(mechanism: regard.Attention) -> torch.Tensor:
        q, k, v, curve, query, relative = leaves
        bias = ScoreBias(high=keys - 1 if causal else queries - 1, curve=curve, query=query, relative=relative)
        return mechanism(q, k, v, key_mask=keep, bias=bias).values

    with forced(engine):
        found = values(regard.build("softmax", heads))
    expected = values(regard.build("softmax", heads, impl="reference"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    weight = draw(*expected.shape, seed=7)
    pairs = zip(
        torch.autograd.grad((found * weight).sum(), leaves),
        torch.autograd.grad((expected * weight).sum(), leaves),
        strict=True,
    )
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", ["narrow values", "wide values", "mask", "grouped"])
def test_no_tensor_of_queries_times_keys(case: str, causal: bool) -> None:
    length = 512
    width, groups = {"narrow values": 8, "wide values": 24}.get(case, 16), 1 if case == "grouped" else 2
    leaves = [draw(1, 2, length, 16), draw(1, groups, length, 16), draw(1, groups, length, width)]
    leaves = [x.float().requires_grad_() for x in leaves]
    keep = draw(1, length, seed=4) > -1 if case == "mask" else None
    found = count(lambda: regard.attend(*leaves, causal=causal, key_mask=keep).sum().backward())
    assert found.largest <= 2 * length * 25
    plain = count(lambda: F.scaled_dot_product_attention(*tuple(leaves), enable_gqa=groups == 1).sum().backward())
    assert "values" not in case or plain.largest >= 2 * length**2  # what this guards against


def test_auto_leaves_the_fused_kernel_only_where_it_would_materialise() -> None:
    small, large = 1 << 8, 1 << 12
    curve = ScoreBias(high=0, curve=torch.zeros(1, 1))
    table = ScoreBias(table=torch.zeros(1, 1, 1, 1))
    assert small * small < MATERIALISED_PAIRS < large * large

    def chosen(queries: int, keys: int, bias: ScoreBias | None = None, dropout: float = 0.0) -> str:
        return choose(queries, keys, Call(causal=True, bias=bias), dropout)

    assert {chosen(small, small, bias, rate) for bias in (None, curve, table) for rate in (0.0, 0.1)} == {"fused"}
    assert chosen(large, large) == chosen(large, large, table) == chosen(1, large * large) == "fused"
    assert chosen(large, large, curve) == chosen(large, 2 * large) == "tiles"
    assert chosen(large, large, dropout=0.1) == chosen(large, large, curve, 0.1) == "chunks"


def test_long_leading_keys_stay_in_tiles() -> None:
    q, k, v = (draw(1, 1, length, 8, seed=s).float() for s, length in enumerate((1100, 1200, 1200)))
    found = count(lambda: regard.attend(q, k, v, causal=True))
    assert found.largest < 1100 * 1200 // 2
    expected = regard.attend(q.double(), k.double(), v.double(), causal=True)[:, :, -5:]
    last = regard.attend(q[:, :, -5:].double(), k.double(), v.double(), causal=True)
    torch.testing.assert_close(expected, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_dense_engine_compiles_to_one_graph_of_one_size(dropout: float) -> None:
    heads = regard.Heads(count=2, key_dim=8, causal=True, dropout=dropout)
    nodes = []

    def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> object:
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    for length in (24, 200):
        torch._dynamo.reset()
        mechanism = regard.build("softmax", heads).train()
        x = [draw(1, 2, length, 8, seed=s).requires_grad_() for s in range(3)]
        with forced("chunks"):
            values = torch.compile(mechanism, fullgraph=True, backend=backend, dynamic=False)(*x).values
            assert dropout or torch.equal(values, mechanism(*x).values)
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(values.sum(), x))
    assert nodes[0] == nodes[1]


def test_scale_and_impl_are_refused_where_they_make_no_sense() -> None:
    with pytest.raises(regard.ConfigError, match="impl"):
        regard.build("softmax", regard.Heads(count=1, key_dim=2), impl="magic")
    for name in ("softmax", "softmax_plus_one"):
        with pytest.raises(regard.ConfigError, match=r"scale=0\.0 is not valid: .* greater than 0"):
            regard.build(name, regard.Heads(count=1, key_dim=2), scale=0.0)


def bias_by_distance(queries: int, table: bool) -> ScoreBias:
    """Of seven keys, for queries of slots up to 20."""
    return ScoreBias(
        high=20,
        curve=draw(4, 30, seed=3),
        query=draw(2, 4, queries, 3, seed=4),
        relative=draw(4, 30, 3, seed=5),
        table=draw(1, 4, queries, 7, seed=6) if table else None,
    )


@pytest.mark.parametrize("engine", ["", "fused", "tiles", "chunks"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("start", [0, 3, 6, 9])
def test_queries_stand_where_they_are_told(engine: str, causal: bool, start: int) -> None:
    """Behind the keys, or before the last of them: the mask and the distances of a bias follow."""
    mechanism = regard.build("softmax", regard.Heads(count=4, key_dim=8, kv_count=2, causal=causal))
    q, k, v = draw(2, 4, 5, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)
    keep = torch.tensor([[True] * 7, [False, True, True, False, True, True, False]])
    for bias in (None, bias_by_distance(5, table=False), bias_by_distance(5, table=True)):
        given = {"key_mask": keep, "bias": bias, "query_start": start}
        expected = mechanism.definition(q, k, v, **given)
        for lse in (True, False):
            with forced(engine):
                values = mechanism(q, k, v, lse=lse, **given).values
            torch.testing.assert_close(values, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_part_without_weight_may_hold_anything(odd: float) -> None:
    """Its values reach neither the merged ones nor a gradient."""
    values = [draw(3, 4), torch.full((3, 4), odd, dtype=torch.float64)]
    sums = [draw(3, seed=1), torch.tensor([float("-inf"), float("-inf"), -1e4], dtype=torch.float64)]
    leaves = [x.requires_grad_() for x in (*values, *sums)]
    merged, lse = merge(list(zip(values, sums, strict=True)))
    assert torch.equal(merged, values[0])
    assert torch.equal(lse, sums[0])
    slopes = torch.autograd.grad(merged.square().sum() + lse.square().sum(), leaves)
    for got, expected in zip(slopes, (2 * values[0], 0 * values[0], 2 * sums[0], 0 * sums[0]), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", [1, 5, 20])
def test_infinite_queries_are_nan_in_every_split(keys):
    """Every logit of the row is NaN, which torch's kernel takes for a row without keys where there are few."""
    softmax = regard.build("softmax", regard.Heads(count=2, key_dim=4, kv_count=1, causal=True)).eval()
    draw = torch.Generator().manual_seed(0)
    q, (k, v) = torch.randn(1, 2, keys, 4, generator=draw), torch.randn(2, 1, 1, keys, 4, generator=draw)
    q[0, 1, -1] = float("inf")
    whole, state, parts = softmax(q, k, v).values, softmax.initial_state(1), []
    for at in range(keys):
        part = slice(at, at + 1)
        values, state, *_ = softmax(q[:, :, part], k[:, :, part], v[:, :, part], state=state)
        parts.append(values)
    for values in (whole, torch.cat(parts, 2)):
        assert values[0, 1, -1].isnan().all()
        assert values[0, 0].isfinite().all()
        assert values[0, 1, :-1].isfinite().all()
