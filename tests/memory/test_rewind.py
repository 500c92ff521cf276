"""A decoder with a memory gives back tokens of its running segment; what was written stays written."""

import pytest
import torch

from regard import AttentionLayer
from regard.core.errors import ShapeError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.generate import generate

SEGMENT = 6


def model_of(memory, attention="softmax", **options):
    shape = {"dim": 16, "layers": 2, "heads": 2, "vocab_size": 6, "max_length": SEGMENT, "seed": 5, **options}
    return LanguageModel(ModelConfig(memory=memory, attention=(attention,), position="rotary", **shape)).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_the_running_segment_is_given_back_and_no_more(masked):
    """What goes on ends that segment and the one behind it, which reads what was written."""
    model, tokens = model_of("recent(length=8)"), torch.arange(27)[None] ** 2 % 6
    keep = torch.ones(1, 27, dtype=torch.bool)
    keep[0, [2, 7, 13]] = not masked
    state = model(tokens[:, :16], key_mask=keep[:, :16], state=model.initial_state(1)).state
    assert (state.length, state.running) == (16, 4)
    wanted = model(tokens, key_mask=keep).logits
    for count in (1, 4):
        back = state.rewind(count)
        assert (back.length, back.running) == (16 - count, 4 - count)
        rest = slice(16 - count, None)
        got = model(tokens[:, rest], key_mask=keep[:, rest], state=back).logits
        torch.testing.assert_close(got, wanted[:, rest])
    with pytest.raises(UnsupportedError, match="running segment has 4 tokens and cannot give back 5"):
        state.rewind(5)
    with pytest.raises(ShapeError, match="a state of 16 tokens cannot give back 17"):
        state.rewind(17)
    assert state.rewind(0).length == 16


@pytest.mark.parametrize("memory", ["recent(length=8)", "memorizing(pairs=9, top=4)"])
def test_guesses_that_are_checked_change_no_token(memory):
    model, prompt = model_of(memory), ([0, 1, 2, 3, 1, 4] * 4)[:20]
    plain = generate(model, [prompt], max_new_tokens=20, temperature=0)[0]
    looked = generate(model, [prompt], max_new_tokens=20, temperature=0, lookup=3)[0]
    assert looked.tokens.tolist() == plain.tokens.tolist()


@torch.no_grad()
@pytest.mark.parametrize(
    ("memory", "read"),
    [
        ("recent(length=8)", 0),
        ("compressive(length=8, compressed=4, rate=2, function=mean, loss=none)", 0),
        ("compressive(length=8, compressed=4, rate=2, function=most_used)", SEGMENT),
        ("memorizing(pairs=20, top=4, recent=8)", SEGMENT),
    ],
)
def test_a_position_is_projected_once(memory, read):
    """By each of the three projections, though it is attended to and written; a segment that ends later, if at all."""
    layer = AttentionLayer(16, "softmax", heads=2, memory=memory, position="rotary", causal=True).eval()
    assert layer.memory is not None
    x, state, counts = torch.randn(1, SEGMENT, 16), layer.memory.initial_state(1), dict.fromkeys("qkv", 0)

    def count(name):
        def add(module, inputs, output):
            counts[name] += inputs[0].shape[1]

        return add

    for _ in range(5):
        state = layer(x, memory=state).memory
    own = layer.projections
    for name, module in zip("qkv", (own.query, own.key, own.value), strict=True):
        assert module is not None
        module.register_forward_hook(count(name))
    written = layer(x, memory=state).memory
    past = layer.memory.leading(state)[0].shape[1]
    if "most_used" not in memory:  # which asks for the keys of what it holds
        assert counts == {"q": SEGMENT, "k": SEGMENT + past, "v": SEGMENT + past}
    waiting = layer(x, memory=state, state=layer.initial_state(1)).memory
    counts.update(dict.fromkeys(counts, 0))
    after = layer.next_segment(waiting)
    assert counts["q"] == read
    for name, each in after.tensors().items():
        torch.testing.assert_close(each, written.tensors()[name])


def test_what_is_forgotten_in_the_midst_of_a_segment_is_not_real():
    memory = AttentionLayer(16, "softmax", heads=2, memory="recent(length=8)", position="rotary", causal=True).memory
    assert memory is not None
    state = memory.initial_state(2).wait(torch.randn(2, 3, 16), None)
    forgotten = memory.forget(state, torch.tensor([True, False]))
    assert forgotten["waiting_mask"].tolist() == [[False] * 3, [True] * 3]
    assert torch.equal(forgotten["waiting"][1], state["waiting"][1])
    assert not forgotten["waiting"][0].any()
