"""Presets of linear attention: a state that does not grow, every option in a model, and what they refuse."""

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError, UnsupportedError
from regard.models import Classifier, Encoder, LanguageModel, MaskedLanguageModel, ModelConfig, presets
from regard.models.generate import generate

TOKENS = 31
TINY = {"dim": 16, "layers": 2, "heads": 2, "mlp_dim": 24, "vocab_size": TOKENS, "seed": 3}
CONSTANT = [
    ("linear_transformer", {}),
    ("linear_transformer", {"feature_map": "taylor"}),
    ("performer", {"num_features": 16}),
    ("performer", {"num_features": 16, "feature_map": "hyperbolic"}),
    ("rfa", {"num_features": 16}),
    ("rfa", {"num_features": 16, "gate": False, "feature_map": "arc_cosine"}),
    ("hybrid_retrieval", {"combine": "window", "window": 5}),
    ("hybrid_retrieval", {"combine": "gate", "window": 5, "feature_map": "taylor"}),
    ("transformer_vq", {"num_codes": 6, "block_size": 8, "mlp_dim": None}),
    ("gpt", {"attention": ("efficient",), "attention_dropout": 0.0, "max_length": 1100}),
]


def decoder(name: str, **options: object) -> LanguageModel:
    return LanguageModel(presets.build(name, **{**TINY, **options})).double().eval()


def tokens_of(batch: int, length: int) -> Tensor:
    return torch.randint(0, TOKENS, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "options"), CONSTANT)
@torch.no_grad()
def test_the_state_does_not_grow_over_a_thousand_tokens(name: str, options: dict[str, object]) -> None:
    model, tokens = decoder(name, **options), tokens_of(1, 1000)
    assert all(mechanism.info.state == "constant" for mechanism in model.mechanisms)
    state, parts, sizes = model.initial_state(1), [], []
    for piece in tokens.split([8, *[1] * 20, 470, *[1] * 20, 472, *[1] * 10], 1):
        got = model(piece, state=state)
        assert got.state is not None
        state = got.state
        parts.append(got.logits)
        sizes.append(state.nbytes)
    assert state.length == 1000
    assert len(set(sizes)) == 1
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens).logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), [*CONSTANT, ("hybrid_retrieval", {})])
@torch.no_grad()
def test_generation_equals_the_full_forward(name: str, options: dict[str, object]) -> None:
    """Each token is the arg max of a whole forward over everything before it."""
    model = decoder(name, **options)
    for weight in model.parameters():  # larger weights: paths that move instead of repeating a token
        weight.mul_(2.5)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8, 9]]
    rows = generate(model, prompts, max_new_tokens=12, temperature=0)
    for prompt, row in zip(prompts, rows, strict=True):
        for at in range(12):
            read = torch.tensor([[*prompt, *row.tokens[:at].tolist()]])
            assert model(read).logits[0, -1].argmax() == row.tokens[at]
    assert len({token for row in rows for token in row.tokens.tolist()}) > 1


def test_only_the_exact_layers_of_a_hybrid_grow() -> None:
    model, tokens = decoder("hybrid_retrieval", layers=4), tokens_of(1, 60)
    assert model.config.specs == ("linear", "softmax", "linear", "softmax")
    short = model(tokens[:, :20], state=model.initial_state(1)).state
    assert short is not None
    long = model(tokens[:, 20:], state=short).state
    assert long is not None
    sizes = [
        (before.nbytes, after.nbytes)
        for before, after in zip(*(state["layers"].parts.values() for state in (short, long)), strict=True)
    ]
    assert [after / before for before, after in sizes] == [1, 3, 1, 3]


def test_where_the_exact_layers_of_a_hybrid_are() -> None:
    three = presets.build("hybrid_retrieval", layers=7, period=3, linear="performer(num_features=8)").specs
    assert [spec == "softmax" for spec in three] == [False, False, True, False, False, True, False]
    assert set(three) == {"softmax", "performer(num_features=8)"}
    for combine, way in (("window", "share"), ("gate", "gate")):
        (spec,) = presets.build("hybrid_retrieval", combine=combine, window=9).attention
        assert spec == f"local_linear(window=9, feature_map='elu_plus_one', combine={way!r})"


@pytest.mark.parametrize("spec", ["linear", "performer(num_features=16)", "rfa(num_features=16)", "efficient"])
@torch.no_grad()
def test_an_encoder_of_every_kind(spec: str) -> None:
    """As the presets' texts say; what is padded has no influence."""
    config = presets.build("bert", **{**TINY, "attention": (spec,), "attention_dropout": 0.0, "max_length": 12})
    model, tokens = MaskedLanguageModel(Encoder(config)).double().eval(), tokens_of(2, 9)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    padded = model(tokens, key_mask=mask).logits[1, :6]
    torch.testing.assert_close(padded, model(tokens[1:, :6]).logits[0], rtol=0, atol=1e-10)
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % TOKENS
    assert not torch.equal(model(changed).logits[0, 0], model(tokens).logits[0, 0])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("efficient_attention", {}),
        ("efficient_attention", {"normaliser": "scaling"}),
        ("lara", {"num_landmarks": 4}),
        ("lara", {"num_landmarks": 4, "coefficient": 0.5, "pool": "mean"}),
    ],
)
def test_options_of_the_encoders_reach_their_layers(name: str, options: dict[str, object]) -> None:
    tiny = {key: value for key, value in TINY.items() if key != "vocab_size"} | {"input_dim": 12, "max_length": 20}
    config = presets.build(name, **tiny, **options)
    model = Classifier(Encoder(config), classes=3).eval()
    for mechanism in model.encoder.mechanisms:
        assert all(getattr(mechanism, key) == value for key, value in options.items())
    patches = torch.randn(2, 16, 12, generator=torch.Generator().manual_seed(0))
    assert model(patches).logits.shape == (2, 3)


def test_lara_has_no_decoder() -> None:
    with pytest.raises(UnsupportedError, match=r"lara does not support causal=True.*landmarks"):
        LanguageModel(ModelConfig(attention=presets.build("lara").attention))


def test_published_numbers_of_weights() -> None:
    """A tiny DeiT without a cls vector: 5.4 million, and the landmarks' own maps of 64 to 64 in every head's layer."""
    config = presets.build("lara")
    encoder = Encoder(config)
    own = sum(weight.numel() for mechanism in encoder.mechanisms for weight in mechanism.parameters())
    assert own == 12 * 2 * (64 * 64 + 3 * 64)
    layer = 4 * (192 * 192 + 192) + 2 * 192 * 768 + 768 + 192 + 4 * 192
    assert encoder.parameter_count() - own == 192 * 192 + 192 + 784 * 192 + 12 * layer + 2 * 192
    assert presets.build("rfa").mlp_width == 2048
    assert presets.build("rfa").key_dim == presets.build("lara").key_dim == 64
    assert presets.build("linear_transformer").key_dim == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"combine": "layer"}, "cannot combine by 'layer': did you mean 'layers'"),
        ({"period": 1}, "period from 2 to the number of layers, 8"),
        ({"layers": 3, "period": 4}, "period from 2 to the number of layers, 3"),
        ({"window": 64}, "window belongs to combine='window' or 'gate', got window=64, combine='layers'"),
        ({"feature_map": "relu"}, "feature_map belongs to combine='window' or 'gate'"),
        ({"combine": "gate", "linear": "rfa"}, "linear belongs to combine='layers', got linear='rfa', combine='gate'"),
        ({"combine": "window", "period": 2}, "period belongs to combine='layers'"),
    ],
)
def test_hybrids_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        presets.build("hybrid_retrieval", **options)
