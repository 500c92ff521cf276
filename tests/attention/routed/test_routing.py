"""`routing` against SPEC D4: double loops over the tokens of a cluster, what centroids learn."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import ConfigError, Heads, LimitError
from regard.testing.compare import assert_close, assert_identical

SIZES = ("count", "kv_count", "key_dim", "value_dim", "max_length", "seed")


def make(causal: bool = True, *, dtype: torch.dtype = torch.float64, **options: object):
    sizes = {name: options.pop(name) for name in SIZES if name in options}
    heads = {"count": 2, "key_dim": 6, "value_dim": 5, "seed": 3, **sizes}
    return regard.build("routing", Heads(causal=causal, **heads), **options).to(dtype).eval()


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(n: int, *, batch: int = 1, share: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    k = randn(batch, 2, n, 6, seed=n)
    return k if share else randn(batch, 2, n, 6, seed=n + 1000), k, randn(batch, 2, n, 5, seed=n + 2000)


def standard(vector: list[float]) -> list[float]:
    """Less its mean, over its standard deviation."""
    mean = sum(vector) / len(vector)
    spread = math.sqrt(sum((a - mean) ** 2 for a in vector) / len(vector) + 1e-5)
    return [(a - mean) / spread for a in vector]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(query: list[float], keys: dict[int, list[float]], v: Tensor) -> Tensor:
    odds = {j: math.exp(dot(query, key) / math.sqrt(len(query))) for j, key in keys.items()}
    return sum((odd / sum(odds.values()) * v[j] for j, odd in odds.items()), torch.zeros(v.shape[-1], dtype=v.dtype))


def loops(mechanism, q: Tensor, k: Tensor, v: Tensor, causal: bool, share: bool) -> Tensor:
    """Softmax over the keys with the query's nearest centroid, one query at a time."""
    out, past = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64), k.shape[2] - q.shape[2] if causal else 0
    for h in range(q.shape[1]):
        centroids = mechanism.centroids[h].tolist()
        queries, keys = ([standard(x) for x in side[0, h].tolist()] for side in (q, k))
        of = [
            [max(range(len(centroids)), key=lambda c: dot(x, centroids[c])) for x in side] for side in (queries, keys)
        ]
        for i, query in enumerate(queries):
            slot = i + past
            met = {j: key for j, key in enumerate(keys) if of[1][j] == of[0][i] and (j <= slot or not causal)}
            others = {j: key for j, key in met.items() if j != slot} if share else met
            if share and not others:
                others = {slot: keys[slot]}
            out[0, h, i] = softmax(query, others, v[0, h])
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("clusters", [1, 4])
def test_softmax_within_the_cluster_of_the_query(causal, share, clusters):
    mechanism = make(causal, num_clusters=clusters, share=share)
    for n in range(1, 41):
        q, k, v = inputs(n, share=share)
        expected = loops(mechanism, q, k, v, causal, share)
        if expected.any():
            assert_close(mechanism(q, k, v).values, expected, tolerance=1e-10, what=f"{n} tokens")
        else:
            assert not mechanism(q, k, v).values.any()


@pytest.mark.parametrize("causal", [True, False])
def test_one_cluster_is_dense_attention_on_normalised_vectors(causal):
    n = 25
    q, k, v = inputs(n, share=False)
    a, b = (torch.nn.functional.layer_norm(x, (6,)) for x in (q, k))
    logits = a @ b.mT / math.sqrt(6)
    if causal:
        logits = logits.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
    mechanism = make(causal, num_clusters=1, share=False)
    assert_close(mechanism(q, k, v).values, logits.softmax(-1) @ v, tolerance=1e-10, what="softmax")


def padding_takes_no_place(mechanism):
    """Whatever stands where nothing is."""
    q, k, v = inputs(14)
    want = mechanism(q, k, v).values
    keep = torch.ones(1, 20, dtype=torch.bool)
    keep[:, [0, 3, 8, 9, 15, 19]] = False
    long = [torch.full((1, 2, 20, x.shape[3]), 50.0, dtype=x.dtype) for x in (k, v)]
    for into, x in zip(long, (k, v), strict=True):
        into[:, :, keep[0]] = x
    got = mechanism(long[0], *long, key_mask=keep).values
    assert_close(got[:, :, keep[0]], want, tolerance=1e-12, what="without padding")
    assert not got[:, :, ~keep[0]].any()


def test_unit_centroids_make_the_nearest_by_product_the_nearest_by_distance():
    mechanism = make(num_clusters=7)
    x = randn(1, 2, 300, 6)
    a, points = torch.nn.functional.layer_norm(x, (6,)), mechanism.centroids * 6**0.5
    assert_close(mechanism.centroids.norm(dim=-1), torch.ones(2, 7).double(), tolerance=1e-6, what="norms")
    by_distance = (a[0, :, :, None] - points[:, None]).square().sum(-1).argmin(-1)
    assert torch.equal(mechanism.decisions(x, x).keys[0].long(), by_distance)


def test_clusters_of_the_longest_sequence():
    assert make(max_length=400).clusters == 20
    assert make(max_length=400, num_clusters=3).clusters == 3
    with pytest.raises(ConfigError, match=r"num_clusters, or Heads\.max_length"):
        make()
    with pytest.raises(LimitError):
        make(max_length=10)(*inputs(11))
    with pytest.raises(ConfigError, match="num_clusters"):
        make(num_clusters=0)
    more = make(num_clusters=9)  # more clusters than tokens
    q, k, v = inputs(4)
    assert_close(more(q, k, v).values, loops(more, q, k, v, True, True), tolerance=1e-10, what="9 clusters, 4 tokens")


def test_learning_one_step_by_hand():
    for share in (True, False):
        learns_one_step(share, decay=0.8)


def learns_one_step(share: bool, decay: float) -> None:
    mechanism = make(num_clusters=4, share=share, decay=decay).train()
    q, k, v = inputs(30, batch=2, share=share)
    keep = torch.rand(2, 30, generator=torch.Generator().manual_seed(0)) > 0.3
    q, k = (x.masked_fill(~keep[:, None, :, None], math.nan) for x in (q, k))
    before = mechanism.centroids.clone()
    loss = mechanism(q, k, v, key_mask=keep).losses["commitment"]
    assert_identical(mechanism.centroids, before, what="the centroids until the next call")
    mechanism(*inputs(7, share=share))
    total = 0.0
    for h in range(2):
        centroids, moved = before[h].tolist(), before[h].clone()
        for side in (q, k):
            members: list[list[list[float]]] = [[] for _ in centroids]
            for vector in side[:, h][keep].tolist():
                x = standard(vector)
                c = max(range(4), key=lambda c: dot(x, centroids[c]))
                members[c].append(x)
                total += sum((a - 6**0.5 * b) ** 2 for a, b in zip(x, centroids[c], strict=True)) / 2
            for c, gathered in enumerate(members):
                if gathered:
                    mean = torch.tensor(gathered).double().mean(0) / 6**0.5
                    moved[c] += (1 - decay) / 2 * (mean - before[h, c])
        expected = moved / moved.norm(dim=-1, keepdim=True)
        assert_close(mechanism.centroids[h], expected, tolerance=1e-6, what=f"head {h}")
    assert abs(loss.item() - total / keep.sum().item()) < 1e-10 * total


def test_commitment_counts_each_head_of_keys_once():
    mechanism = make(False, count=4, kv_count=2, num_clusters=3, share=False).train()
    counts_each_head_of_keys_once(mechanism, mechanism.centroids)


def counts_each_head_of_keys_once(mechanism, all_centroids):
    q, k, v = randn(2, 4, 12, 6), randn(2, 2, 12, 6, seed=1), randn(2, 2, 12, 5, seed=2)
    total = 0.0
    for side in (q, k):
        for h in range(side.shape[1]):
            centroids = all_centroids[h * 2 // side.shape[1]].tolist()
            for vector in side[:, h].flatten(0, 1).tolist():
                x = standard(vector)
                c = max(range(3), key=lambda c: dot(x, centroids[c]))
                total += sum((a - 6**0.5 * b) ** 2 for a, b in zip(x, centroids[c], strict=True)) / 2
    assert abs(mechanism(q, k, v).losses["commitment"].item() - total / 24) < 1e-10 * total


def test_near_centroids_take_a_token_alike_alone_and_in_a_sequence():
    """Of width 2 every normalised vector lies on one line, so that every centroid is near another."""
    mechanism = make(num_clusters=12, key_dim=2, dtype=torch.float32)
    q, v = randn(1, 2, 60, 2, dtype=torch.float32), randn(1, 2, 60, 5, seed=1, dtype=torch.float32)
    state, steps = mechanism.initial_state(1), []
    for at in range(60):
        token = q[:, :, at : at + 1]
        answer = mechanism(token, token, v[:, :, at : at + 1], state=state)
        state, steps = answer.state, [*steps, answer.values]
    assert_close(torch.cat(steps, 2), mechanism(q, q, v).values, tolerance=1e-5, what="token by token")


def test_a_cluster_that_gathered_nothing_keeps_its_place():
    mechanism = make(num_clusters=40).train()
    before = mechanism.centroids.clone()
    x = inputs(5)
    used = torch.nn.functional.one_hot(mechanism.decisions(x[0], x[1]).keys[0].long(), 40).amax(1).bool()
    for _ in range(2):
        mechanism(*x)
    assert_identical(mechanism.centroids[~used], before[~used], what="what was not used")
    assert (mechanism.centroids[used] != before[used]).any(-1).all()


def test_only_training_learns_and_not_in_a_recomputed_pass():
    mechanism = make(num_clusters=4)
    x = [y.requires_grad_() for y in inputs(30)]
    before = mechanism.centroids.clone()
    assert mechanism(*x).losses == {}
    assert not mechanism.seen.any()
    mechanism.train()
    out = torch.utils.checkpoint.checkpoint(lambda *x: mechanism(*x).values, *x, use_reentrant=False)
    assert_identical(mechanism.centroids, before, what="the first training call")
    out.sum().backward()
    assert_identical(mechanism.centroids, before, what="the pass that is run again")
    mechanism(*x)
    assert not torch.equal(mechanism.centroids, before)


def test_learning_finds_the_clusters():
    """Four directions with little noise: every token ends beside its centroid."""
    centres = randn(1, 2, 4, 6, seed=9)
    k = centres.repeat_interleave(30, 2) + 0.05 * randn(1, 2, 120, 6)
    mechanism = make(num_clusters=4, decay=0.5).train()
    mechanism.centroids.copy_(
        torch.nn.functional.normalize(torch.nn.functional.layer_norm(k[0, :, ::30], (6,)), dim=-1)
    )
    mechanism.centroids += 0.2 * randn(2, 4, 6, seed=4)
    losses = [mechanism(k, k, randn(1, 2, 120, 5)).losses["commitment"].item() for _ in range(12)]
    assert losses[-1] < 0.3 * losses[1]
    found = mechanism.decisions(k, k).keys.view(2, 4, 30)
    assert (found == found[..., :1]).all()
    assert all(len(set(head[:, 0].tolist())) == 4 for head in found)


def test_far_needle_that_a_window_cannot_see():
    """A key like the query, 196 tokens before it: routing weighs it most, wherever it stands."""
    mechanism = make(count=1, key_dim=16, value_dim=200, num_clusters=30)
    k = randn(1, 1, 200, 16)
    k[:, :, -1] = k[:, :, 3] * 1.5
    weights = mechanism(k, k, torch.eye(200).double()[None, None]).values[0, 0, -1]
    assert weights.argmax() == 3
    assert weights[3] > 0.1


def test_a_narrow_type_learns_as_a_wide_one():
    """Steps of 1e-4 of a centroid, which bfloat16 would round away, add up."""
    x = randn(4, 2, 32, 6, seed=3, dtype=torch.float32) + 2 * randn(1, 2, 1, 6, seed=4, dtype=torch.float32)
    v, moved = randn(4, 2, 32, 5, dtype=torch.float32), []
    for dtype in (torch.float32, torch.bfloat16):
        mechanism = make(num_clusters=2, decay=0.9998, dtype=dtype).train()
        before = mechanism.centroids.float().clone()
        for _ in range(300):
            mechanism(x.to(dtype), x.to(dtype), v.to(dtype))
        moved.append((mechanism.centroids.float() - before).norm(dim=-1))
    assert moved[0].max() > 0.02
    assert (moved[0] - moved[1]).abs().max() < 0.2 * moved[0].max()


def test_a_token_of_nan_teaches_nothing():
    mechanism = make(num_clusters=3, decay=0.5).train()
    x, v = randn(1, 2, 20, 6), randn(1, 2, 20, 5)
    bad = x.clone()
    bad[:, :, 7] = math.nan
    mechanism(bad, bad, v)
    for _ in range(2):
        assert mechanism(x, x, v).losses["commitment"].isfinite()
    assert mechanism.centroids.isfinite().all()
