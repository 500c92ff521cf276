"""longformer: literal key sets with marks, its state, what it costs."""

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, ScoreBias, ShapeError, build


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
