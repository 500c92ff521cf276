"""`vector_quantized` against SPEC D5: double loops over quantised keys, the codes' counts, what the codebook learns."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import ConfigError, Heads
from regard.testing.compare import assert_close, assert_identical


def make(causal: bool = True, *, dtype: torch.dtype = torch.float64, **options: object):
    sizes = {name: options.pop(name) for name in ("count", "kv_count", "key_dim", "seed") if name in options}
    heads = {"count": 2, "key_dim": 6, "value_dim": 5, "seed": 3, **sizes}
    return regard.build("vector_quantized", Heads(causal=causal, **heads), **options).to(dtype).eval()


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(n: int, *, batch: int = 1, heads: int = 2, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return (
        randn(batch, heads, n, 6, seed=n),
        randn(batch, kv_heads, n, 6, seed=n + 1000),
        randn(batch, kv_heads, n, 5, seed=n + 2000),
    )


def unit(x: Tensor) -> Tensor:
    """Root mean square 1, over the fourth root of the width."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() / x.shape[-1] ** 0.25


def nearest(vector: list[float], codes: list[list[float]]) -> int:
    distances = [sum((a - b) ** 2 for a, b in zip(vector, code, strict=True)) for code in codes]
    return distances.index(min(distances))


def loops(mechanism, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Softmax over the codes of the keys, one query at a time."""
    q, k, out = unit(q), unit(k), torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for h in range(q.shape[1]):
        codes = (mechanism.code_sum / mechanism.code_count[..., None])[h].tolist()
        quantised = [codes[nearest(vector, codes)] for vector in k[0, h].tolist()]
        for i, query in enumerate(q[0, h].tolist()):
            seen = range(i + k.shape[2] - q.shape[2] + 1 if causal else k.shape[2])
            odds = {j: math.exp(sum(a * b for a, b in zip(query, quantised[j], strict=True))) for j in seen}
            for j, odd in odds.items():
                out[0, h, i] += odd / sum(odds.values()) * v[0, h, j]
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_blocks_are_dense_softmax_over_quantised_keys(causal, block_size):
    mechanism = make(causal, num_codes=4, block_size=block_size)
    for n in (*range(1, 8), 16, 25, 40):
        q, k, v = inputs(n)
        values = mechanism(q, k, v).values
        assert_close(values, loops(mechanism, q, k, v, causal), tolerance=1e-10, what=f"{n} tokens")
        if causal:
            some = mechanism(q[:, :, n // 2 :], k, v).values
            assert_close(some, values[:, :, n // 2 :], tolerance=1e-10, what=f"the last queries of {n}")


@pytest.mark.parametrize("causal", [True, False])
def test_codes_at_the_keys_give_plain_softmax(causal):
    n = 20
    mechanism = make(causal, num_codes=n + 4, block_size=3)
    q, k, v = inputs(n)
    mechanism.code_sum[:, :n] = unit(k)[0]
    logits = unit(q) @ unit(k).mT
    if causal:
        logits = logits.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
    assert_close(mechanism(q, k, v).values, logits.softmax(-1) @ v, tolerance=1e-10, what="softmax of unit q and k")
    assert torch.equal(mechanism.decisions(q, k)[0], torch.arange(n, dtype=torch.int32).expand(2, n))


def test_few_codes_on_clustered_keys_lose_nothing():
    """SPEC D5: with keys in S clusters of no width, S codes are exact."""
    centres = randn(1, 2, 4, 6, seed=9)
    mechanism = make(num_codes=4, block_size=4)
    mechanism.code_sum.copy_(unit(centres)[0])
    q, _, v = inputs(60)
    k = centres[:, :, torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(0))]
    logits = (unit(q) @ unit(k).mT).masked_fill(~torch.ones(60, 60, dtype=torch.bool).tril(), -math.inf)
    assert_close(mechanism(q, k, v).values, logits.softmax(-1) @ v, tolerance=1e-10, what="clustered keys")


def test_counts_are_the_tokens_absorbed():
    length, codes = 4, 7
    mechanism = make(num_codes=codes, block_size=length)
    q, k, v = inputs(50, batch=2)
    keep = torch.rand(2, 50, generator=torch.Generator().manual_seed(0)) > 0.3
    state, at = mechanism.initial_state(2, dtype=torch.float64), 0
    for piece in (1, 3, 1, 7, 1, 1, 20, 2, 14):
        part = slice(at, at + piece)
        with torch.no_grad():
            answer = mechanism(*(x[:, :, part] for x in (q, k, v)), key_mask=keep[:, part], state=state)
        state, at = answer.state, at + piece
        cache = state.tensors()["cache"]
        gone = max(0, at // length - 1) * length
        wanted = keep[:, :gone].sum(1, dtype=torch.float64)[:, None].expand(2, 2)
        assert_identical(cache[..., -1].sum(-1), wanted, what=f"counts after {at} tokens")
        sums = (v[:, :, :gone] * keep[:, None, :gone, None]).sum(2)
        assert (cache[..., :-1].sum(2) - sums).abs().max() < 1e-10
        assert state.length == at
        assert state.nbytes == 2 * 2 * ((2 * length - 1) * ((6 + 5) * 8 + 4) + codes * (5 + 1) * 8)
        assert state.nbytes == mechanism.state_nbytes(2, at, torch.float64)
    assert gone == 44


@pytest.mark.parametrize("causal", [True, False])
def test_nan_of_a_key_reaches_every_query_that_sees_it(causal):
    """Recent or not: its code has none."""
    mechanism = make(causal, num_codes=4, block_size=3)
    q, k, v = inputs(20)
    k[:, :, 2, 1] = math.nan
    for values in (mechanism(q, k, v).values, mechanism.definition(q, k, v)):
        assert values[:, :, 2:].isnan().all()


def test_learning_one_step_by_hand():
    decay = 0.9
    mechanism = make(num_codes=5, block_size=4, decay=decay).train()
    q, k, v = inputs(30, batch=2)
    keep = torch.rand(2, 30, generator=torch.Generator().manual_seed(0)) > 0.3
    k[~keep[:, None].expand(2, 2, 30)] = float("nan")
    before = mechanism.code_sum.clone(), mechanism.code_count.clone()
    loss = mechanism(q, k, v, key_mask=keep).losses["commitment"]
    assert_identical(mechanism.code_sum, before[0], what="the codes until the next call")
    mechanism(*inputs(7))
    total = 0.0
    for h in range(2):
        codes = (before[0] / before[1][..., None])[h]
        sums, counts = torch.zeros(5, 6, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
        for vector in unit(k[:, h])[keep]:
            code = nearest(vector.tolist(), codes.tolist())
            sums[code] += vector
            counts[code] += 1
            total += (vector - codes[code]).square().sum().item()
        assert_close(mechanism.code_sum[h], decay * before[0][h] + (1 - decay) * sums, tolerance=1e-12, what="sums")
        assert_close(
            mechanism.code_count[h], decay * before[1][h] + (1 - decay) * counts, tolerance=1e-12, what="counts"
        )
    assert abs(loss.item() - total / keep.sum().item()) < 1e-10
    assert dict(mechanism.info.losses) == {"commitment": 1e-4}


def test_only_training_learns_and_only_once():
    mechanism = make(num_codes=5, block_size=4)
    x = inputs(30)
    before = mechanism.code_sum.clone()
    assert mechanism(*x).losses == {}
    assert_identical(mechanism.code_sum, before, what="evaluation")
    mechanism.train()
    mechanism.recomputing = True
    first = mechanism(*x)
    assert_identical(mechanism.code_sum, before, what="a block that is computed again")
    mechanism.recomputing = False
    for _ in range(2):
        assert_identical(mechanism.code_sum, before, what="the codes before the second training call")
        loss = mechanism(*x).losses["commitment"]
    assert not torch.equal(mechanism.code_sum, before)
    assert loss < first.losses["commitment"]


def test_learning_moves_codes_to_the_keys():
    mechanism = make(num_codes=4, decay=0.5, dtype=torch.float32).train()
    centres = randn(1, 2, 4, 6, seed=9, dtype=torch.float32)
    mechanism.code_sum.copy_(unit(centres + 0.3 * randn(1, 2, 4, 6, seed=8, dtype=torch.float32))[0])
    k = centres.repeat_interleave(10, 2)
    q, v = randn(1, 2, 40, 6, dtype=torch.float32), randn(1, 2, 40, 5, dtype=torch.float32)
    first = mechanism(q, k, v).losses["commitment"]
    for _ in range(30):
        last = mechanism(q, k, v).losses["commitment"]
    assert last < 1e-6 < first


def test_initial_codes_lie_where_keys_lie():
    first, again, other = (make(num_codes=50, seed=seed).codebook for seed in (0, 0, 1))
    assert_identical(first, again, what="the same seed")
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    keys = unit(randn(1, 1, 50, 6))
    assert (first.square().sum(-1) - keys.square().sum(-1).mean()).abs().max() < 1e-3


def test_close_choices_ignore_length():
    """Keys on the border of two codes, within rounding: a product of one row rounds otherwise than one of many."""
    mechanism = make(num_codes=2, key_dim=48, count=1, dtype=torch.float32)
    mechanism.code_sum[:, 1] = -mechanism.code_sum[:, 0]
    point = mechanism.codebook[0, 0].double()
    k = randn(1, 1, 2000, 48)
    along = 1e-6 * randn(1, 1, 2000, seed=1) - k @ point / point.square().sum()
    k = (k + along[..., None] * point).float()
    whole = mechanism.decisions(k, k)
    assert 0.2 < whole.double().mean() < 0.8
    alone = torch.cat([mechanism.decisions(y, y) for y in k.split(1, 2)], 2)
    assert torch.equal(alone, whole)
    assert torch.equal(mechanism.decisions(k[:, :, 11:900], k[:, :, 11:900]), whole[:, :, 11:900])


def test_compiled_training_is_one_graph_and_learns():
    x = [y.float() for y in inputs(40)]
    plain, whole = (make(num_codes=5, block_size=4, dtype=torch.float32).train() for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(whole, backend="aot_eager", fullgraph=True, dynamic=False)
    grads = []
    for run in (plain, compiled):
        leaves = [y.clone().requires_grad_() for y in x]
        answer = run(*leaves)
        (answer.values.square().sum() + answer.losses["commitment"]).backward()
        grads.append([y.grad for y in leaves])
    assert_close(whole.seen, plain.seen, tolerance=2e-6, what="what the codebook will learn")
    for name, one, other in zip("qkv", *grads, strict=True):
        assert_close(other, one, tolerance=2e-6, what=f"gradient of {name}")


def test_refusals():
    for options in ({"num_codes": 0}, {"block_size": 0}, {"decay": 1.5}, {"impl": "flex"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make(**options)


def test_a_key_of_nan_teaches_nothing():
    mechanism = make(num_codes=5, block_size=4, decay=0.5).train()
    q, k, v = inputs(20)
    bad = k.clone()
    bad[:, :, 7] = math.nan
    mechanism(q, bad, v)
    for _ in range(2):
        answer = mechanism(q, k, v)
    assert answer.values.isfinite().all()
    assert answer.losses["commitment"].isfinite()
