"""FlexAttention on a CPU: equal to the definition in float64, from blocks that were found without queries x keys."""

import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from regard import Heads, build
from regard.core.bias import ScoreBias
from regard.engines.gpu import flex
from regard.engines.gpu.flex import block_mask, flexed
from regard.engines.kernels import forced, kernel
from regard.engines.tiles import Dropout, tiled_attention
from regard.patterns import Pattern, block, causal, edges, everything, first, per_head, random_blocks, strided, window
from regard.testing.counting import count

PATTERNS = [
    causal & window(150),
    causal & (window(10) | strided(16)),
    block(64) | first(3),
    window(3) & ~window(3),
    everything,
    causal & Pattern(lambda i, j: (i * j) % 3 == 0),
    causal & per_head(window(20), everything, window(20), block(40)),
    random_blocks(100, torch.tensor([[0, 2], [1, -1], [3, 0]])),
]


def draw(queries: int, keys: int, *, kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, queries, 16), (2, kv_heads, keys, 16), (2, kv_heads, keys, 16)
    q, k, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.text if "rule" not in p.text else "function")
def test_equal_to_the_formula(pattern: Pattern) -> None:
    for queries, keys, kv_heads in ((300, 300, 4), (70, 300, 2), (1, 9, 1)):
        q, k, v = draw(queries, keys, kv_heads=kv_heads)
        mask = torch.rand(2, keys, generator=torch.Generator().manual_seed(1)) > 0.3
        curve = torch.randn(4, keys - 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        for key_mask, bias in ((None, None), (mask, ScoreBias(high=keys - 3, curve=curve))):
            given = {"key_mask": key_mask, "bias": bias, "query_positions": keys - queries, "scale": 0.3}
            values, lse = flexed(q, k, v, pattern, **given)
            seen = pattern.mask(torch.arange(keys - queries, keys), torch.arange(keys))
            seen = seen if key_mask is None else seen & key_mask[:, None, None]
            logits = 0.3 * torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(4 // kv_heads, 1))
            if bias is not None:
                logits = logits + bias.logits(torch.arange(keys - queries, keys), torch.arange(keys))
            odds = torch.where(seen, logits, -torch.inf).exp()
            total = odds.sum(-1, keepdim=True)
            expected = (odds / total.where(total > 0, 1)) @ v.repeat_interleave(4 // kv_heads, 1)
            torch.testing.assert_close(values, expected, rtol=0, atol=1e-10)
            some = total[..., 0] > 0
            assert (values[~some] == 0).all()
            torch.testing.assert_close(lse[some], total[..., 0][some].log(), rtol=0, atol=1e-10)


def test_explicit_positions() -> None:
    q, k, v = draw(30, 150)
    holes = torch.cat([torch.arange(0, 40, 3), torch.arange(50, 186)])
    pattern = causal & (window(20) | strided(7))
    given = {"query_positions": holes[-30:], "key_positions": holes}
    expected = tiled_attention(q, k, v, pattern, scale=0.25, **given)
    for one, other in zip(flexed(q, k, v, pattern, scale=0.25, **given), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.text if "rule" not in p.text else "function")
def test_blocks_hold_what_they_say(pattern: Pattern) -> None:
    """A block that is left out has no pair, a full one has all of its pairs."""
    n, positions = 300, torch.arange(300)
    found = block_mask(pattern, positions, positions)
    mask = pattern.mask(positions, positions).view(-1, n, n)
    padded = torch.nn.functional.pad(mask, (0, 84, 0, 84)).view(len(mask), 3, 128, 3, 128).transpose(2, 3)
    for head in range(len(mask)):
        for row in range(3):
            partial = found.kv_indices[0, head, row][: found.kv_num_blocks[0, head, row]].tolist()
            full = found.full_kv_indices[0, head, row][: found.full_kv_num_blocks[0, head, row]].tolist()
            assert not set(partial) & set(full)
            for column in range(3):
                assert column in partial + full or not padded[head, row, column].any()
                assert column not in full or padded[head, row, column].all()


def test_some_blocks_are_full_and_some_left_out() -> None:
    positions = torch.arange(1024)
    found = block_mask(causal & window(400), positions, positions)
    assert found.full_kv_num_blocks.sum() > 8
    assert found.sparsity() > 40
    assert block_mask(causal, positions, positions, torch.ones(1, 1024).bool()).full_kv_num_blocks.sum() == 0


def test_blocks_of_a_long_sequence() -> None:
    positions = torch.arange(65_536)
    counted = count(lambda: block_mask(causal & window(256), positions, positions))
    assert counted.largest <= 512 * 513  # blocks by blocks; torch adds a column


@pytest.mark.parametrize("spec", ["local(window=40)", "strided_union(stride=16)", "fixed_union(stride=16, columns=4)"])
def test_mechanisms(spec: str) -> None:
    q, k, v = draw(300, 300)
    heads = Heads(count=4, key_dim=16, causal=True)
    mechanism = build(spec, heads).double()
    expected = mechanism(q, k, v).values
    state, found = mechanism.initial_state(2, dtype=torch.float64), []
    with forced("flex"), torch.no_grad():
        torch.testing.assert_close(mechanism(q, k, v).values, expected, rtol=0, atol=1e-10)
        for a, b in ((0, 130), (130, 131), (131, 300)):
            values, state, *_ = mechanism(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], state=state)
            found.append(values)
    torch.testing.assert_close(torch.cat(found, 2), expected, rtol=0, atol=1e-10)


CURVE = ScoreBias(high=8, curve=torch.zeros(4, 17))
TABLE = ScoreBias(table=torch.zeros(1, 1, 9, 9))


@pytest.mark.parametrize(
    ("device", "dtype", "bias", "dropout", "length", "chosen"),
    [
        ("cuda", torch.bfloat16, None, None, 2048, "flex"),
        ("cuda", torch.bfloat16, CURVE, None, 2048, "flex"),
        ("cuda", torch.bfloat16, TABLE, None, 2048, None),
        ("cuda", torch.bfloat16, None, Dropout.drawn(0.1), 2048, None),
        ("cuda", torch.bfloat16, None, None, 64, None),
        ("cuda", torch.float32, None, None, 2048, None),
        ("cpu", torch.bfloat16, None, None, 2048, None),
    ],
)
def test_it_is_chosen(device, dtype, bias, dropout, length, chosen) -> None:
    q = torch.empty(1, 1, length, 8, dtype=dtype, device="meta")
    found = kernel("pattern", device, q=q, bias=bias, dropout=dropout)
    assert (found is None) == (chosen is None)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled as on a GPU, but without making kernels; torch's own limit of graphs is 1."""
    monkeypatch.setattr(flex, "_attention", lambda device: flex._compiled)
    graph = torch.compile(flex.flex_attention, fullgraph=True, backend="eager")
    monkeypatch.setattr(flex, "_graph", lambda: graph)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        yield


def test_every_pattern_is_compiled(compiled: None, recwarn: pytest.WarningsRecorder) -> None:
    """Behind a limit of graphs torch would compute all pairs without a word."""
    q, k, v = draw(200, 200)
    given = {"scale": 0.25, "query_positions": 0}
    for pattern in (*PATTERNS[1:3], PATTERNS[-1]):
        expected, _ = tiled_attention(q, k, v, pattern, **given)
        values, _ = flexed(q, k, v, pattern, **given)
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-10)
    assert not [each for each in recwarn if "materializes the full scores" in str(each.message)]


def test_a_rule_that_is_not_compiled_is_computed_by_tiles(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be traced, and one that is traced and has no kernel."""
    untraced = Pattern(lambda i, j: (j <= i) & (int(str(3)) + (i - j) < input_of(7)))
    graph = torch.compile(flex.flex_attention, fullgraph=True)
    for rule, made in ((untraced, None), (edges(torch.tensor([[0, 3, 200], [1, 2, 7]]), 300), graph)):
        if made is not None:
            monkeypatch.setattr(flex, "_graph", lambda: graph)
        given = {"scale": 1.0, "query_positions": 0}
        q, k, v = draw(300, 300)
        expected = tiled_attention(q, k, v, rule, **given)
        for _ in range(2):
            for found, one in zip(flexed(q, k, v, rule, **given), expected, strict=True):
                torch.testing.assert_close(found, one)
        assert rule.text in flex.WITHOUT_KERNEL


def test_nothing_is_moved_inside_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, positions = random_blocks(2, torch.tensor([[0, 1], [1, -1]])), torch.arange(4)
    seen = block_mask(rule, positions, positions).mask_mod
    monkeypatch.setattr(Tensor, "to", None)
    head = torch.tensor(0)
    mask = [[bool(seen(head, head, i, j)) for j in positions] for i in positions]
    monkeypatch.undo()
    assert pickle.loads(pickle.dumps(rule.rule))._there == {}
    assert mask == [[True] * 4, [True] * 4, [False, False, True, True], [False, False, True, True]]


@torch._dynamo.disable
def input_of(number: int) -> int:
    return number
