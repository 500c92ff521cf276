"""etc: literal key sets of its four masks, its labels against dense attention of Shaw on both streams."""

import itertools

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, UnsupportedError, build
from regard.attention.sparse.etc import Etc


def labelled(spec: str, heads: Heads) -> Etc:
    etc = build(spec, heads).double()
    assert isinstance(etc, Etc)
    return etc


def unlabelled(spec: str, heads: Heads) -> Etc:
    etc = labelled(spec, heads)
    with torch.no_grad():
        etc.labels.zero_()
    return etc


def segments(n: int) -> Tensor:
    """Marks: every fifth token sums up its segment, the tokens before the first belong to none."""
    return torch.tensor([[0 if j < 2 else (-1 if j % 5 == 2 else 1) * ((j - 2) // 5 + 1) for j in range(n)]])


@pytest.mark.parametrize(
    ("g2g", "g2l", "l2g"),
    [("all", "all", "all"), ("self", "segment", "all"), ("all", "segment", "segment"), ("self", "all", "segment")],
)
def test_key_sets(g2g: str, g2l: str, l2g: str) -> None:
    for n, first in itertools.product(range(1, 41), (0, 2)):
        marks = segments(n) if n % 3 else None
        mark = [0] * n if marks is None else marks[0].tolist()
        spread = {j for j in range(n) if j < first or mark[j] < 0}
        expected = []
        for i in range(n):
            keys = set()
            for j in range(n):
                member = mark[i] == -mark[j] or (i in spread and i < first) or (j in spread and j < first)
                if i in spread and j in spread:
                    sees = g2g == "all" or i == j
                elif i in spread:
                    sees = g2l == "all" or member
                elif j in spread:
                    sees = l2g == "all" or member
                else:
                    sees = abs(i - j) <= 3
                if sees:
                    keys.add(j)
            expected.append(keys)
        spec = f"etc(window=3, num_global={first}, g2g={g2g}, g2l={g2l}, l2g={l2g})"
        etc = unlabelled(spec, Heads(count=1, key_dim=4, value_dim=n))
        zeros, eye = torch.zeros(1, 1, n, 4, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[None, None]
        rows = etc(zeros, zeros, eye, marks=marks).values[0, 0]
        for row, keys in zip(rows, expected, strict=True):
            assert set(row.nonzero().flatten().tolist()) == keys, (n, first)
            assert ((row[row > 0] - 1 / max(len(keys), 1)).abs() < 1e-12).all()


def test_it_is_shaw_attention_on_both_streams() -> None:
    """Global tokens, then long ones: a logit and a label for each pair, one softmax per row, block by block."""
    globals_, long, window, most = 3, 11, 2, 2
    n, marks = globals_ + long, torch.tensor([[-1, -2, -3] + [j // 4 + 1 for j in range(11)]])
    spec = f"etc(window={window}, max_distance={most}, num_global=0, g2l=segment)"
    etc = labelled(spec, Heads(count=2, key_dim=6))
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, n, 6, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        etc.labels.copy_(torch.randn(etc.labels.shape, generator=draw, dtype=torch.float64))
    out = torch.zeros_like(q)
    for h in range(2):
        table = etc.labels[h].detach()
        for i in range(n):
            logits, values = [], []
            for j in range(n):
                kin = (i < globals_, j < globals_)
                own = int(marks[0, i]) == -int(marks[0, j])
                label = max(-most, min(most, j - i)) + most
                if kin == (False, False) and abs(i - j) > window:
                    continue
                if kin == (False, True):
                    label = 2 * most + (2 if own else 1)
                if kin == (True, False):
                    label = 2 * most + (4 if own else 3)
                    if not own:
                        continue
                logits.append(q[0, h, i] @ (k[0, h, j] + table[label]) / 6**0.5)
                values.append(v[0, h, j])
            out[0, h, i] = torch.stack(logits).softmax(0) @ torch.stack(values)
    torch.testing.assert_close(etc(q, k, v, marks=marks).values, out, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    ["window=-1", "max_distance=-1", "num_global=-1", "g2g=segment", "g2l=self", "l2g=none", "impl=dense"],
)
def test_options_that_make_no_sense(options: str) -> None:
    with pytest.raises(ConfigError):
        build(f"etc({options})", Heads(count=2, key_dim=8))


def test_it_is_an_encoder() -> None:
    with pytest.raises(UnsupportedError, match="sees what comes after it"):
        build("etc", Heads(count=2, key_dim=8, causal=True))
