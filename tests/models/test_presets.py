"""Every preset trains a step, evaluates, saves and loads; decoders stream to the parallel form and generate."""

import inspect
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.core.errors import ConfigError
from regard.core.option_text import meanings
from regard.integrations.weights import undrawn
from regard.models import (
    Classifier,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModel,
    MaskedLanguageModel,
    ModelConfig,
    presets,
)
from regard.models.beam import beam_search
from regard.models.generate import generate
from regard_lab.retrieval import Datastore, Lookup, Spalm, Text, build

TINY = {"dim": 32, "layers": 2, "heads": 4, "head_dim": 8, "max_length": 40, "mlp_dim": 48, "seed": 3}
TOKENS, WIDTH, CLASSES = 31, 12, 5


def of(kind: type) -> list[str]:
    return [name for name in presets.names() if presets.kind(name) is kind]


DECODERS, ENCODERS, ENCODER_DECODERS = (of(kind) for kind in (ModelConfig, EncoderConfig, EncoderDecoderConfig))


def tokens_of(batch: int, length: int) -> Tensor:
    return torch.randint(0, TOKENS, (batch, length), generator=torch.Generator().manual_seed(1))


@cache
def looked_up() -> tuple[LanguageModel, Datastore]:
    """A decoder and the datastore that it made."""
    model = LanguageModel(ModelConfig(dim=16, heads=2, vocab_size=TOKENS, position="alibi", seed=8)).eval()
    texts = [Text(str(at), row.numpy()) for at, row in enumerate(tokens_of(3, 40))]
    return model, build(model, texts, Path(tempfile.mkdtemp()) / "store", origin={}, length=20)


def small(name: str, **changes: object) -> nn.Module:
    """A small model of the preset, with the head that its inputs call for."""
    reads = {"input_dim": WIDTH} if presets.build(name).vocab_size == 0 else {"vocab_size": TOKENS}
    if getattr(presets.build(name), "targets", None) is not None:
        reads["targets"] = TOKENS
    mlp = {"mlp_dim": None} if presets.build(name).mlp == "none" else {}
    if getattr(presets.build(name), "remembers", False):  # segments that are shorter than what is read, and memories
        sizes = {"memory_length": 4, "compressed_length": 3, "pairs": 7, "top": 3}
        arguments = inspect.signature(presets.function(name)).parameters
        reads |= {"max_length": 5, **{argument: size for argument, size in sizes.items() if argument in arguments}}
    config = presets.build(name, **{**TINY, **mlp, **reads, **changes})
    if isinstance(config, ModelConfig):
        model = LanguageModel(config)
        return Spalm(model, Lookup(*looked_up(), k=config.neighbours)) if config.neighbours else model
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config)
    if config.input_dim or config.pooling == "mean":
        return Classifier(Encoder(config), classes=CLASSES)
    return MaskedLanguageModel(Encoder(config))


def task(model: nn.Module) -> tuple[Callable[[], Tensor], Tensor]:
    """The logits of a small batch, and their targets."""
    if isinstance(model, LanguageModel | Spalm):
        tokens = tokens_of(4, 17)
        return lambda: model(tokens[:, :-1]).logits, tokens[:, 1:]
    if isinstance(model, EncoderDecoder):
        source, targets = tokens_of(4, 9), tokens_of(4, 7)
        return lambda: model(source, model.shift(targets)).logits, targets
    if isinstance(model, MaskedLanguageModel):
        tokens = tokens_of(4, 17)
        return lambda: model(tokens.clone().index_fill_(1, torch.tensor([3, 8]), 0)).logits, tokens
    assert isinstance(model, Classifier)
    draw = torch.Generator().manual_seed(1)
    vectors = model.encoder.config.input_dim > 0
    inputs = torch.randn(4, 9, WIDTH, generator=draw) if vectors else tokens_of(4, 9)
    return lambda: model(inputs).logits, torch.tensor([0, 4, 2, 0])


@pytest.mark.parametrize("name", presets.names())
def test_published_shape_is_a_function_without_arguments(name: str) -> None:
    assert presets.function(name)() == presets.build(name)
    assert isinstance(presets.build(name), presets.kind(name))


PUBLISHED: tuple[tuple[str, dict[str, object], dict[str, object]], ...] = (
    ("adaptive_span", {"max_span": 1024}, {"attention": ("adaptive_span(max_span=1024, ramp=32)",)}),
    ("adaptive_span", {"dynamic": True}, {"attention": ("dynamic_span(max_span=8192, ramp=32)",)}),
    ("alibi", {}, {"position": "alibi", "attention_dropout": 0.3 / 3}),
    ("bart", {}, {"norm": "post", "position_offset": 2, "output_bias": True}),
    ("bert", {}, {"mlp_width": 3072, "token_types": 2, "attention_dropout": 0.1}),
    ("bigbird", {}, {"attention": ("bigbird(block_size=64, num_global=1, num_random=3, form='itc')",)}),
    (
        "blockbert",
        {"heads": 4, "shifted": 1, "dim": 64},
        {"attention": ("blockwise(blocks=2, permutations=((0, 1), (0, 1), (0, 1), (1, 0)))",)},
    ),
    (
        "calm",
        {"threshold": 0.9, "decaying": False},
        {"depth": "early_exit(threshold=0.9, confidence='softmax', exits='aligned', weights='rising')"},
    ),
    (
        "compressive_transformer",
        {"function": "mean"},
        {"memory": "compressive(length=768, compressed=1152, rate=3, function=mean, loss=attention)"},
    ),
    ("da_transformer", {}, {"attention": ("distance_aware",), "position": "none"}),
    (
        "depth_adaptive",
        {"classifier": "multinomial", "penalty": 0.2},
        {"depth": "early_exit(threshold=0.5, confidence='multinomial', exits='aligned', penalty=0.2)"},
    ),
    ("efficient_attention", {}, {"attention": ("efficient(normaliser='softmax')",), "cls_token": True}),
    ("etc", {}, {"attention": ("etc(window=84, max_distance=12, num_global=0)",), "position": "none"}),
    ("flash", {}, {"attention": ("mixed_chunk(chunk_size=256, normaliser='const', toeplitz=True)",)}),
    ("gau", {}, {"attention": ("relu_squared(activation='relu_squared', normaliser='const')",), "block": "gated_unit"}),
    ("gau_alpha", {}, {"attention": ("entropy_scaled(base_length=512)",), "norm_kind": "rms_unscaled"}),
    ("gpt", {}, {"mlp_width": 3072}),
    ("hybrid_retrieval", {"layers": 4}, {"attention": ("linear", "softmax", "linear", "softmax")}),
    (
        "hybrid_retrieval",
        {"layers": 4, "period": 3, "linear": "rfa"},
        {"attention": ("rfa", "rfa", "softmax", "rfa")},
    ),
    (
        "hybrid_retrieval",
        {"combine": "window", "window": 64},
        {"attention": ("local_linear(window=64, feature_map='elu_plus_one', combine='share')",)},
    ),
    (
        "image_transformer",
        {"height": 28, "width": 28, "channels": 1},
        {"vocab_size": 257, "targets": 256, "max_length": 784},
    ),
    ("knn_lm", {}, {"norm": "pre", "attention_dropout": 0.1}),
    ("lara", {}, {"attention": ("lara(num_landmarks=49, coefficient=2.0, pool='mixed')",), "cls_token": False}),
    ("linear_transformer", {}, {"attention": ("linear(feature_map='elu_plus_one')",)}),
    ("linformer", {}, {"attention": ("linformer(rank=256, share='layer', projection='learned')",)}),
    (
        "linformer",
        {"layers": 2, "rank": (128, 64), "projection": "mean"},
        {"attention": tuple(f"linformer(rank={rank}, share='none', projection='mean')" for rank in (128, 64))},
    ),
    ("llama", {}, {"mlp_width": 11008}),
    ("longformer", {}, {"attention": ("longformer(window=256, num_global=1)",), "projections": "global"}),
    (
        "longformer",
        {"layers": 3, "window": 32, "last_window": 512, "num_global": 0},
        {"attention": tuple(f"longformer(window={window}, num_global=0)" for window in (32, 128, 512))},
    ),
    (
        "memorizing_transformer",
        {"layers": 2},
        {"memory": ("recent(length=512)", "memorizing(pairs=8192, top=32, recent=512)")},
    ),
    ("nystromformer", {}, {"attention": ("nystrom(num_landmarks=64, pinv='iterative', convolution=33)",)}),
    ("performer", {"num_features": 64}, {"attention": ("performer(num_features=64, feature_map='positive')",)}),
    (
        "reformer",
        {"layers": 2},
        {"attention": ("local(window=64)", "lsh(rounds=4, bucket_size=64)"), "block": "reversible"},
    ),
    ("rfa", {"gate": False}, {"attention": ("rfa(num_features=128, feature_map='trigonometric', gate=False)",)}),
    ("roberta", {}, {"position_offset": 2, "attention_dropout": 0.1}),
    ("rope", {}, {"position": "rotary(layout=interleaved)"}),
    (
        "routing_transformer",
        {"layers": 2, "routing_layers": 1, "heads": 4},
        {"attention": ("local(window=512)", "local(window=512):2 + routing:2")},
    ),
    ("shaw", {"max_distance": 4}, {"attention": ("shaw(max_distance=4)",), "embedding_scale": 512**0.5}),
    ("spalm", {}, {"neighbours": 4, "memory": "recent(length=150)"}),
    ("sparse_transformer", {}, {"attention": ("fixed_union(stride=128, columns=32)",)}),
    (
        "sparse_transformer",
        {"pattern": "strided", "combine": "alternate", "layers": 2},
        {"attention": ("strided(stride=128, part='window')", "strided(stride=128, part='stride')")},
    ),
    ("synthesizer", {}, {"attention": ("mixture_synthesizer(parts=('random', 'dot_product'))",)}),
    ("synthesizer", {"parts": ("dense",)}, {"encoder_attention": ("dense_synthesizer",)}),
    (
        "nystromformer",
        {"num_landmarks": 3, "pinv": "exact", "convolution": None},
        {"attention": ("nystrom(num_landmarks=3, pinv='exact', convolution=None)",), "attention_dropout": 0.0},
    ),
    ("bigbird", {"form": "etc"}, {"attention": ("bigbird(block_size=84, num_global=256, num_random=0, form='etc')",)}),
    ("t5", {}, {"cross_attention": ("softmax(scale=1.0)",)}),
    ("transformer", {}, {"norm": "post", "mlp_width": 2048, "encoder_layers": None}),
    ("transformer_vq", {}, {"attention": ("vector_quantized(num_codes=512, block_size=512, relative=True)",)}),
    ("transformer_xl", {}, {"memory": "recent(length=150)", "max_length": 150}),
    ("universal_transformer", {"steps": 6}, {"depth": "universal(steps=6)"}),
    ("universal_transformer", {"halting": False}, {"depth": "universal(steps=8, halting=False)"}),
    (
        "universal_transformer",
        {"transition": "convolution", "mlp_dim": 2048},
        {"depth": "universal(steps=8, transition='convolution', width=2048)", "mlp": "none", "mlp_dim": None},
    ),
    ("vit", {"input_dim": 7 * 7, "max_length": 17}, {"cls_token": True, "vocab_size": 0, "projection_bias": False}),
)
"""preset, its options, what its configuration has for them"""


@pytest.mark.parametrize(("name", "options", "expected"), PUBLISHED, ids=lambda value: str(value))
def test_options_of_presets_reach_their_configurations(
    name: str, options: dict[str, object], expected: dict[str, object]
) -> None:
    config = presets.build(name, **options)
    assert {field: getattr(config, field) for field in expected} == expected


def test_every_preset_has_a_title_its_options_explained_and_a_source() -> None:
    for name in presets.names():
        text, arguments = inspect.getdoc(presets.function(name)) or "", inspect.signature(presets.function(name))
        assert text.splitlines()[0].strip(), name
        assert re.search(r"^Source: ", text, re.MULTILINE), name
        assert [*meanings(presets.function(name))] == [*arguments.parameters], name


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS, *ENCODER_DECODERS])
def test_trains_evaluates_saves_and_loads(name: str) -> None:
    model = small(name, dropout=0.0, attention_dropout=0.0).train()
    logits, targets = task(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        return cross_entropy(logits().flatten(0, -2), targets.flatten())

    before = loss()
    before.backward()
    if isinstance(model, LanguageModel | Spalm) and (model.config.remembers or model.depth.learns):
        for own in model(tokens_of(4, 17)).losses.values():  # which alone trains what compresses, or decides
            own.backward(retain_graph=True)
    assert all(weight.grad is not None for weight in model.parameters())
    optimizer.step()
    assert loss().item() < before.item()
    model.eval()
    trained = logits()
    assert torch.equal(trained, logits())
    fresh = small(name, seed=4).eval()
    assert not torch.equal(task(fresh)[0](), trained)
    fresh.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(task(fresh)[0](), trained)


@pytest.mark.parametrize("name", [*ENCODERS, *ENCODER_DECODERS])
def test_what_is_padded_has_no_influence(name: str) -> None:
    model = small(name).double().eval()
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    if isinstance(model, EncoderDecoder):
        source, tokens = tokens_of(2, 9), tokens_of(2, 5)
        padded = model(source, tokens, source_mask=mask).logits[1:]
        alone = model(source[1:, :6], tokens[1:]).logits
    else:
        draw = torch.Generator().manual_seed(1)
        vectors = model.encoder.config.input_dim > 0
        inputs = torch.randn(2, 9, WIDTH, generator=draw).double() if vectors else tokens_of(2, 9)
        padded, alone = model(inputs, key_mask=mask).logits[1:], model(inputs[1:, :6]).logits
        padded = padded[:, :6] if isinstance(model, MaskedLanguageModel) else padded
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_streams_to_the_parallel_form_and_generates(name: str) -> None:
    model = small(name).double().eval()
    tokens = tokens_of(2, 24)
    state, parts = model.initial_state(2), []
    for piece in tokens.split([10, 1, 1, 12], 1):
        got = model(piece, state=state)
        assert got.state is not None
        state, _ = got.state, parts.append(got.logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens).logits, rtol=0, atol=1e-10)
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    streamed, full = (
        generate(model, prompts, max_new_tokens=10, temperature=0, use_state=use_state) for use_state in (True, False)
    )
    assert [row.tokens.tolist() for row in streamed] == [row.tokens.tolist() for row in full]


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_streams_to_the_parallel_form_and_generates(name: str) -> None:
    model = small(name).double().eval()
    source, tokens = tokens_of(2, 9), tokens_of(2, 24)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    state, parts = model.prepare(source, key_mask=mask), []
    for piece in tokens.split([10, 1, 1, 12], 1):
        logits, state, _ = model.decode(piece, state)
        parts.append(logits)
    whole = model(source, tokens, source_mask=mask).logits
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    ((found,),) = beam_search(model, source[:1], max_new_tokens=8, beams=1)
    read = model.shift(found.tokens[None])
    assert model(source[:1], read).logits.argmax(-1)[0].tolist() == found.tokens.tolist()


@pytest.mark.parametrize(
    ("name", "model", "published"),
    [
        ("bert", Encoder, 109_482_240 - 590_592),
        ("t5", EncoderDecoder, 222_903_552),
        ("bart", EncoderDecoder, 406_291_456),
    ],
)
def test_published_models_have_the_published_numbers_of_weights(
    name: str, model: type[Encoder | EncoderDecoder], published: int
) -> None:
    """As transformers counts them; an encoder without a head has no pooler (590,592)."""
    with undrawn():
        built = model(presets.build(name))
    extra = presets.build(name).vocab_size if name == "bart" else 0  # there the bias of the logits is no parameter
    assert built.parameter_count() == published + extra


def test_overrides_reach_derived_fields_and_any_other_field() -> None:
    assert presets.build("llama", dim=768, heads=12).mlp_width == 2048
    assert presets.build("llama", dim=768, heads=12, mlp_dim=100).mlp_width == 100
    assert presets.build("t5", dim=256).logit_scale == 1 / 16
    assert presets.build("t5", tied=False).logit_scale == 1
    assert presets.build("shaw", max_distance=3).encoder_attention == ("shaw(max_distance=3)",)
    config = presets.build("gpt", attention=("linear",), attention_dropout=0.0, short_convolution=2)
    assert (config.attention, config.short_convolution, config.dim) == (("linear",), 2, 768)
    assert presets.build("bert", pooling="mean").pooling == "mean"


def test_unknown_presets_and_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'gtp': did you mean 'gpt'"):
        presets.build("gtp")
    with pytest.raises(ConfigError, match="no field 'layer': did you mean 'layers'"):
        presets.build("gpt", layer=2)
    with pytest.raises(ConfigError, match="no field 'short_convolution'"):
        presets.build("bert", short_convolution=2)
    with pytest.raises(ConfigError, match="heads must divide dim"):
        presets.build("gpt", heads=7)
    with pytest.raises(ConfigError, match="has no pattern 'stride': did you mean 'strided'"):
        presets.build("sparse_transformer", pattern="stride")
    with pytest.raises(ConfigError, match="cannot combine by 'head': did you mean 'heads'"):
        presets.build("sparse_transformer", combine="head")
    for name, wrong, message in (
        ("sparse_transformer", {"pattern": "strided", "columns": 4}, "columns belongs to pattern='fixed', got"),
        ("bigbird", {"form": "ect"}, "bigbird has no form 'ect': did you mean 'etc'"),
        ("bigbird", {"form": "etc", "num_random": 3}, "form etc has no random blocks"),
        ("blockbert", {"blocks": 7}, "0 would see their own block"),
        ("longformer", {"last_window": 0}, "windows of at least 1"),
        ("synthesizer", {"parts": ("randm",)}, "synthesizer has no part 'randm': did you mean 'random'"),
        ("synthesizer", {"parts": ("dot_product",)}, "without them: transformer"),
        ("linformer", {"rank": (8, 4)}, "one for each of 12 layers; got 2"),
        ("routing_transformer", {"routing_layers": 99}, "half of the heads of its last layers"),
        ("routing_transformer", {"heads": 1}, "half of the heads of its last layers"),
        ("hybrid_retrieval", {"combine": "layer"}, "cannot combine by 'layer': did you mean 'layers'"),
        ("hybrid_retrieval", {"period": 1}, "period from 2 to the number of layers, 8"),
        ("hybrid_retrieval", {"layers": 3, "period": 4}, "period from 2 to the number of layers, 3"),
        ("hybrid_retrieval", {"window": 64}, "window belongs to combine='window' or 'gate', got window=64"),
        ("hybrid_retrieval", {"feature_map": "relu"}, "feature_map belongs to combine='window' or 'gate'"),
        ("hybrid_retrieval", {"combine": "gate", "linear": "rfa"}, "linear belongs to combine='layers'"),
        ("hybrid_retrieval", {"combine": "window", "period": 2}, "period belongs to combine='layers'"),
    ):
        with pytest.raises(ConfigError, match=message):
            presets.build(name, **wrong)
    with pytest.raises(ConfigError, match="has no local='3d'"):
        presets.build("image_transformer", local="3d")
    with pytest.raises(ConfigError, match="query_block belongs to local='2d', got"):
        presets.build("image_transformer", query_block=(7, 14))


def test_the_two_sets_of_fixed_are_in_the_order_that_covers() -> None:
    config = presets.build("sparse_transformer", combine="alternate", layers=4, stride=8, columns=2)
    assert [spec.partition("part=")[2] for spec in config.specs] == ["'block')", "'summary')"] * 2
    assert config.checkpoint == "block"
