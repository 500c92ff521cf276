"""`lsh` against SPEC D1 and D2: hash probabilities, double loops over the key sets."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import regard
from regard import ConfigError, Heads, LimitError
from regard.testing.compare import assert_close, assert_identical
from regard.testing.counting import count


def make(causal: bool = True, *, dtype: torch.dtype = torch.float64, **options: object):
    sizes = {name: options.pop(name) for name in ("count", "kv_count", "key_dim", "max_length") if name in options}
    heads = {"count": 2, "key_dim": 6, "value_dim": 5, "seed": 3, **sizes}
    return regard.build("lsh", Heads(causal=causal, **heads), **options).to(dtype).eval()


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def at_angle(angle: float, dim: int = 4) -> tuple[Tensor, Tensor]:
    p, q = torch.zeros(2, 1, 1, 1, dim)
    p[..., 0], q[..., 0], q[..., 1] = 1.0, math.cos(angle), math.sin(angle)
    return p, q


def collisions(angle: float, buckets: int, rounds: int) -> Tensor:
    """Whether two vectors at an angle collide, per round."""
    heads = Heads(count=1, key_dim=4)
    hashed = regard.build("lsh", heads, rounds=rounds, num_buckets=buckets).decisions(*at_angle(angle))
    return (hashed.queries == hashed.keys).flatten()


@pytest.mark.parametrize("angle", [0.3, 1.0, 2.0])
def test_two_buckets_collide_with_probability_one_minus_angle_over_pi(angle):
    rounds = 200_000
    met = collisions(angle, 2, rounds)
    p = 1 - angle / math.pi
    error = math.sqrt(p * (1 - p) / rounds)
    assert 5 * error < 0.01  # a bias of one hundredth would be seen
    assert abs(met.double().mean().item() - p) < 5 * error
    # amplification: AND of 4 bits p^4, OR of 4 tables 1 - (1 - p)^4, XOR of two tables 2 p (1 - p)
    four, two = met.view(-1, 4), met.view(-1, 2)
    for found, wanted in (
        (four.all(1), p**4),
        (four.any(1), 1 - (1 - p) ** 4),
        (two[:, 0] ^ two[:, 1], 2 * p * (1 - p)),
    ):
        assert abs(found.double().mean().item() - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / len(found))


def test_more_buckets_collide_less_as_the_angle_grows():
    rates = [collisions(angle, 8, 40_000).double().mean().item() for angle in (0.2, 0.6, 1.0, 1.6, 2.4, 3.1)]
    assert all(near > far + 0.005 for near, far in itertools.pairwise(rates[:-1]))
    assert rates[-1] < 0.01


def test_hash_ignores_length_and_the_other_tokens():
    mechanism = make(dtype=torch.float32, num_buckets=32, key_dim=16, rounds=8)
    x = randn(1, 2, 4000, 16, dtype=torch.float32)
    whole = mechanism.decisions(x, x).keys
    assert whole.unique().numel() == 32
    assert torch.equal(mechanism.decisions(7.5 * x, x).queries, whole)
    for first, stop in ((0, 1), (17, 18), (100, 1100), (3, 3999)):
        part = x[:, :, first:stop]
        assert torch.equal(mechanism.decisions(part, part).keys, whole[:, :, first:stop])
    alone = torch.cat([mechanism.decisions(y, y).keys for y in x.split(1, 2)[:500]], 2)
    assert torch.equal(alone, whole[:, :, :500])


def buckets_of(mechanism, x: Tensor) -> list[list[list[list[int]]]]:
    """argmax([x R; -x R]) of every head, token and round, one product at a time."""
    out = []
    for h in range(x.shape[1]):
        rotation = mechanism.rotations[h].tolist()
        tokens = []
        for vector in x[0, h].tolist():
            chosen = []
            for turn in rotation:
                turned = [sum(a * turn[d][c] for d, a in enumerate(vector)) for c in range(len(turn[0]))]
                both = turned + [-a for a in turned]
                chosen.append(both.index(max(both)))
            tokens.append(chosen)
        out.append(tokens)
    return out


def loops(q: Tensor, k: Tensor, v: Tensor, sets: list[list[dict[int, float]]], shared: bool) -> Tensor:
    """Softmax over given keys with given multiplicities, one query at a time."""
    out = torch.zeros(1, q.shape[1], q.shape[2], v.shape[3], dtype=torch.float64)
    for h in range(q.shape[1]):
        for i, seen in enumerate(sets[h]):
            odds = {}
            for j, times in seen.items():
                norm = math.sqrt(sum(a * a for a in k[0, h, j].tolist())) if shared else 1.0
                logit = sum(a * b for a, b in zip(q[0, h, i].tolist(), k[0, h, j].tolist(), strict=True)) / norm
                odds[j] = times * math.exp(logit / math.sqrt(q.shape[3]))
            for j, odd in odds.items():
                out[0, h, i] += odd / sum(odds.values()) * v[0, h, j]
    return out


def exact_sets(ours, theirs, causal: bool, shared: bool, duplicates: bool) -> list[list[dict[int, float]]]:
    """The union over rounds of the keys in the query's bucket; itself only if alone where q and k are one."""
    sets = []
    for queries, keys in zip(ours, theirs, strict=True):
        past, rows = len(keys) - len(queries), []
        for i, mine in enumerate(queries):
            slot, seen = i + past, {}
            for j, other in enumerate(keys):
                if (causal and j > slot) or (shared and j == slot):
                    continue
                rounds = sum(a == b for a, b in zip(mine, other, strict=True))
                if rounds:
                    seen[j] = rounds if duplicates else 1
            rows.append(seen if seen or not shared else {slot: 1})
        sets.append(rows)
    return sets


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"num_buckets": 4, "rounds": 2},
        {"num_buckets": 16, "rounds": 1},
        {"num_buckets": 6, "rounds": 3, "duplicates": True},
        {"num_buckets": 1, "rounds": 2},
    ],
)
def test_shared_form_is_the_union_of_buckets(causal, options):
    mechanism = make(causal, **options)
    for n in (*range(1, 8), 16, 17, 40):
        x, v = randn(1, 2, n, 6, seed=n), randn(1, 2, n, 5, seed=n + 100)
        hashed = buckets_of(mechanism, x) if options["num_buckets"] > 1 else [[[0, 0]] * n] * 2
        sets = exact_sets(hashed, hashed, causal, True, options.get("duplicates", False))
        assert_close(mechanism(x, x, v).values, loops(x, x, v, sets, True), tolerance=1e-10, what=f"{n} tokens")


@pytest.mark.parametrize("causal", [True, False])
def test_separate_form_hashes_queries_and_keys(causal):
    mechanism = make(causal, num_buckets=6, rounds=2, share=False)
    for queries, keys in ((1, 1), (5, 5), (3, 20), (20, 20), *(() if causal else ((20, 3), (7, 1)))):
        q, k, v = randn(1, 2, queries, 6), randn(1, 2, keys, 6, seed=1), randn(1, 2, keys, 5, seed=2)
        sets = exact_sets(buckets_of(mechanism, q), buckets_of(mechanism, k), causal, False, False)
        values = mechanism(q, k, v).values
        expected = loops(q, k, v, sets, False)
        if not expected.any():
            assert not values.any()
        else:
            assert_close(values, expected, tolerance=1e-10, what=f"{queries} queries, {keys} keys")


def test_rounds_merged_by_their_log_sums_are_the_union():
    """SPEC D2: o = sum_r exp(z_r - z) o_r with log N_ij subtracted from each logit."""
    mechanism = make(num_buckets=4, rounds=3)
    n = 50
    x, v = randn(1, 2, n, 6), randn(1, 2, n, 5, seed=1)
    codes = mechanism.decisions(x, x).keys
    met = (codes[:, :, :, None] == codes[:, :, None]) & torch.ones(n, n, dtype=torch.bool).tril(-1)[..., None]
    logits = x @ torch.nn.functional.normalize(x, dim=-1).mT / 6**0.5 - met.sum(-1).double().log()
    parts = []
    for r in range(3):
        z = torch.where(met[..., r], logits, -math.inf)
        lse = z.logsumexp(-1)
        parts.append(((z - lse[..., None]).exp().nan_to_num(0) @ v, lse))
    merged, lse = regard.merge(parts)
    values = mechanism(x, x, v).values
    crowd = ~lse.isinf()
    assert crowd[:, :, 5:].all()
    assert_close(values[crowd], merged[crowd], tolerance=1e-10, what="rounds merged")
    assert_identical(values[~crowd], v[~crowd], what="a query alone in its buckets gives its own value")


def test_one_bucket_is_softmax_with_itself_masked():
    x, v = randn(1, 2, 30, 6), randn(1, 2, 30, 5, seed=1)
    logits = x @ torch.nn.functional.normalize(x, dim=-1).mT / 6**0.5
    causal = logits.masked_fill(~torch.ones(30, 30, dtype=torch.bool).tril(-1), -math.inf)
    causal[:, :, 0, 0] = 0
    assert_close(make(num_buckets=1)(x, x, v).values, causal.softmax(-1) @ v, tolerance=1e-10, what="causal")
    both = logits.masked_fill(torch.eye(30, dtype=torch.bool), -math.inf)
    assert_close(make(False, num_buckets=1)(x, x, v).values, both.softmax(-1) @ v, tolerance=1e-10, what="both ways")


def test_many_rounds_meet_every_key():
    x, v = randn(1, 2, 30, 6), randn(1, 2, 30, 5, seed=1)
    off = [
        (make(num_buckets=8, rounds=rounds)(x, x, v).values - make(num_buckets=1)(x, x, v).values).abs().max().item()
        for rounds in (1, 8, 32)
    ]
    assert off[0] > 0.5
    assert off[2] < 0.5 * off[1]
    x, v, many = x[:, :, :12], v[:, :, :12], make(num_buckets=2, rounds=64)
    codes = many.decisions(x, x).keys
    assert (codes[:, :, :, None] == codes[:, :, None]).any(-1).all()
    assert_close(many(x, x, v).values, make(num_buckets=1)(x, x, v).values, tolerance=1e-10, what="every pair met")


@pytest.mark.parametrize("tile_buckets", [2, 8, 40])
@pytest.mark.parametrize("causal", [True, False])
def test_every_tile_size_agrees_with_the_definition_and_its_gradients(causal, tile_buckets):
    """300 tokens in 2, 8 or 40 buckets take tiles of 64, 32 or 16; shared key heads and a mask with holes."""
    mechanism = make(causal, num_buckets=tile_buckets, rounds=3, count=4, kv_count=2)
    k = randn(2, 2, 300, 6).requires_grad_()
    v = randn(2, 2, 300, 5, seed=1).requires_grad_()
    keep = torch.rand(2, 300, generator=torch.Generator().manual_seed(0)) > 0.2
    way = randn(2, 4, 300, 5, seed=2)
    for mask in (None, keep):
        q = k.repeat_interleave(2, 1)
        got, wanted = mechanism(q, k, v, key_mask=mask).values, mechanism.definition(q, k, v, key_mask=mask)
        assert_close(got, wanted, tolerance=1e-10, what=f"values, {mask is not None=}")
        pairs = zip(
            torch.autograd.grad((got * way).sum(), (k, v), retain_graph=True),
            torch.autograd.grad((wanted * way).sum(), (k, v), retain_graph=True),
            strict=True,
        )
        for name, (one, other) in zip("kv", pairs, strict=True):
            assert_close(one, other, tolerance=1e-9, what=f"gradient of {name}, {mask is not None=}")


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_nan_reaches_the_queries_that_meet_it_alone(name, causal, share):
    """A key with NaN hashes to 0, so that its bucket is asked for; in the engine its tile holds later keys too."""
    mechanism = make(causal, num_buckets=4, rounds=2, share=share)
    x, v, at = randn(1, 2, 40, 6), randn(1, 2, 40, 5, seed=1), 17
    spoilt = {"k": x.clone(), "v": v.clone()}
    spoilt[name][:, :, at, 2] = math.nan
    k, v = spoilt["k"], spoilt["v"]
    q = k if share else x
    chosen = mechanism.decisions(q, k)
    pairs = (chosen.queries[:, :, :, None] == chosen.keys[:, :, None]).any(-1)
    pairs = pairs.tril() if causal else pairs
    met = pairs[..., at].clone()
    if share:  # itself, where no other key is met
        alone = ~pairs[:, :, at, torch.arange(40) != at].any(-1)
        met[:, :, at] = alone | (name == "k")
    for values in (mechanism(q, k, v).values, mechanism.definition(q, k, v) if name == "k" else None):
        if values is not None:
            assert torch.equal(values.isnan().any(-1), met)


def test_everything_in_one_bucket_still_works():
    mechanism = make(num_buckets=40, rounds=2)
    x = randn(1, 2, 1, 6) * torch.linspace(0.5, 2, 200, dtype=torch.float64)[:, None]
    v = randn(1, 2, 200, 5, seed=1)
    assert_close(mechanism(x, x, v).values, mechanism.definition(x, x, v), tolerance=1e-10, what="parallel tokens")


def test_impl_reference_hashes_its_keys_again():
    mechanism, plain = make(num_buckets=4, rounds=2), make(num_buckets=4, rounds=2, impl="reference")
    x, v = randn(2, 2, 20, 6), randn(2, 2, 20, 5, seed=1)
    state, out = plain.initial_state(2, dtype=torch.float64), []
    for piece in torch.arange(20).split([11, 1, 8]):
        answer = plain(*(y[:, :, piece] for y in (x, x, v)), state=state)
        out.append(answer.values)
        state = answer.state
    assert_close(torch.cat(out, 2), mechanism(x, x, v).values, tolerance=1e-12, what="pieces")
    assert set(state.tensors()) == {"k", "v"}
    assert state.nbytes == plain.state_nbytes(2, 20, torch.float64) == 2 * 20 * 2 * (6 + 5) * 8


def test_work_stays_below_every_pair():
    """In buckets of 64, twice the tokens take little more than twice the products, and no tensor is n x n."""
    flops = []
    for n in (1024, 2048, 4096):
        mechanism = make(count=1, key_dim=32, max_length=n, dtype=torch.float32)
        assert mechanism.buckets == n // 64
        x, v = randn(1, 1, n, 32, dtype=torch.float32), randn(1, 1, n, 5, seed=1, dtype=torch.float32)
        found = count(lambda: mechanism(x, x, v))  # noqa: B023
        flops.append(found.flops)
    assert flops[1] < 2.5 * flops[0]
    assert flops[2] < 2.5 * flops[1]
    assert flops[2] < 0.4 * 2 * n * n * (32 + 5)
    assert found.largest < n * n / 8


def test_refusals():
    with pytest.raises(ConfigError, match="give num_buckets"):
        make()
    for options in ({"num_buckets": 3}, {"rounds": 0, "num_buckets": 2}, {"bucket_size": 0, "max_length": 8}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make(**options)
    for options in ({"form": "paper"}, {"impl": "flex"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make(num_buckets=2, **options)
    assert make(max_length=1000, bucket_size=64).buckets == 16
    for impl in ("auto", "reference"):
        with pytest.raises(LimitError, match="max_length=8"):
            make(max_length=8, impl=impl)(*(randn(1, 2, 9, width) for width in (6, 6, 5)))
