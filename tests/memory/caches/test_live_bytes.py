"""What a reduced state really holds in memory, tensors that lie behind views included, while a text is read."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from regard import AttentionLayer
from regard.memory.caches import Cache, compressing, names
from regard.testing.counting import Count

BUDGET, DIM = 24, 16
SPECS = {
    "streaming": "streaming(budget=24)",
    "h2o": "h2o(budget=24)",
    "key_norm": "key_norm(budget=24)",
    "random": "random(budget=24)",
    "snapkv": "snapkv(budget=24, window=4)",
    "quantized": "quantized(recent=16, group=8)",
}
EVICTIONS = [name for name in SPECS if name != "quantized"]


def layer_of(spec: str) -> AttentionLayer:
    layer = AttentionLayer(DIM, "softmax", heads=4, kv_heads=2, position="rotary", causal=True).eval()
    layer.cache = layer.cache_of(spec).eval()
    return layer


def reached(thing: object) -> Iterator[Tensor]:
    """Every tensor that a state holds, by whatever name."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for each in thing.values():
            yield from reached(each)
    elif isinstance(thing, list | tuple):
        for each in thing:
            yield from reached(each)
    elif type(thing).__module__.startswith("regard") and hasattr(thing, "__dict__"):
        yield from reached(vars(thing))


def live_bytes(state: object) -> int:
    """Of the storages behind all of them, each once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in reached(state)}
    return sum(storages.values())


def read(spec: str, length: int, piece: int) -> tuple[int, int, int, int]:
    """Most bytes of a state behind any call after the budget is full, the formula's for one slot more than the budget,
    most numbers alive at a time in any call, and the bytes that the last state counts."""
    layer, most = layer_of(spec), 0
    cache = layer.cache
    assert isinstance(cache, Cache)
    x = torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(0))
    choosing = compressing(layer) if spec.startswith("snapkv") else nullcontext()
    with torch.no_grad(), choosing:
        state = layer(x[:, :BUDGET], state=layer.initial_state(1)).state
        state = layer(x[:, BUDGET : BUDGET + 1], state=state).state
        parts = x[:, BUDGET + 1 :].split(piece, 1)
        with Count() as counted:
            for part in parts:
                state = layer(part.clone(), state=state).state  # a view would count the whole text
                most = max(most, live_bytes(state))
    assert state.length == length
    bound = cache.state_nbytes(layer.attention, 1, BUDGET, torch.float32) * (BUDGET + 1) // BUDGET
    return most, bound, counted.peak, state.nbytes


def test_every_policy_is_read_here():
    assert set(SPECS) == set(names())


@pytest.mark.parametrize("piece", [1, 40])
@pytest.mark.parametrize("name", EVICTIONS)
def test_a_state_holds_its_budget_and_room_for_one_slot(name, piece):
    """However long the text: by its storages, by the formula, and in the peak of a call."""
    short, long = (read(SPECS[name], length, piece) for length in (BUDGET + 1 + 2 * piece, BUDGET + 1 + 80 + 2 * piece))
    assert long == short
    most, bound, _, counted = long
    assert most <= bound
    assert counted == bound * BUDGET // (BUDGET + 1)


def test_codes_hold_what_the_formula_says_and_the_room_that_tapes_double_into():
    """It keeps every slot, so its bytes grow, by few bits."""
    layer = layer_of(SPECS["quantized"])
    cache = layer.cache
    assert isinstance(cache, Cache)
    exact = AttentionLayer(DIM, "softmax", heads=4, kv_heads=2, causal=True).attention
    with torch.no_grad():
        for length in (300, 600):
            x = torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(0))
            state = layer.initial_state(1)
            for part in x.split(60, 1):
                state = layer(part.clone(), state=state).state
            wanted = cache.state_nbytes(layer.attention, 1, length, torch.float32)
            assert state.nbytes == wanted < exact.state_nbytes(1, length, torch.float32)
            assert live_bytes(state) <= 2.1 * wanted + exact.state_nbytes(1, 64, torch.float32)


def test_a_view_of_more_is_counted():
    whole = torch.zeros(100)
    assert live_bytes({"a": whole[:1], "b": (whole[1:2], whole.view(10, 10))}) == 400
