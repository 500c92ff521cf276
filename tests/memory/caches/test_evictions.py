"""Policies that drop slots, against loops written from their definition, row by row, for every kind of mechanism."""

import math
from contextlib import suppress

import pytest
import torch

import regard
from regard import Heads, build, catalog
from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard.memory.caches import build_cache
from regard.memory.caches.random import lots

LENGTH, BUDGET, SINKS = 40, 9, 4
HEADS = Heads(count=4, kv_count=2, key_dim=5, value_dim=3, causal=True)
POLICIES = {
    "streaming": f"streaming(budget={BUDGET})",
    "h2o": f"h2o(budget={BUDGET})",
    "key_norm": f"key_norm(budget={BUDGET}, recent=3)",
}


def draw(length, batch=2, heads=HEADS, seed=0):
    of = torch.Generator().manual_seed(seed)
    widths = (heads.count, heads.query_width), (heads.kv_heads, heads.key_dim), (heads.kv_heads, heads.value_width)
    return tuple(torch.randn(batch, count, length, width, generator=of, dtype=torch.float64) for count, width in widths)


def lowest(policy, kept, weight, norm):
    """Which of the kept slots goes next; a tie is decided by the order of `kept`, which is ascending."""
    half = (BUDGET + 1) // 2
    if policy == "streaming":
        return kept[SINKS]
    if policy == "h2o":
        return min(kept[: len(kept) - half], key=lambda j: weight[j])
    return max(kept[: len(kept) - 3], key=lambda j: norm[j])


def loops(policy, q, k, v, mask):
    """Values of every real query, and which slots every head has kept in the end, with their summed weights."""
    batch, heads, length, _ = q.shape
    group, values, ends = heads // k.shape[1], torch.zeros(batch, heads, length, v.shape[3], dtype=torch.float64), {}
    logits = (torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(group, 1)) / 5**0.5).tolist()
    norms = k.norm(dim=-1).tolist()
    for row in range(batch):
        for head in range(k.shape[1]):
            kept, weight = [], {}
            for i in range(length):
                if not mask[row, i]:
                    continue
                kept.append(i)
                weight[i] = 0.0
                for of in range(head * group, (head + 1) * group):
                    odds = [math.exp(logits[row][of][i][j]) for j in kept]
                    total = sum(odds)
                    for j, odd in zip(kept, odds, strict=True):
                        weight[j] += odd / total
                    values[row, of, i] = torch.tensor(odds, dtype=v.dtype) / total @ v[row, head, kept]
                while len(kept) > BUDGET:
                    kept.remove(lowest(policy, kept, weight, norms[row][head]))
            ends[row, head] = kept, [weight[j] for j in kept]
    return values, ends


def hidden(batch, length):
    """Padding on the left of one row, in the midst and on the right of the other."""
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, :6] = mask[1, 11:14] = mask[1, 25] = mask[1, 36:] = False
    return mask


def started(policy, heads=HEADS, spec="softmax"):
    mechanism = build(spec, heads).double().eval()
    return mechanism, build_cache(policy, mechanism).eval()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_equal_to_the_loops(policy, padded):
    q, k, v = draw(LENGTH)
    if policy == "h2o":
        k[:, :, ::3] *= 3  # so that some are given much and others next to nothing
    if policy == "key_norm":
        far = 1 + torch.stack([torch.randperm(LENGTH, generator=torch.Generator().manual_seed(i)) for i in range(4)])
        k *= far.view(2, 2, LENGTH, 1) / 20 / k.norm(dim=-1, keepdim=True)  # no two are equal to 12 bits
    mask = hidden(2, LENGTH) if padded else torch.ones(2, LENGTH, dtype=torch.bool)
    wanted, ends = loops(policy, q, k, v, mask)
    mechanism, cache = started(POLICIES[policy])
    for n in range(1, LENGTH + 1):
        parts = [x[:, :, :n] for x in (q, k, v)]
        state = cache.initial_state(mechanism, 2, dtype=torch.float64)
        got = cache(mechanism, *parts, key_mask=mask[:, :n] if padded else None, state=state)
        real = mask[:, None, :n, None]
        torch.testing.assert_close(got.values * real, wanted[:, :, :n] * real, rtol=1e-11, atol=1e-11)
    slot = got.state.kept.view()["slot"]
    for (row, head), (kept, weights) in ends.items():
        assert slot[row, head].tolist() == kept
        assert len(kept) == BUDGET
        if policy == "h2o":
            found = got.state.kept.view()["weight"][row, head].tolist()
            assert found == pytest.approx(weights, rel=1e-5)


@torch.no_grad()
def test_of_equal_slots_the_earlier_goes():
    q, k, v = draw(LENGTH)
    for policy, x in (("key_norm", k.sign()), ("h2o", torch.zeros_like(k))):
        mechanism, cache = started(f"{policy}(budget=8, recent=2)")
        state = cache(mechanism, q, x, v, state=cache.initial_state(mechanism, 2, dtype=torch.float64)).state
        kept = state.kept.view()["slot"][0, 0].tolist()
        # Under equal keys every slot is given the same by every row, so that older ones have more and stay.
        assert kept == ([*range(32, 40)] if policy == "key_norm" else [*range(6), 38, 39])


@torch.no_grad()
@pytest.mark.parametrize(("norms", "kept"), [((1.0, 1.001, 9.0), [0, 2]), ((1.0, 1.00001, 9.0), [1, 2])])
def test_norms_are_compared_to_12_bits(norms, kept):
    _, k, v = draw(3, 1)
    k *= torch.tensor(norms)[:, None] / k.norm(dim=-1, keepdim=True)
    mechanism, cache = started("key_norm(budget=2, recent=1)")
    state = cache(
        mechanism, k.repeat_interleave(2, 1), k, v, state=cache.initial_state(mechanism, 1, dtype=k.dtype)
    ).state
    assert state.kept.view()["slot"][0].tolist() == [kept, kept]


def test_lots_are_drawn_for_seeds_heads_and_slots():
    drawn = [lots(0, 0, 2, 0), lots(1, 0, 2, 0), lots(0, 1, 2, 0), lots(0, 0, 2, 1)]
    assert len({float(x) for table in drawn for x in table.flatten()[[0, 1, -1]]}) == 12


def accepted(policy, name, heads):
    """The mechanism, under the last options of those that the suite checks, and the policy; None: it is refused."""
    cls, _ = catalog.resolve(name)
    for options in reversed(cls.samples):
        with suppress(UnsupportedError):
            mechanism = cls(heads, **options).double().eval()
            return mechanism, build_cache(policy, mechanism).eval()
    return None


def served():
    """(mechanism, policy): every one that keeps a list of slots."""
    for name in regard.names(supports=["causal", "state"]):
        kv = None if regard.describe(name).shares_query_key else 2
        heads = Heads(count=4, kv_count=kv, key_dim=6, causal=True, max_length=64)
        for policy in ("streaming", "h2o", "key_norm", "random"):
            if accepted(f"{policy}(budget=8)", name, heads):
                yield name, policy, heads


SERVED = list(served())
HARDEST = {name: policy for name, policy, _ in sorted(SERVED, key=lambda each: each[1] == "h2o")}
"""mechanism -> a policy that reads weights, if it serves"""
TRIED = [each for each in SERVED if each[0] in ("softmax", "shaw") or HARDEST[each[0]] == each[1]]
REFUSED = [name for name in regard.names(supports=["causal", "state"]) if name not in {name for name, *_ in SERVED}]


def test_whoever_keeps_a_list_of_slots_is_served():
    """By the layout of the state: some of every family that keeps keys, among them those that depend on distance."""
    assert {"softmax", "additive", "shaw", "distance_aware", "lsh", "quantized", "atrous"} <= {n for n, *_ in SERVED}
    assert {"linear", "performer", "longformer", "forgetting", "bigbird", "vector_quantized"} <= set(REFUSED)
    assert all((name, "random") in {(n, p) for n, p, _ in SERVED} for name, *_ in SERVED)


@pytest.mark.parametrize("name", REFUSED)
def test_whoever_keeps_no_list_of_slots_is_refused(name):
    heads = Heads(count=2, key_dim=6, causal=True, max_length=64)
    with pytest.raises(UnsupportedError, match=r"drops slots from a state, and .* Mechanisms that keep every key"):
        build_cache("random", build(name, heads))


def test_others_are_refused_by_name():
    heads = Heads(count=2, key_dim=6, causal=True, max_length=64)
    for spec, of, why in (
        ("softmax:1 + cosine:1", heads, "a mix over heads"),
        ("local(window=4)", heads, "drops slots itself"),
        ("softmax", Heads(count=2, key_dim=5), "no state to decode with"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            build_cache("random", build(spec, of))
    with pytest.raises(UnsupportedError, match="keeps something else"):
        build_cache("key_norm", build("cosine", heads))
    with pytest.raises(UnsupportedError, match="none to add"):
        build_cache("h2o", build("quantized", heads))
    with pytest.raises(ConfigError, match="above sinks=4, got 4"):
        build_cache("streaming(budget=4)", build("softmax", heads))
    for name in ("h2o", "key_norm", "random"):
        for budget, recent in ((6, 9), (5, 5), (1, 1)):
            with pytest.raises(ConfigError, match=f"cache {name}: budget must be above recent={recent}, got {budget}"):
                build_cache(f"{name}(budget={budget}, recent={recent})", build("softmax", heads))
        build_cache(f"{name}(budget=6, recent=5)", build("softmax", heads))
        build_cache(f"{name}(budget=1)", build("softmax", heads))
    with pytest.raises(ConfigError, match="unknown cache 'h3o': did you mean 'h2o'"):
        build_cache("h3o", build("softmax", heads))


@torch.no_grad()
@pytest.mark.parametrize(("name", "policy", "heads"), TRIED, ids=lambda x: x if isinstance(x, str) else "")
def test_every_split_is_the_whole_and_a_large_budget_is_no_policy(name, policy, heads):
    q, k, v = draw(14, 1, heads)
    if regard.describe(name).shares_query_key:
        q = k
    mechanism, cache = accepted(f"{policy}(budget=6)", name, heads)
    whole = cache(mechanism, q, k, v).values
    for sizes in ([1] * 14, [3, 4, 7], [6, 8], [12, 2]):
        state, first, parts = cache.initial_state(mechanism, 1, dtype=torch.float64), 0, []
        for size in sizes:
            got = cache(mechanism, *(x[:, :, first : first + size] for x in (q, k, v)), state=state)
            state, first = got.state, first + size
            parts.append(got.values)
        torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-9, atol=1e-11)
        assert state.length == 14
        assert state.nbytes == cache.state_nbytes(mechanism, 1, 14, torch.float64)
    assert not torch.allclose(whole, mechanism(q, k, v).values)
    large = accepted(f"{policy}(budget=14)", name, heads)[1]
    ours, theirs = (large.initial_state(mechanism, 1, dtype=q.dtype), mechanism.initial_state(1, dtype=q.dtype))
    for size in (slice(0, 9), *(slice(at, at + 1) for at in range(9, 14))):
        part = [x[:, :, size] for x in (q, k, v)]
        got, wanted = large(mechanism, *part, state=ours), mechanism(*part, state=theirs)
        assert torch.equal(got.values, wanted.values)
        ours, theirs = got.state, wanted.state


@torch.no_grad()
@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in SERVED))
def test_slots_stay_where_they_were(name):
    """Sinks and a window, as rows of the mechanism itself under a mask of its keys."""
    heads = next(heads for of, _, heads in SERVED if of == name)
    q, k, v = draw(14, 2, heads)
    if regard.describe(name).shares_query_key:
        q = k
    mechanism, cache = accepted("streaming(budget=6, sinks=2)", name, heads)
    whole = cache(mechanism, q, k, v).values
    for i in range(14):
        j = torch.arange(i + 1)
        seen = ((j < 2) | (j > i - 5)).expand(2, -1)
        row = mechanism(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], key_mask=seen).values
        torch.testing.assert_close(whole[:, :, i : i + 1], row, rtol=1e-9, atol=1e-11)


def test_what_a_policy_does_not_serve():
    mechanism, cache = started("streaming(budget=8)")
    q, k, v = draw(5)
    with pytest.raises(ShapeError, match="goes on from a state of its own"):
        cache(mechanism, q, k, v, state=mechanism.initial_state(2, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="marks"):
        cache(mechanism, q, k, v, marks=torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(UnsupportedError, match="for evaluation"):
        cache.train()(mechanism, q, k, v)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_queries_that_do_not_count_weigh_nothing(padded):
    """As if they had given nothing, in any split; and a call in which none counts has no part in what is kept."""
    mechanism, cache = started("h2o(budget=8, recent=3)")
    q, k, v = draw(30)
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, :4] = not padded
    counted = torch.rand(2, 30, generator=torch.Generator().manual_seed(2)) < 0.4
    counted[:, 20:24] = False
    found = []
    for sizes in ([30], [1] * 30, [20, 4, 6]):
        state, first = cache.initial_state(mechanism, 2, dtype=torch.float64), 0
        for size in sizes:
            at = slice(first, first + size)
            queries = q[:, :, at] if counted[:, at].any() else q[:, :, :0]
            given = {"key_mask": mask[:, at] if padded else None, "state": state, "counted": counted[:, at]}
            state, first = cache(mechanism, queries, k[:, :, at], v[:, :, at], **given).state, first + size
        found.append(state)
    for name, kept in found[0].tensors().items():
        for other in found[1:]:
            torch.testing.assert_close(other.tensors()[name], kept, rtol=1e-5, atol=1e-7)
    everything = cache(mechanism, q, k, v, key_mask=mask, state=cache.initial_state(mechanism, 2, dtype=q.dtype)).state
    assert not torch.equal(everything.kept.view()["slot"], found[0].kept.view()["slot"])
    weight = cache(
        mechanism,
        *(x[:, :, :6] for x in (q, k, v)),
        key_mask=mask[:, :6] if padded else None,
        counted=counted[:, :6],
        state=cache.initial_state(mechanism, 2, dtype=q.dtype),
    ).state.kept.view()["weight"]  # of two query heads each, while nothing was dropped
    real = counted[:, :6] & mask[:, :6]
    torch.testing.assert_close(weight.sum((1, 2)), real.sum(1).float() * HEADS.count, rtol=1e-5, atol=1e-5)
