"""A choice at a point that the caller names, against loops from the definition."""

import math

import pytest
import torch

from regard import Heads, build
from regard.core.errors import ConfigError, UnsupportedError
from regard.memory.caches import build_cache, compressing
from regard.models import LanguageModel, ModelConfig

HEADS = Heads(count=4, kv_count=2, key_dim=5, value_dim=3, causal=True)
BUDGET, WINDOW, POOL = 11, 4, 5
SPEC = f"snapkv(budget={BUDGET}, window={WINDOW}, pool={POOL})"


def draw(length, batch=2, seed=0):
    of = torch.Generator().manual_seed(seed)
    widths = (4, 5), (2, 5), (2, 3)
    return tuple(torch.randn(batch, n, length, width, generator=of, dtype=torch.float64) for n, width in widths)


def chosen(q, k, row, head, real):
    """The slots that stay of one head: what the last queries gave, averaged over neighbours; ties drop the earlier."""
    n, kept = len(real), [j for j in range(len(real)) if real[j]]
    own, given = kept[-WINDOW:], dict.fromkeys(range(n), 0.0)
    for i in (j for j in kept if j >= n - WINDOW):
        for of in (2 * head, 2 * head + 1):
            seen = [j for j in kept if j <= i]
            odds = [math.exp(float(q[row, of, i] @ k[row, head, j]) / 5**0.5) for j in seen]
            for j, odd in zip(seen, odds, strict=True):
                given[j] += odd / sum(odds)
    others = [j for j in kept if j not in own]
    mean = {j: sum(given[r] for r in range(j - 2, j + 3) if r in others) / POOL for j in others}
    best = sorted(others, key=lambda j: (mean[j], j))[-(BUDGET - WINDOW) :]
    return sorted(best + own)


def started(spec=SPEC, mechanism="softmax"):
    made = build(mechanism, HEADS).double().eval()
    return made, build_cache(spec, made).eval()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_equal_to_the_loops(padded):
    q, k, v = draw(40)
    mask = torch.ones(2, 40, dtype=torch.bool)
    if padded:
        mask[0, :7] = mask[1, 22] = mask[1, 38:] = False
    for n in (1, 11, 12, 13, 24, 40):
        mechanism, cache = started()
        cache.due = True
        state = cache.initial_state(mechanism, 2, dtype=torch.float64)
        got = cache(mechanism, *(x[:, :, :n] for x in (q, k, v)), key_mask=mask[:, :n] if padded else None, state=state)
        exact = mechanism(*(x[:, :, :n] for x in (q, k, v)), key_mask=mask[:, :n]).values
        torch.testing.assert_close(got.values, exact)  # the prompt itself is read in full
        slot = got.state.kept.view()["slot"]
        for row in range(2):
            for head in range(2):
                wanted = chosen(q, k, row, head, mask[row, :n]) if n > BUDGET else range(n)
                assert [j for j in slot[row, head].tolist() if j >= 0] == [j for j in wanted if mask[row, j]]


@torch.no_grad()
@pytest.mark.parametrize("name", ["softmax", "shaw"])
def test_the_caller_names_the_point(name):
    """However the text before it was split; without it nothing is dropped, and behind it everything is appended."""
    mechanism, cache = started(mechanism=name)
    q, k, v = draw(40)
    empty = cache.initial_state(mechanism, 2, dtype=torch.float64)
    theirs = mechanism.initial_state(2, dtype=torch.float64)
    whole = cache(mechanism, q, k, v, state=empty)
    assert torch.equal(whole.values, mechanism(q, k, v, state=theirs).values)
    ends = []
    for split in (5, 20, 26):
        first = cache(mechanism, *(x[:, :, :split] for x in (q, k, v)), state=empty).state
        cache.due = True
        state = cache(mechanism, *(x[:, :, split:30] for x in (q, k, v)), state=first).state
        cache.due = False
        assert state.kept.kept == BUDGET
        assert state.nbytes == cache.state_nbytes(mechanism, 2, 30, torch.float64)
        after = cache(mechanism, *(x[:, :, 30:] for x in (q, k, v)), state=state)
        assert after.state.kept.kept == BUDGET + 10
        ends.append(after.values)
    torch.testing.assert_close(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2])
    kept = state.kept.view()["slot"].long()
    i = 35
    seen = torch.cat([kept, torch.arange(30, i + 1).expand(2, 2, -1)], 2)
    for row in range(2):
        for head in range(2):
            mask = torch.zeros(1, i + 1, dtype=torch.bool).scatter(1, seen[row, head][None], True)
            part = q[row : row + 1, :, i : i + 1], k[row : row + 1, :, : i + 1], v[row : row + 1, :, : i + 1]
            wanted = mechanism(*part, key_mask=mask).values[0, 2 * head : 2 * head + 2, 0]
            torch.testing.assert_close(ends[0][row, 2 * head : 2 * head + 2, i - 30], wanted)


def test_without_a_window_half_of_a_small_budget_chooses():
    """So that others may stay, whatever the budget."""
    for budget, window in ((1, 1), (4, 2), (33, 17), (63, 32), (64, 32), (2048, 32)):
        assert started(f"snapkv(budget={budget})")[1].choosing == window
    assert started("snapkv(budget=33, window=33)")[1].choosing == 33


@torch.no_grad()
def test_of_a_model():
    model = LanguageModel(ModelConfig(dim=32, heads=4, kv_heads=2, layers=2, position="rotary")).eval()
    model.reduce_cache(SPEC)
    tokens = torch.randint(256, (1, 30), generator=torch.Generator().manual_seed(0))
    kept = model(tokens, state=model.initial_state(1)).state
    assert kept["layers"]["0"].kept.kept == 30
    with compressing(model):
        state = model(tokens, state=model.initial_state(1)).state
    assert [part.kept.kept for part in state["layers"].parts.values()] == [BUDGET, BUDGET]
    assert model(tokens[:, :3], state=state).state["layers"]["1"].kept.kept == BUDGET + 3


@torch.no_grad()
@pytest.mark.parametrize("name", ["softmax", "shaw"])
def test_without_a_query_that_chooses_the_newest_stay(name):
    """Of keys alone, of tokens that left before the layer, and of no token behind a state that is too long."""
    mechanism, cache = started(mechanism=name)
    q, k, v = draw(30)
    before = cache(mechanism, q, k, v, state=cache.initial_state(mechanism, 2, dtype=torch.float64)).state
    cache.due = True
    nobody, begin = torch.zeros(2, 30, dtype=torch.bool), cache.initial_state(mechanism, 2, dtype=torch.float64)
    for queries in (q[:, :, :0], q):
        state = cache(mechanism, queries, k, v, counted=nobody, state=begin).state
        assert (state.kept.view()["slot"] == torch.arange(30 - BUDGET, 30)).all()
    chosen = cache(mechanism, q, k, v, state=begin).state
    choosing = (torch.arange(30) >= 30 - WINDOW).expand(2, -1)
    same = cache(mechanism, q, k, v, counted=choosing, state=begin).state
    assert torch.equal(same.kept.view()["slot"], chosen.kept.view()["slot"]), "other tokens choose nothing anyway"
    assert not torch.equal(same.kept.view()["slot"], state.kept.view()["slot"])
    got = cache(mechanism, *(x[:, :, :0] for x in (q, k, v)), state=before)
    assert got.values.shape == (2, 4, 0, 3)
    assert (got.state.kept.view()["slot"] == torch.arange(30 - BUDGET, 30)).all()
    state = cache(mechanism, *(x[:, :, :5] for x in (q, k, v)), counted=nobody[:, :5], state=got.state).state
    assert (state.kept.view()["slot"] == torch.arange(35 - BUDGET, 35)).all()


def test_what_it_does_not_serve():
    for options, why in (("budget=3, window=4", "at least window=4, got 3"), ("pool=4", "pool must be odd")):
        with pytest.raises(ConfigError, match=why):
            started(f"snapkv({options})")
    with pytest.raises(UnsupportedError, match="none to add"):
        started(mechanism="quantized")
