"""fixed_union: literal key sets, two-step coverage, its state."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build
from regard.engines.kernels import forced


@pytest.mark.parametrize(("stride", "columns"), [(4, 2), (5, 1), (8, 3), (6, 6)])
def test_key_sets(keys_of, stride, columns):
    for n in range(1, 41):
        expected = [[], [], []]
        for head in range(3):
            v = head % (stride // columns)
            for i in range(n):
                keys = set()
                for j in range(n):
                    own = j // stride == i // stride
                    summary = stride - columns * (v + 1) <= j % stride < stride - columns * v
                    if j <= i and (own or summary):
                        keys.add(j)
                expected[head].append(keys)
        with forced("tiles" if n % 13 == 0 else ""):
            spec = f"fixed_union(stride={stride}, columns={columns})"
            assert keys_of(spec, n, heads=3) == expected, n


def test_refusals():
    with pytest.raises(ConfigError, match="columns <= stride, got columns=5, stride=4"):
        build("fixed_union(stride=4, columns=5)", Heads(count=1, key_dim=4, causal=True))
    with pytest.raises(UnsupportedError, match="past keys"):
        build("fixed_union", Heads(count=1, key_dim=4))


def products(n):
    """How many matrix products a forward and a backward pass make."""
    q, k, v = torch.randn(3, 1, 2, n, 4, generator=torch.Generator().manual_seed(0)).unbind()
    mechanism = build("fixed_union(stride=64, columns=8)", Heads(count=2, key_dim=4, causal=True))
    with torch.profiler.profile() as found:
        mechanism(q.requires_grad_(), k, v).values.sum().backward()
    names = ("aten::bmm", "aten::baddbmm_", "aten::addmm_")
    return sum(event.count for event in found.key_averages() if event.key in names)


def test_products_do_not_grow_with_the_summary_columns():
    """A query tile sees more of them the later it is; the two and five products of the passes serve them all."""
    tiles = 2 * 4096 // 64
    assert products(4096) <= 8 * tiles
