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


def test_it_reads_values_only() -> None:
    heads = regard.Heads(count=2, key_dim=4, kv_count=1)
    q, k, v = draw(1, 2, 5, 4), draw(1, 1, 5, 4, seed=1), draw(1, 1, 5, 4, seed=2)
    mechanism = regard.build("uniform", heads)
    assert torch.equal(mechanism(q, k, v).values, mechanism(q.fill_(float("nan")), k.fill_(float("nan")), v).values)
    assert mechanism.info.reads == "v"


def test_a_maximum_is_declared_not_linear() -> None:
    assert not regard.describe("uniform(pool=max)").affine_in_value
    assert regard.describe("uniform").linear_in_value
    with pytest.raises(regard.UnsupportedError, match="affine"):
        regard.weights(regard.build("uniform(pool=max)", regard.Heads(count=1, key_dim=2)), *draw(2, 1, 1, 3, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_state_is_constant(pool: str, dtype: torch.dtype) -> None:
    mechanism = regard.build(
        "uniform", regard.Heads(count=4, key_dim=2, value_dim=3, kv_count=2, causal=True), pool=pool
    )
    v = draw(2, 2, 50, 3).to(dtype)
    q, k = v.new_zeros(2, 4, 50, 2), v.new_zeros(2, 2, 50, 2)
    state = mechanism.initial_state(2, dtype=dtype)
    sizes = {state.nbytes}
    pieces = []
    for at in range(50):
        got = mechanism(*(x[:, :, at : at + 1] for x in (q, k, v)), state=state)
        pieces.append(got.values)
        state = got.state
        sizes.add(state.nbytes)
    assert sizes == {mechanism.state_nbytes(2, 50, dtype)}
    whole = mechanism(q, k, v).values
    assert (torch.cat(pieces, 2) - whole).abs().max() <= 2 * torch.finfo(dtype).eps * whole.abs().max()


def test_sixteen_bits_are_summed_in_float32() -> None:
    v = (1 + draw(1, 1, 3000, 1).abs()).bfloat16()
    mean = regard.attend(v, v, v, "uniform", causal=True)[0, 0, -1, 0]
    assert abs(mean.double() - v.double().mean()) <= 2**-8 * v.double().mean()


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
