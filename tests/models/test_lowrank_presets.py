"""Presets of Synthesizers and of low-rank attention: published shapes, options in a model, and what they refuse."""

import pytest
import torch

from regard.core.errors import ConfigError, UnsupportedError
from regard.models import Encoder, EncoderDecoder, LanguageModel, MaskedLanguageModel, ModelConfig, presets

TINY = {"dim": 16, "layers": 2, "heads": 2, "vocab_size": 31, "max_length": 20, "dropout": 0.0, "seed": 3}


def tokens_of(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 31, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "parts",
    [
        ("random",),
        ("factorized_random",),
        ("dense",),
        ("factorized_dense",),
        ("dense", "dot_product"),
        ("random", "dense"),
    ],
)
def test_every_synthesizer_of_the_paper_in_both_halves(parts: tuple[str, ...]) -> None:
    model = EncoderDecoder(presets.build("synthesizer", **TINY, mlp_dim=24, parts=parts)).double().eval()
    name = f"{parts[0]}_synthesizer" if len(parts) == 1 else "mixture_synthesizer"
    for mechanism in (*model.mechanisms, *model.encoder.mechanisms):
        assert type(mechanism).__name__.lower() == name.replace("_", "")
        assert len(parts) == 1 or mechanism.parts == parts
    assert {type(mechanism).__name__ for mechanism in model.cross_mechanisms} == {"Softmax"}
    source, target = tokens_of(2, 9), tokens_of(2, 7)
    changed = target.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 31
    torch.testing.assert_close(
        model(source, changed).logits[:, :5], model(source, target).logits[:, :5], rtol=0, atol=1e-12
    )


def test_a_fixed_random_matrix_is_a_setting_of_the_mechanism() -> None:
    fixed = ("random_synthesizer(trainable=False)",)
    model = EncoderDecoder(presets.build("synthesizer", **TINY, attention=fixed, encoder_attention=fixed))
    matrices = [name for name, _ in model.named_buffers() if name.endswith(".matrix")]
    assert len(matrices) == 4
    assert not [name for name, _ in model.named_parameters() if name.endswith(".matrix")]


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({}, True),
        ({"projection": "convolution"}, True),
        ({"share": "key_value"}, False),
        ({"projection": "max"}, False),
    ],
)
def test_linformer_options_reach_its_layers(options: dict[str, object], shared: bool) -> None:
    config = presets.build("linformer", **TINY, rank=4, **options)
    one, two = Encoder(config).mechanisms
    for mechanism in (one, two):
        assert mechanism.rank == 4
        assert all(getattr(mechanism, key) == value for key, value in options.items())
    assert (one.mixtures is two.mixtures) is shared


def test_linformer_has_a_rank_for_each_layer() -> None:
    config = presets.build("linformer", **{**TINY, "layers": 3}, rank=(8, 5, 8))
    first, second, third = (mechanism.mixtures for mechanism in Encoder(config).mechanisms)
    assert [mixtures.key.shape[1] for mixtures in (first, second)] == [8, 5]
    assert first is third


def test_nystromformer_options_reach_its_layers() -> None:
    config = presets.build("nystromformer", **TINY, num_landmarks=3, pinv="exact", convolution=None)
    for mechanism in Encoder(config).mechanisms:
        assert (mechanism.num_landmarks, mechanism.pinv, mechanism.convolution) == (3, "exact", None)
    assert config.attention_dropout == 0.0


def test_published_numbers_of_weights() -> None:
    """Beside those of the model around it: one matrix, filters, or a matrix and two shares in each self-attention."""
    own = {
        "linformer": 256 * 512,
        "nystromformer": 12 * 12 * 33,
    }
    for name, count in own.items():
        encoder = Encoder(presets.build(name, layers=12, vocab_size=7))
        names = {id(weight): weight for mechanism in encoder.mechanisms for weight in mechanism.parameters()}
        assert sum(weight.numel() for weight in names.values()) == count
    model = EncoderDecoder(presets.build("synthesizer", vocab_size=7, max_length=64))
    mechanisms = (*model.mechanisms, *model.encoder.mechanisms)
    assert sum(w.numel() for each in mechanisms for w in each.parameters()) == 12 * (8 * 64 * 64 + 2)


@pytest.mark.parametrize(("name", "why"), [("linformer", "mixes all positions"), ("nystromformer", "landmarks")])
def test_encoders_have_no_decoder(name: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=f"does not support causal=True.*{why}"):
        LanguageModel(ModelConfig(attention=presets.build(name).attention))


@pytest.mark.parametrize("name", ["linformer", "nystromformer"])
def test_an_encoder_learns_eight_masked_sequences_by_heart(name: str) -> None:
    small = {"linformer": {"rank": 6}, "nystromformer": {"num_landmarks": 6, "convolution": 3}}[name]
    model = MaskedLanguageModel(Encoder(presets.build(name, **{**TINY, "dim": 32}, **small))).train()
    tokens = tokens_of(8, 17)
    tokens[:, 0] = torch.arange(8)
    hidden = tokens.clone()
    hidden[:, 1:] = 30
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
    for _ in range(150):
        loss = torch.nn.functional.cross_entropy(model(hidden).logits.flatten(0, 1), tokens.flatten())
        if loss.item() < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    assert torch.equal(model(hidden).logits.argmax(-1), tokens)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("synthesizer", {"parts": ("randm",)}, "synthesizer has no part 'randm': did you mean 'random'"),
        ("synthesizer", {"parts": ("dot_product",)}, "without them: transformer"),
        ("synthesizer", {"parts": ()}, "without them: transformer"),
        ("linformer", {"rank": (8, 4)}, "one for each of 12 layers; got 2"),
    ],
)
def test_nonsense_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        presets.build(name, **options)
