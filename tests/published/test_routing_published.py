"""Published routing against SPEC D4: loops over what each centroid takes, its leak, its loss and its centroids."""

import pytest
import torch
from torch import Tensor

import regard
from regard import Heads, LimitError, UnsupportedError
from regard.testing.compare import assert_close, assert_identical
from regard_lab.published.routing_published import RoutingPublished
from tests.attention.routed import test_routing
from tests.attention.routed.test_routing import (
    SIZES,
    counts_each_head_of_keys_once,
    dot,
    inputs,
    padding_takes_no_place,
    randn,
    softmax,
    standard,
)

SPEC = "regard_lab.published.routing_published:RoutingPublished"


def make(causal: bool = True, **options: object) -> RoutingPublished:
    sizes = {name: options.pop(name) for name in SIZES if name in options}
    heads = {"count": 2, "key_dim": 6, "value_dim": 5, "seed": 3, **sizes}
    return RoutingPublished(Heads(causal=causal, **heads), **options).double().eval()


def by_hand(mechanism, q: Tensor, k: Tensor, v: Tensor, causal: bool, share: bool) -> Tensor:
    """Every centroid takes the ceil(n / c) nearest queries and keys; the mean of its answers over who took a query."""
    n, out = q.shape[2], torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for h in range(q.shape[1]):
        centroids = mechanism.routing.centroids[h].tolist()
        queries, keys = ([standard(x) for x in side[0, h].tolist()] for side in (q, k))
        size, times = -(-n // len(centroids)), [0] * n
        for centroid in centroids:
            asking, answering = (
                sorted(range(n), key=lambda i: (-dot(side[i], centroid), i))[:size] for side in (queries, keys)
            )
            for i in asking:
                times[i] += 1
                met = {j: keys[j] for j in answering if j <= i or not causal}
                others = {j: key for j, key in met.items() if j != i} if share else met
                if others or met:
                    out[0, h, i] += softmax(queries[i], others or met, v[0, h])
        for i, taken in enumerate(times):
            out[0, h, i] /= max(1, taken)
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_each_centroid_takes_the_nearest(causal, share):
    mechanism = make(causal, num_clusters=3, share=share)
    for n in (*range(1, 9), 20, 31, 40):
        q, k, v = inputs(n, share=share)
        expected = by_hand(mechanism, q, k, v, causal, share)
        assert_close(mechanism(q, k, v).values, expected, tolerance=1e-10, what=f"{n} tokens")


@pytest.mark.parametrize("causal", [True, False])
def test_one_cluster_is_that_of_the_library(causal):
    q, k, v = inputs(25, share=False)
    published, strict = (of(causal, num_clusters=1, share=False) for of in (make, test_routing.make))
    assert_close(published(q, k, v).values, strict(q, k, v).values, tolerance=1e-12, what="one cluster")


@pytest.mark.parametrize("share", [True, False])
def test_it_leaks_and_the_mechanism_of_the_library_does_not(share):
    """A new last token that is nearest to a centroid takes the place of an earlier one."""
    published, strict = (of(num_clusters=2, share=share) for of in (make, test_routing.make))
    q, k, v = inputs(20, share=share)
    other = k.clone()
    other[:, :, -1] = strict.centroids[:, 0] * 3
    asks = other if share else q
    found = [
        (mechanism(q, k, v).values - mechanism(asks, other, v).values)[:, :, :-1].abs().max()
        for mechanism in (published, strict)
    ]
    assert found[0] > 0.01
    assert found[1] == 0
    assert regard.describe(f"{SPEC}(share={share})").leaks


def test_padding_takes_no_place():
    """Of 14 real tokens each of 3 centroids takes 5."""
    padding_takes_no_place(make(False, num_clusters=3))


def test_gradients_are_those_of_the_definition():
    mechanism = make(num_clusters=3, share=False)
    leaves = [x.requires_grad_() for x in inputs(22, share=False)]
    way = randn(1, 2, 22, 5, seed=1)
    got, want = (
        torch.autograd.grad((f(*leaves) * way).sum(), leaves)
        for f in (lambda *x: mechanism(*x).values, lambda *x: mechanism.definition(*x))
    )
    for name, one, other in zip("qkv", got, want, strict=True):
        assert_close(one, other, tolerance=1e-10, what=f"gradient of {name}")


def test_commitment_counts_each_head_of_keys_once():
    mechanism = make(False, count=4, kv_count=2, num_clusters=3, share=False).train()
    counts_each_head_of_keys_once(mechanism, mechanism.routing.centroids)


def test_centroids_learn_as_those_of_the_library():
    published, strict = (of(num_clusters=4, decay=0.8).train() for of in (make, test_routing.make))
    for n in (30, 7, 20):
        losses = [mechanism(*inputs(n)).losses["commitment"] for mechanism in (published, strict)]
        assert_identical(*losses, what=f"the loss of {n} tokens")
        assert_identical(published.seen, strict.seen, what="what processes add up")
    assert_identical(published.routing.centroids, strict.centroids, what="the centroids")
    assert published.row_sums == strict.row_sums


def test_decisions_replayed():
    mechanism = make(num_clusters=4, share=False)
    q, k, v = inputs(24, share=False)
    queries, keys = mechanism.decisions(q, k)
    own = mechanism.definition(q, k, v)
    assert_identical(mechanism.definition(q, k, v, decisions=(queries, keys)), own, what="its own decisions")
    assert (mechanism.definition(q, k, v, decisions=(queries, keys.roll(1, -1))) - own).abs().max() > 0.1


def test_refusals():
    with pytest.raises(UnsupportedError, match="whole sequence"):
        make(num_clusters=2).initial_state(1)
    with pytest.raises(UnsupportedError, match="whole sequence"):
        make(False, num_clusters=2, share=False)(randn(1, 2, 3, 6), randn(1, 2, 9, 6), randn(1, 2, 9, 5))
    with pytest.raises(LimitError, match="max_length=10"):
        make(max_length=10)(*inputs(11))
