"""States of other memories, and of the same one with other options, wherever a state is read."""

from collections.abc import Callable

import pytest
import torch

from regard.core.errors import ShapeError
from regard.layer import AttentionLayer
from regard.models import LanguageModel, ModelConfig

SPECS = (
    "recent(length=6)",
    "recent(length=12)",
    "compressive(length=6, compressed=4, rate=3)",
    "compressive(length=6, compressed=8, rate=3)",
    "compressive(length=6, compressed=4, rate=3, function=mean)",
    "memorizing(pairs=10, top=4)",
    "memorizing(pairs=20, top=4)",
    "memorizing(pairs=10, top=3)",
    "memorizing(pairs=10, top=4, recent=6)",
)


def model_of(spec: str) -> LanguageModel:
    shape = {"dim": 8, "heads": 2, "layers": 1, "vocab_size": 20, "max_length": 6}
    return LanguageModel(ModelConfig(memory=spec, **shape)).eval()


def tokens_of(length: int = 45) -> torch.Tensor:
    return torch.randint(20, (2, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("segments", [True, False])
def test_a_decoder_goes_on_from_its_own_states_alone(segments):
    """Of every memory, full or not, picked, from a file and not."""
    length = 45 if segments else 3  # the memories are full, or as they begin
    models = [model_of(spec) for spec in SPECS]
    states = []
    for model in models:
        state = model(tokens_of(length), state=model.initial_state(2, segments=segments)).state
        states.append(state.select(torch.tensor([1, 0])).detach())
    for at, model in enumerate(models):
        for other, state in enumerate(states):
            if at == other:
                again = model.initial_state(2, segments=segments).load(state.dump())
                wanted, got = (model(tokens_of(9), state=each).logits for each in (state, again))
                assert torch.equal(wanted, got)
                continue
            with pytest.raises(ShapeError, match="this is the state of memory"):
                model(tokens_of(9), state=state)
            with pytest.raises(ShapeError, match="this is the state of memory"):
                model.initial_state(2, segments=segments).load(state.dump())


def layers(one: str, other: str) -> tuple[AttentionLayer, AttentionLayer]:
    return tuple(AttentionLayer(8, "softmax", heads=2, memory=spec, causal=True).eval() for spec in (one, other))


@torch.no_grad()
@pytest.mark.parametrize("read", [
    lambda layer, x, memory: layer(x, memory=memory),
    lambda layer, x, memory: layer(x, memory=memory, state=layer.initial_state(2)),
    lambda layer, x, memory: layer.next_segment(memory.wait(x, None)),
], ids=["a segment", "a token", "the end of a segment"])  # fmt: skip
def test_a_layer_names_what_it_was_given(read: Callable[..., object]):
    small, large = layers("recent(length=4)", "recent(length=8)")
    x = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))
    memory = small(x, memory=small.memory.initial_state(2)).memory
    read(small, x, memory)
    with pytest.raises(ShapeError, match=r"state of memory recent\(length=4\).*must be of memory recent\(length=8\)"):
        read(large, x, memory)
