"""Pooling against loops over the visible keys."""

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 8), (8, 8), (40, 40)])
def test_visible_keys_one_at_a_time(queries: int, keys: int, causal: bool, pool: str) -> None:
    q, v = draw(1, 1, queries, 2), draw(1, 1, keys, 3, seed=1)
    keep = [j % 3 != 0 for j in range(keys)]
    heads = regard.Heads(count=1, key_dim=2, value_dim=3, causal=causal)
    got = regard.build("uniform", heads, pool=pool)(q, v[..., :2], v, key_mask=torch.tensor([keep])).values[0, 0]
    for i in range(queries):
        seen = [v[0, 0, j].tolist() for j in range(keys) if keep[j] and (not causal or j <= i + keys - queries)]
        for c in range(3):
            column = [row[c] for row in seen] or [0.0]
            expected = sum(column) / len(column) if pool == "mean" else max(column)
            assert got[i, c].item() == pytest.approx(expected, abs=1e-12)


def test_golden_values() -> None:
    v = torch.tensor([-3.0, -1.0, -2.0, 6.0])[None, None, :, None]
    heads = regard.Heads(count=1, key_dim=1, causal=True)
    assert regard.build("uniform", heads)(v, v, v).values.flatten().tolist() == [-3.0, -2.0, -2.0, 0.0]
    highest = regard.build("uniform(pool=max)", heads)(v, v, v).values.flatten().tolist()
    assert highest == [-3.0, -1.0, -1.0, 6.0]


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_nothing_to_pool_and_nobody_to_pool_for(pool: str, impl: str) -> None:
    mechanism = regard.build("uniform", regard.Heads(count=2, key_dim=2, kv_count=1), pool=pool, impl=impl)
    for queries, keys in ((3, 0), (0, 3)):
        k = draw(1, 1, keys, 2)
        values = mechanism(draw(1, 2, queries, 2), k, k).values
        assert values.shape == (1, 2, queries, 2)
        assert not values.any()


def test_an_unknown_pool_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="pool"):
        regard.build("uniform", regard.Heads(count=1, key_dim=2), pool="median")
