"""Every preset trains a step, evaluates, saves and loads, and streams to the parallel form."""

import pytest
import torch
from safetensors.torch import load, save
from torch.nn.functional import cross_entropy

from regard.errors import ConfigError
from regard.models import LanguageModel, presets
from regard.models.generate import generate

NAMES = presets.names()
TINY = {"vocab_size": 31, "dim": 32, "layers": 2, "heads": 4, "max_length": 40, "mlp_dim": 48, "seed": 3}


def tokens_of(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 31, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_published_shape_is_a_function_without_arguments(name: str) -> None:
    assert presets.function(name)() == presets.build(name)


@pytest.mark.parametrize("name", NAMES)
def test_trains_evaluates_saves_and_loads(name: str) -> None:
    model = LanguageModel(presets.build(name, **TINY, dropout=0.0)).train()
    tokens = tokens_of(4, 17)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        return cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())

    before = loss()
    before.backward()
    optimizer.step()
    assert loss().item() < before.item()
    model.eval()
    logits = model(tokens).logits
    assert torch.equal(logits, model(tokens).logits)
    fresh = LanguageModel(presets.build(name, **{**TINY, "seed": 4})).eval()
    assert not torch.equal(fresh(tokens).logits, logits)
    fresh.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(fresh(tokens).logits, logits)


@pytest.mark.parametrize("name", NAMES)
def test_streams_to_the_parallel_form_and_generates(name: str) -> None:
    model = LanguageModel(presets.build(name, **TINY)).double().eval()
    tokens = tokens_of(2, 24)
    state, parts = model.initial_state(2), []
    for piece in tokens.split([10, 1, 1, 12], 1):
        logits, state, _ = model(piece, state=state)
        assert state is not None
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens).logits, rtol=0, atol=1e-10)
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    streamed, full = (
        generate(model, prompts, max_new_tokens=10, temperature=0, use_state=use_state) for use_state in (True, False)
    )
    assert [row.tokens.tolist() for row in streamed] == [row.tokens.tolist() for row in full]


def test_overrides_reach_derived_fields_and_any_other_field() -> None:
    assert presets.build("llama", dim=768, heads=12).mlp_width == 2048
    assert presets.build("llama", dim=768, heads=12, mlp_dim=100).mlp_width == 100
    config = presets.build("gpt", attention=("linear",), attention_dropout=0.0, short_convolution=2)
    assert (config.attention, config.short_convolution, config.dim) == (("linear",), 2, 768)


def test_unknown_presets_and_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'gtp': did you mean 'gpt'"):
        presets.build("gtp")
    with pytest.raises(ConfigError, match="no field 'layer': did you mean 'layers'"):
        presets.build("gpt", layer=2)
    with pytest.raises(ConfigError, match="heads must divide dim"):
        presets.build("gpt", heads=7)
