"""The separable convolution of a Universal Transformer, by double loops; its state, its masks, and what is refused."""

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError
from regard.models import Encoder, EncoderConfig, LanguageModel, ModelConfig
from regard.models.depth._transition import Transition
from regard.models.generate import generate
from regard.testing.compare import assert_close
from tests.models.moved import moved

TOKENS = torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(1))
SHAPE = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 20, "mlp": "none", "position": "none", "seed": 3}


def model_of(depth: str, **options: object) -> LanguageModel:
    return moved(LanguageModel(ModelConfig(**{**SHAPE, "norm": "post", **options}, depth=depth)))  # type: ignore[arg-type]


def separable(x: list[list[float]], taps: Tensor, matrix: Tensor, bias: Tensor, *, ahead: int) -> list[list[float]]:
    """Output t sums taps[s] x[t + ahead - s] of every channel, and then channels by the matrix."""
    rows = []
    for t in range(len(x)):
        mixed = [0.0] * len(x[0])
        for back in range(len(taps)):
            if 0 <= t + ahead - back < len(x):
                mixed = [m + float(taps[back, c]) * x[t + ahead - back][c] for c, m in enumerate(mixed)]
        rows.append(
            [float(bias[o]) + sum(float(matrix[o, c]) * m for c, m in enumerate(mixed)) for o in range(len(bias))]
        )
    return rows


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("causal", [True, False])
def test_by_double_loops(causal: bool, norm: str) -> None:
    config = ModelConfig(**{**SHAPE, "dim": 4}, norm=norm)  # type: ignore[arg-type]
    layer = moved(Transition(config, 6, seed=1)).eval()
    x = torch.randn(1, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        got, _ = layer(x, key_mask=None, causal=causal, state=None)
        inner = (layer.norm(x) if norm == "pre" else x)[0].tolist()
        inner = separable(inner, layer.first.taps, layer.up.weight, layer.up.bias, ahead=0 if causal else 1)
        inner = [[max(0.0, value) for value in row] for row in inner]
        inner = separable(inner, layer.second.taps, layer.down.weight, layer.down.bias, ahead=0 if causal else 2)
        wanted = x + torch.tensor(inner, dtype=torch.float64)
        wanted = wanted if norm == "pre" else layer.norm(wanted)
    assert (len(layer.first.taps), len(layer.second.taps)) == (3, 5)
    assert_close(got, wanted, tolerance=1e-12, what="hidden states")


def test_every_step_is_a_block_and_then_the_convolutions() -> None:
    model = model_of("universal(steps=3, halting=False, coordinates=none, transition=convolution)", layers=2)
    with torch.no_grad():
        x = model.embeddings(TOKENS)
        for _ in range(3):
            for block, behind in zip(model.blocks, model.depth.transitions, strict=True):
                x, _ = behind(block(x).hidden, key_mask=None, causal=True, state=None)
        got = model(TOKENS)
    assert_close(got.logits, model.logits(x), tolerance=1e-12, what="logits")


def test_padding_on_either_side_changes_nothing() -> None:
    model = model_of("universal(steps=4, transition=convolution)")
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8]]
    together = generate(model, prompts, max_new_tokens=6, temperature=0)
    for prompt, row in zip(prompts, together, strict=True):
        (alone,) = generate(model, [prompt], max_new_tokens=6, temperature=0)
        assert torch.equal(row.tokens, alone.tokens)
    depth = "universal(transition=convolution)"
    encoder = moved(Encoder(EncoderConfig(**{**SHAPE, "depth": depth}))).eval()  # type: ignore[arg-type]
    keep = torch.ones(3, 12, dtype=torch.bool)
    keep[1, 7:] = False
    got, alone = encoder(TOKENS, key_mask=keep).hidden[1:2, :7], encoder(TOKENS[1:2, :7]).hidden
    assert_close(got, alone, tolerance=1e-12, what="a row without its padding")
    later = TOKENS.clone()
    later[:, 8] = (later[:, 8] + 1) % 20
    assert (encoder(later).hidden[:, 6] != encoder(TOKENS).hidden[:, 6]).any(), "an encoder looks ahead"


def test_its_weights_learn_and_what_has_no_use_is_refused() -> None:
    model = model_of("universal(steps=3, transition=convolution, width=10)").train()
    model(TOKENS).logits.square().mean().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.depth.transitions.parameters())
    assert model.depth.transitions[0].up.out_features == 10
    assert model_of("universal(transition=convolution)").depth.transitions[0].up.out_features == 64
    with pytest.raises(ConfigError, match="stands in the place of the MLP; set mlp='none'"):
        model_of("universal(transition=convolution)", mlp="gelu")
    with pytest.raises(ConfigError, match="leave it out"):
        model_of("universal(width=10)", mlp="gelu")
