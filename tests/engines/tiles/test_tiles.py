"""The tile operator against the formula, written out here in float64."""

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError
from regard.engines.tiles import Dropout, tiled_attention
from regard.engines.tiles import layout as layouts
from regard.engines.tiles import plan as plans
from regard.patterns import (
    Pattern,
    block,
    causal,
    dilated,
    everything,
    first,
    per_head,
    random_blocks,
    strided,
    summary,
    window,
)
from regard.testing.counting import count

HOLES = torch.cat([torch.arange(0, 40, 3), torch.arange(50, 186)])
"""150 key positions as a state leaves them: holes, then consecutive"""

PATTERNS = [
    causal & window(20),
    causal & window(100),
    window(33),
    causal,
    everything,
    causal & (window(10) | strided(16)),
    block(32),
    causal & block(40, past=1),
    causal & (block(24) | first(3)),
    causal & dilated(9, 5),
    causal & Pattern(lambda i, j: (i * j) % 3 == 0),
    random_blocks(16, torch.tensor([[0, 4], [8, 1], [2, 2], [5, -1], [3, 7], [0, 9], [6, 1], [7, 2], [9, 3]])),
    window(3) & ~window(3),
    causal & per_head(window(20), everything, window(20), block(40)),
    per_head(window(3) & ~window(3), first(70), causal, window(33)),
    causal & strided(7),
    strided(5) | window(40) | strided(6),
    causal & (block(24) | summary(24, 3)),
    first(3) | summary(20, 2, 5) | strided(100),
    causal & per_head(strided(3), window(9) | summary(11, 2), window(9), dilated(300, 2)),
]

CAUSAL = [pattern for pattern in PATTERNS if pattern.distances[0] >= 0]

SETTINGS: dict[str, dict] = {
    "tiles": {"whole": 0},
    "one tile": {},
    "one tile, everything": {"masked": True, "curve": True, "relative": True, "heads": (4, 2), "batch": 3},
    "masked, biased": {"whole": 0, "masked": True, "curve": True, "relative": True},
    "curve": {"whole": 0, "curve": True, "heads": (4, 4)},
    "relative": {"whole": 0, "relative": True, "heads": (4, 1)},
    "past keys": {"whole": 0, "queries": 70, "keys": 200, "curve": True, "relative": True},
    "one query": {"whole": 0, "queries": 1, "keys": 90},
    "later start": {"whole": 0, "queries": 64, "keys": 128, "start": 7, "relative": True},
    "holes": {"whole": 0, "start": HOLES, "masked": True, "curve": True, "relative": True},
    "holes, one tile": {"start": HOLES, "curve": True, "relative": True},
}


def formula(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, factors: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Softmax over the seen keys, written out."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    logits = logits if bias is None else logits + bias
    odds = torch.where(seen, logits, -torch.inf).exp()
    total = odds.sum(-1)
    lse = torch.where(total > 0, total.where(total > 0, 1).log(), -torch.inf)
    return torch.einsum("bhij,bhjd->bhid", factors * odds / total.where(total > 0, 1)[..., None], v), lse


def by_pair(bias: ScoreBias, i: Tensor, j: Tensor) -> Tensor:
    """A bias as a table: each pair looks up its distance, and finds 0 where there is no column."""
    edge = int((i[:, None] - j).abs().max()) + abs(bias.high) + 1
    at = bias.high - (i[:, None] - j) + edge
    total = torch.zeros(())
    if bias.curve is not None:
        total = total + F.pad(bias.curve, (edge, edge))[:, at]
    if bias.relative is not None and bias.query is not None:
        vectors = F.pad(bias.relative, (0, 0, edge, edge))[:, at]
        total = total + torch.einsum("bhid,hijd->bhij", bias.query, vectors)
    return total


def gate_sums(gates: Tensor, i: Tensor) -> Tensor:
    """The sum of the gates of every slot behind a key, up to the query: each added by itself."""
    slots = torch.arange(gates.shape[2])
    return torch.where(slots[:, None] > slots, gates[..., None], 0).cumsum(2)[:, :, i]


def compare(
    pattern: Pattern,
    *,
    batch: int = 2,
    heads: tuple[int, int] = (4, 2),
    queries: int = 150,
    keys: int = 150,
    start: Tensor | int = 0,
    masked: bool = False,
    curve: bool = False,
    relative: bool = False,
    gated: bool = False,
    dropout: float = 0.0,
    **options: int,
) -> None:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    j = start if isinstance(start, Tensor) else torch.arange(start, start + keys)
    i = torch.arange(queries) + int(j[-1]) + 1 - queries
    leaves = {
        "q": randn(batch, heads[0], queries, 8),
        "k": randn(batch, heads[1], keys, 8),
        "v": randn(batch, heads[1], keys, 5),
    }
    mask, bias = None, None
    if masked:
        mask = torch.rand(batch, keys, generator=generator) > 0.3
        mask[0, : keys // 2] = False
    if curve or relative:
        high = int(i.max() - j.min()) - 3  # some distances on either side have no column
        distances = high - int(i.min() - j.max()) - 2
        if curve:
            leaves["curve"] = randn(heads[0], distances)
        if relative:
            leaves |= {"query": randn(batch, heads[0], queries, 3), "relative": randn(heads[0], distances, 3)}
        bias = ScoreBias(high=high, **{name: leaves[name] for name in ("curve", "query", "relative") if name in leaves})
    gates = None
    if gated:
        gates = leaves["log_gates"] = -randn(batch, heads[0], keys).detach().abs()
        for row, head, slot in ((0, 0, 0), (0, 1, 20), (1, 0, 64), (1, 0, 75), (0, 3, 149)):
            if slot < keys:
                gates[row, head % heads[0], slot] = -torch.inf if slot % 2 else -1e30
        gates.requires_grad_()
    seen = pattern.mask(i, j)[None] if pattern.heads else pattern.mask(i, j)[None, None]
    seen = seen if mask is None else seen & mask[:, None, None]
    core = leaves["q"], leaves["k"], leaves["v"]
    draw = Dropout(torch.tensor(2**61 + 7), dropout) if dropout else None
    given = {"key_positions": start, "key_mask": mask, "bias": bias, "log_gates": gates, "dropout": draw}
    values, lse = tiled_attention(*core, pattern, **given, **options)
    logits = None if bias is None else by_pair(bias, i, j)
    if gates is not None:
        logits = gate_sums(gates, i - j[0]) + (0 if logits is None else logits)
    factors = 1.0 if draw is None else draw.factors(i[None], j[None], like=leaves["q"])
    expected, expected_lse = formula(*core, seen, logits, factors)
    some = expected_lse.isfinite()
    assert torch.equal(lse.isfinite(), some)
    assert (values[~some] == 0).all()
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(lse[some], expected_lse[some], rtol=0, atol=1e-10)
    ways = torch.randn(values.shape, generator=generator).double(), torch.randn(lse.shape, generator=generator).double()

    def slopes(values: Tensor, lse: Tensor) -> dict[str, Tensor]:
        total = (values * ways[0]).sum() + (lse[some] * ways[1][some]).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))

    wanted = slopes(expected, expected_lse)
    for name, found in slopes(values, lse).items():
        torch.testing.assert_close(found, wanted[name], rtol=0, atol=1e-10, msg=lambda text, at=name: f"{at}: {text}")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.text if "rule" not in p.text else "function")
def test_values_and_gradients(pattern: Pattern, setting: str) -> None:
    compare(pattern, **SETTINGS[setting])


@pytest.mark.parametrize("setting", ["tiles", "one tile, everything", "masked, biased", "later start", "holes"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.text if "rule" not in p.text else "function")
def test_dropped_weights_are_those_of_the_explicit_path(pattern: Pattern, setting: str) -> None:
    """In every part of a pattern, in one tile or many: values, and all gradients, so the backward has the same mask."""
    compare(pattern, **SETTINGS[setting], dropout=0.4)


@pytest.mark.parametrize("pattern", PATTERNS[:9:2], ids=lambda p: p.text)
def test_rows_in_pieces_and_small_buffers(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows are cut and merged, and masks beyond a few are booleans; nothing changes."""
    for module in (layouts, plans):
        monkeypatch.setattr(module, "BUDGET", 1 << 13)
    monkeypatch.setattr(layouts, "ADDED_MASKS", 1)
    monkeypatch.setattr(plans, "_cache", plans.OrderedDict())
    for setting in ("tiles", "one tile, everything", "masked, biased", "holes"):
        compare(pattern, **SETTINGS[setting])
        compare(pattern, **SETTINGS[setting], dropout=0.4)
        if pattern in CAUSAL and setting != "holes":
            compare(pattern, **SETTINGS[setting], gated=True)
    compare(pattern, queries=330, keys=330, batch=2, whole=0, curve=True, gated=pattern in CAUSAL)


@pytest.mark.parametrize("pattern", PATTERNS[:9:2], ids=lambda p: p.text)
def test_buffers_of_a_gpu(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that takes more at once computes the same."""
    monkeypatch.setattr(layouts, "ROOM", {})
    monkeypatch.setattr(plans, "_cache", plans.OrderedDict())
    for setting in ("tiles", "one tile, everything", "masked, biased", "holes"):
        compare(pattern, **SETTINGS[setting])
    compare(pattern, queries=330, keys=330, batch=1, whole=0, curve=True)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if "holes" not in name])
@pytest.mark.parametrize("pattern", CAUSAL, ids=lambda p: p.text if "rule" not in p.text else "function")
def test_log_gates(pattern: Pattern, setting: str) -> None:
    compare(pattern, **SETTINGS[setting], gated=True)


def test_log_gates_of_what_has_no_sum() -> None:
    q, gates = torch.randn(1, 2, 6, 4), torch.zeros(1, 2, 6)
    with pytest.raises(ConfigError, match="causal pattern"):
        tiled_attention(q, q, q, window(3), log_gates=gates)
    with pytest.raises(ConfigError, match="consecutive positions"):
        tiled_attention(q, q, q, causal, key_positions=torch.tensor([0, 1, 2, 4, 5, 6]), log_gates=gates)


def test_table_bias_beside_log_gates() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 30, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    gates = -torch.rand(1, 2, 30, generator=generator, dtype=torch.float64)
    table = torch.randn(1, 2, 30, 30, generator=generator, dtype=torch.float64)
    got = tiled_attention(q, k, v, causal, bias=ScoreBias(table=table), log_gates=gates)
    logits = table + gate_sums(gates, torch.arange(30))
    for one, other in zip(got, formula(q, k, v, torch.ones(30, 30).tril().bool(), logits), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_rule_that_looks_up_a_table() -> None:
    """Segments that only exist for real positions: nothing is asked past the end."""
    segment = torch.arange(150) // 37
    compare(causal & Pattern(lambda i, j: segment[i] == segment[j]), whole=0)


def test_a_function_may_be_forgotten_before_the_backward() -> None:
    q = torch.randn(1, 1, 90, 4, requires_grad=True)
    values = tiled_attention(q, q, q, causal & Pattern(lambda i, j: (i + j) % 2 == 0), whole=0)[0]
    plans._cache.clear()
    gc.collect()
    values.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_layouts_are_forgotten() -> None:
    q = torch.randn(1, 1, 70, 4)
    for n in range(plans.CACHED + 10):
        tiled_attention(q, q, q, window(n))
    assert len(plans._cache) <= plans.CACHED


def find(pattern: Pattern, queries: plans.Positions, keys: plans.Positions) -> plans.Plan:
    options = {"whole": 0, "biased": False, "device": torch.device("cpu"), "dtype": torch.float32}
    return plans.find_plan(pattern.text, queries, keys, **options)


def test_a_quarter_of_a_million_positions() -> None:
    """The work follows the pairs that are kept, and so does the layout."""
    n, pattern = 262_144, causal & window(256)
    counted = count(lambda: find(pattern, plans.Positions(0, n), plans.Positions(0, n)))
    assert counted.peak < 40 * n
    (layout,) = find(pattern, plans.Positions(0, n), plans.Positions(0, n)).of(0)
    assert layout.computed <= n * (256 + 64)
    assert layout.nbytes < 1 << 20
    assert sum(len(group.steps) for group in layout.groups) < n // 64 // 4


def test_heads_with_one_pattern_share_a_layout() -> None:
    pattern = causal & per_head(window(7), block(30), window(7))
    plan = find(pattern, plans.Positions(0, 300), plans.Positions(0, 300))
    assert plan.of(0) is plan.of(2)
    assert plan.of(0) is not plan.of(1)
    with pytest.raises(ConfigError, match="3 heads, the queries have 2"):
        tiled_attention(*torch.ones(3, 1, 2, 5, 4), pattern)


def test_a_windowed_layout_is_the_same_at_any_offset() -> None:
    q = torch.randn(1, 1, 100, 4)
    tiled_attention(q, q, q, causal & window(11), whole=0)
    before = len(plans._cache)
    tiled_attention(q, q, q, causal & window(11), query_positions=900, key_positions=900, whole=0)
    assert len(plans._cache) == before


def test_no_tensor_of_queries_times_keys() -> None:
    q, k, v = (torch.randn(1, 1, 2048, 8, requires_grad=True) for _ in range(3))
    bias = ScoreBias(high=2047, curve=torch.randn(1, 2048, requires_grad=True))

    def step() -> None:
        values, lse = tiled_attention(q, k, v, causal, bias=bias)
        (values.sum() + lse.sum()).backward()

    assert count(step).largest <= 1 << 18


def nodes(step: Callable[..., Tensor], n: int) -> int:
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    q = torch.randn(1, 2, n, 8)
    compiled = torch.compile(step, backend=backend, fullgraph=True)(q)
    torch.testing.assert_close(compiled, step(q))
    return sum(graphs)


def test_one_graph_of_one_size() -> None:
    pattern = copy.deepcopy(causal & (window(20) | strided(16)))

    def step(q: Tensor) -> Tensor:
        curve = torch.zeros(2, q.shape[2])
        return tiled_attention(q, q, q, pattern, bias=ScoreBias(high=q.shape[2] - 1, curve=curve))[0]

    assert nodes(step, 40) == nodes(step, 300)
