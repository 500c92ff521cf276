"""longformer: literal key sets with marks, its state, what it costs."""

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, ScoreBias, ShapeError, build
from regard.attention.sparse.longformer import Longformer


def keys_of(spec: str, marks: Tensor | None, n: int, *, causal: bool, heads: int = 1) -> list[list[set[int]]]:
    """The keys of each query of each head, from zero logits and the identity as values: weights are 1 / count."""
    zeros = torch.zeros(1, heads, n, 4, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64).expand(1, heads, -1, -1)
    rows = build(spec, Heads(count=heads, key_dim=4, value_dim=n, causal=causal))(zeros, zeros, eye, marks=marks).values
    found = []
    for head in rows[0]:
        for row in head:
            assert ((row[row > 0] - 1 / int((row > 0).sum())).abs() < 1e-12).all()
        found.append([set(row.nonzero().flatten().tolist()) for row in head])
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("window", "dilations", "first"), [(0, (1,), 1), (2, (1,), 0), (2, (3,), 3), (3, (1, 2), 1), (50, (1,), 2)]
)
def test_key_sets(window: int, dilations: tuple[int, ...], first: int, causal: bool) -> None:
    """|i - j| in {0, r, ..., wr}, or i or j global; causal: j <= i and only columns are global."""
    option = dilations[0] if len(dilations) == 1 else dilations
    for n in range(1, 41):
        marks = (torch.arange(n) * 7 % 11 == 3).long()[None] if n % 2 else None
        spread = {j for j in range(n) if j < first or (marks is not None and marks[0, j] != 0)}
        expected = []
        for r in dilations:
            rows = []
            for i in range(n):
                keys = set()
                for j in range(n):
                    near = any(abs(i - j) == t * r for t in range(window + 1))
                    if causal:
                        if j <= i and (near or j in spread):
                            keys.add(j)
                    elif near or i in spread or j in spread:
                        keys.add(j)
                rows.append(keys)
            expected.append(rows)
        spec = f"longformer(window={window}, dilation={option}, num_global={first})"
        assert keys_of(spec, marks, n, causal=causal, heads=len(dilations)) == expected, n


def draw(n: int, *, heads: int = 4, kv_heads: int = 2, batch: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(batch, h, n, 8, generator=generator, dtype=torch.float64) for h in (heads, kv_heads, kv_heads)
    )


def test_everything_in_sight_is_softmax() -> None:
    q, k, v = draw(90)
    for causal in (True, False):
        heads = Heads(count=4, key_dim=8, kv_count=2, causal=causal)
        wide = build("longformer(window=89)", heads)(q, k, v).values
        torch.testing.assert_close(wide, build("softmax", heads)(q, k, v).values, rtol=0, atol=1e-10)
    marks = torch.ones(2, 90, dtype=torch.long)
    both = build("longformer(window=0, num_global=0)", heads)(q, k, v, marks=marks).values
    torch.testing.assert_close(both, wide, rtol=0, atol=1e-10)


@pytest.mark.parametrize("splits", [(1,) * 40, (200, 1, 99), (7, 3, 290), (299, 1)])
@pytest.mark.parametrize("options", ["window=20", "window=4, dilation=(1, 3), num_global=2", "window=9, num_global=0"])
def test_pieces_equal_the_whole(options: str, splits: tuple[int, ...]) -> None:
    """With marks in some rows, and a state that keeps the window and the global tokens only."""
    longformer = build(f"longformer({options})", Heads(count=4, key_dim=8, kv_count=2, causal=True))
    assert isinstance(longformer, Longformer)
    n = sum(splits)
    q, k, v = draw(n)
    for marked in (False, True):
        marks = torch.zeros(2, n, dtype=torch.long)
        marks[0, 5::17], marks[1, 8] = int(marked), int(marked)
        whole = longformer(q, k, v, marks=marks).values
        with torch.no_grad():
            state, at = longformer.initial_state(2, dtype=torch.float64), 0
            for count in splits:
                piece = slice(at, at + count)
                given = marks[:, piece] if marked else None
                answer = longformer(q[:, :, piece], k[:, :, piece], v[:, :, piece], marks=given, state=state)
                torch.testing.assert_close(answer.values, whole[:, :, piece], rtol=0, atol=1e-10)
                assert answer.state is not None
                at, state = at + count, answer.state
        if not marked:
            assert state.nbytes == longformer.state_nbytes(2, n, torch.float64)
        else:
            kept = set(state.tensors()["positions"].tolist())
            assert set(marks.any(0).nonzero().flatten().tolist()) <= kept
            assert len(kept) <= longformer.pattern.distances[1] + 2 + int(marks.any(0).sum())


def test_marks_of_a_window_need_every_distance_of_a_bias() -> None:
    q, k, v = draw(50)
    longformer = build("longformer(window=3, num_global=0)", Heads(count=4, key_dim=8, kv_count=2))
    near = ScoreBias(high=3, curve=torch.randn(4, 7, dtype=torch.float64))
    marks = torch.zeros(2, 50, dtype=torch.long)
    assert longformer(q, k, v, bias=near).values.isfinite().all()
    with pytest.raises(ShapeError, match="give it every distance of the call"):
        longformer(q, k, v, bias=near, marks=marks)
    causal = build("longformer(window=3, num_global=0)", Heads(count=4, key_dim=8, kv_count=2, causal=True))
    state = causal(q, k, v, marks=marks + 1, state=causal.initial_state(2, dtype=torch.float64)).state
    with pytest.raises(ShapeError, match="give it every distance of the call"):  # the marks of an earlier call
        causal(q, k, v, bias=near, state=state)


@pytest.mark.parametrize("options", ["window=-1", "dilation=0", "dilation=()", "num_global=-1", "impl=dense"])
def test_options_that_make_no_sense(options: str) -> None:
    with pytest.raises(ConfigError):
        build(f"longformer({options})", Heads(count=2, key_dim=8))
