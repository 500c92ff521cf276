"""Heads against their formulas, written out."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from regard.core.attention import generator
from regard.core.errors import ConfigError
from regard.models.encoder import Encoded, Encoder
from regard.models.encoder_config import EncoderConfig
from regard.models.heads import Classifier, MaskedLanguageModel, pooled

TINY = {"vocab_size": 23, "dim": 16, "heads": 2, "layers": 1, "max_length": 32, "mlp_dim": 24}


def tokens_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(seed))


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    """In float64, with every weight random."""
    noise = generator(3)
    model = model.double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=noise, dtype=torch.float64))
    return model


def test_masked_tokens() -> None:
    model = drawn(MaskedLanguageModel(Encoder(EncoderConfig(**TINY, norm="post", norm_eps=1e-12))))
    tokens, weights = tokens_of(2, 7), model.state_dict()
    x = model.encoder(tokens).hidden @ weights["transform.weight"].T + weights["transform.bias"]
    x = layer_norm(gelu(x), (16,), weights["norm.weight"], weights["norm.bias"], 1e-12)
    expected = x @ weights["encoder.embeddings.table.weight"].T + weights["bias"]
    torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooler", [False, True])
def test_classes_from_the_first_position(pooler: bool) -> None:
    model = drawn(Classifier(Encoder(EncoderConfig(**TINY, pooler=pooler)), classes=4))
    tokens, weights = tokens_of(3, 7), model.state_dict()
    x = model.encoder(tokens).hidden[:, 0]
    if pooler:
        x = torch.tanh(x @ weights["pooler.weight"].T + weights["pooler.bias"])
    expected = x @ weights["output.weight"].T + weights["output.bias"]
    torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=1e-12)


def test_the_mean_is_over_real_positions() -> None:
    hidden = torch.randn(3, 4, 2, generator=generator(0), dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True, False, True, False], [False] * 4])
    dirty = hidden.masked_fill(~mask[..., None], float("nan"))
    got = pooled(Encoded(dirty, mask, {}), "mean")
    expected = torch.stack([hidden[0].mean(0), (hidden[1, 0] + hidden[1, 2]) / 2, torch.zeros(2)])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_padding_changes_no_class(pooling: str) -> None:
    model = drawn(Classifier(Encoder(EncoderConfig(**TINY, pooling=pooling)), classes=4))
    tokens, mask = tokens_of(2, 9), torch.arange(9) < torch.tensor([9, 5])[:, None]
    got = model(tokens, key_mask=mask).logits[1]
    torch.testing.assert_close(got, model(tokens[1:, :5]).logits[0], rtol=0, atol=1e-10)


def test_misuse_is_refused() -> None:
    vectors = Encoder(EncoderConfig(**{**TINY, "vocab_size": 0, "input_dim": 4}))
    with pytest.raises(ConfigError, match="over tokens"):
        MaskedLanguageModel(vectors)
    with pytest.raises(ConfigError, match="Classifier: a head has at least 1 output, got 0"):
        Classifier(vectors, classes=0)
