"""T5's buckets against the golden table and against the published formula in whole numbers."""

import math
from fractions import Fraction

import pytest
import torch

from regard import AttentionLayer
from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.position import build_position

BIDIRECTIONAL = {
    0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -16: 10, -23: 11, -32: 12, -64: 14, -91: 15, -128: 15,
    1: 17, 8: 24, 127: 31,
}  # fmt: skip
CAUSAL = {0: 0, -11: 11, -16: 16, -23: 18, -32: 21, -64: 26, -128: 31, 5: 0}


def scheme(causal: bool, options: str = "", count: int = 3):
    return build_position(f"t5_bias({options})", Heads(count=count, key_dim=4, causal=causal, seed=1), 8).double()


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("causal", "golden"), [(False, BIDIRECTIONAL), (True, CAUSAL)])
def test_golden_buckets(causal, golden):
    """By the distances at which a unit vector in the table shows up in the logits."""
    position = scheme(causal)
    with torch.no_grad():
        position.table.copy_(torch.arange(32.0).expand(3, -1))
    bias = position.bias(randn(1, 3, 1, 4), -200, 200)
    for relative, bucket in golden.items():
        logit = bias.logits(torch.tensor([500]), torch.tensor([500 + relative]))
        assert logit.flatten().tolist() == [bucket] * 3, relative


@pytest.mark.parametrize(
    ("causal", "num_buckets", "max_distance"),
    [(True, 32, 128), (False, 32, 128), (True, 32, 64), (False, 64, 256), (True, 9, 100), (False, 6, 7), (True, 2, 5)],
)
def test_every_bucket_equals_the_formula_without_rounding(causal, num_buckets, max_distance):
    """bucket = e + floor(log(r/e) / log(m/e) (n-e)): the largest s with (r/e)^(n-e) >= (m/e)^s."""
    n = num_buckets if causal else num_buckets // 2
    e = n // 2

    def one_way(r: int) -> int:
        if r < e:
            return r
        grown, unit = Fraction(r, e) ** (n - e), Fraction(max_distance, e)
        return min(e + max(s for s in range(n - e + 1) if grown >= unit**s), n - 1)

    relative = torch.arange(-2 * max_distance, 2 * max_distance)
    wanted = [one_way(max(-r, 0)) if causal else one_way(abs(r)) + n * (r > 0) for r in relative.tolist()]
    position = scheme(causal, f"num_buckets={num_buckets}, max_distance={max_distance}")
    assert position.bucket(relative).tolist() == wanted


@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_is_the_published_formula(causal):
    """softmax_j(q_i . k_j + B[h, bucket(j - i)]) v_j, without 1/sqrt(d)."""
    n = 40
    layer = AttentionLayer(
        12, "softmax(scale=1.0)", heads=3, position="t5_bias(std=1.0)", causal=causal, dropout=0.0
    ).double()
    x = randn(2, n, 12)
    q, k, v = (
        (x @ p.weight.T).unflatten(-1, (3, 4)).transpose(1, 2)
        for p in (layer.projections.query, layer.projections.key, layer.projections.value)
    )
    logits = q @ k.mT
    for i in range(n):
        for j in range(n):
            bucket = int(layer.position.bucket(torch.tensor(j - i)))
            logits[:, :, i, j] += layer.position.table[:, bucket]
    if causal:
        logits = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    wanted = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2) @ layer.projections.output.weight.T
    assert (layer(x).hidden - wanted).abs().max() < 1e-10


def test_layers_share_the_table_by_sharing_the_module():
    shared = scheme(True, count=2)
    layers = [
        AttentionLayer(8, "softmax(scale=1.0)", heads=2, position=shared, seed=s, causal=True).double() for s in (0, 1)
    ]
    assert layers[0].position is layers[1].position is shared
    x = randn(1, 20, 8)
    parts = [torch.autograd.grad(layer(x).hidden.square().sum(), shared.table)[0] for layer in layers]
    layers[1](layers[0](x).hidden).hidden.square().sum().backward()
    assert all(part.abs().sum() > 0 for part in parts)
    assert shared.table.grad.abs().sum() > 0
    model = torch.nn.ModuleList(layers)
    assert len([p for p in model.parameters() if p is shared.table]) == 1


@pytest.mark.parametrize(
    ("causal", "options"),
    [
        (True, "num_buckets=1"), (False, "num_buckets=2"), (False, "num_buckets=31"), (True, "max_distance=16"),
        (False, "max_distance=8"),
    ],
)  # fmt: skip
def test_impossible_buckets_are_refused(causal, options):
    with pytest.raises(ConfigError, match="position t5_bias needs num_buckets"):
        scheme(causal, options)


@pytest.mark.parametrize("options", ["num_buckets=1025", f"num_buckets={10**12}", f"max_distance={2**31}"])
def test_buckets_that_take_minutes_are_refused(options):
    with pytest.raises(ConfigError, match="at most 1024 buckets and a max_distance of 2147483647"):
        scheme(True, options)


def test_edges_of_far_distances_are_those_of_the_formula():
    """In time that does not grow with the distance; a walk along 2 10^9 distances takes an hour."""
    starts = scheme(True, f"num_buckets=8, max_distance={2**31 - 1}").edges
    assert starts[:4] == [1, 2, 3, 4]
    assert len(starts) == 7
    for k, start in enumerate(starts[4:], 1):
        assert start**4 >= 4 ** (4 - k) * (2**31 - 1) ** k > (start - 1) ** 4
