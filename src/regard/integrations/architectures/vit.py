"""ViT: names and configuration. Its first projection is a convolution there, whose kernel is the weights of a patch."""

from typing import Any

from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import (
    Architecture,
    AttentionModule,
    Form,
    Key,
    Table,
    Widths,
    class_count,
    class_settings,
    pairs,
)
from regard.integrations.architectures._encoders import ENCODER_KEYS
from regard.integrations.weights import Settings, Weight, each
from regard.models import Classifier, Encoder, EncoderConfig

_PREFIX = "vit."


def _sides(settings: Settings, name: str, default: int) -> tuple[int, int]:
    """Height and width: a number for both, or one for each."""
    value = settings.get(name)
    if not isinstance(value, list | tuple) or len(value) != 2:
        side = settings.size(name, default)
        return side, side
    sides = Settings({f"{name}[{at}]": one for at, one in enumerate(value)}, settings.where, settings.tensors)
    height, width = (sides.size(label) for label in sides.values)
    settings.problems += sides.problems
    return height, width


_TABLE = Table(
    "vit",
    EncoderConfig,
    position="learned",
    keys={
        **ENCODER_KEYS,
        "dropout": Key("hidden_dropout_prob", 0.0, Settings.number),
        "attention_dropout": Key("attention_probs_dropout_prob", 0.0, Settings.number),
    },
    fixed={
        "vocab_size": 0,
        "cls_token": True,
        "pooler": False,
        "position_offset": 0,
        "embedding_norm": False,
        "norm": "pre",
        "norm_kind": "layer",
        "bias": True,
    },
)


def _config(settings: Settings) -> EncoderConfig:
    found = _TABLE.read(settings)
    height, width = _sides(settings, "image_size", 224)
    patch, other = _sides(settings, "patch_size", 16)
    channels = settings.axis("num_channels", 3)
    if patch != other:
        settings.problems.append(f"patch_size={patch} x {other}: regard's model has squares")
    if height % patch or width % patch:
        settings.problems.append(f"image_size={height} x {width}: its sides are no multiples of patch_size={patch}")
    found |= {
        "input_dim": channels * patch**2,
        "image": (channels, height, width),
        "max_length": height // patch * (width // patch) + 1,
        "projection_bias": None if settings.flag("qkv_bias", True) else False,
    }
    return _TABLE.config(settings, found)


def _settings(config: EncoderConfig) -> dict[str, object]:
    settings = _TABLE.settings(config, projection_bias=(None, True, False))
    if config.image is None:
        raise UnsupportedError("this model cannot be written as vit: image=None, and its configuration names a shape")
    channels, height, width = config.image
    if config.max_length != config.patches + 1:
        raise UnsupportedError(
            f"this model cannot be written as vit: max_length={config.max_length}, not the {config.patches} patches of "
            "an image and one"
        )
    return {
        **settings,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch,
        "num_channels": channels,
        "qkv_bias": config.projection_bias is not False,
    }


def _weights(config: EncoderConfig, ours: str) -> list[Weight]:
    """The weights of the encoder, whose names `ours` precedes."""
    embeddings, layer, block = f"{_PREFIX}embeddings", f"{_PREFIX}encoder.layer.{{layer}}", f"{ours}blocks.{{layer}}"
    assert config.image is not None
    kernel = (config.image[0], config.patch, config.patch)
    projected = f"{embeddings}.patch_embeddings.projection"
    inputs = [
        Weight(f"{ours}embeddings.cls", f"{embeddings}.cls_token", leading=2),
        Weight(f"{ours}embeddings.position.table", f"{embeddings}.position_embeddings", leading=1),
        Weight(f"{ours}embeddings.project.weight", f"{projected}.weight", kernel=kernel),
        Weight(f"{ours}embeddings.project.bias", f"{projected}.bias"),
    ]
    linear = [
        (f"{block}.attention_norm", f"{layer}.layernorm_before"),
        (f"{block}.attention.projections.output", f"{layer}.attention.output.dense"),
        (f"{block}.mlp_norm", f"{layer}.layernorm_after"),
        (f"{block}.mlp.up", f"{layer}.intermediate.dense"),
        (f"{block}.mlp.down", f"{layer}.output.dense"),
        (f"{ours}norm", f"{_PREFIX}layernorm"),
    ]
    names = ("query", "key", "value")
    projections = [(f"{block}.attention.projections.{name}", f"{layer}.attention.attention.{name}") for name in names]
    biased = config.projection_bias is not False
    return each([*inputs, *pairs(linear, bias=True), *pairs(projections, bias=biased)], config.layers)


def _classifier(config: EncoderConfig, settings: Settings) -> Classifier:
    return Classifier(Encoder(config), classes=class_count(settings))


def _widths(module: Any) -> Widths:
    return Widths(module.num_attention_heads, module.num_attention_heads, module.head_dim)


VIT = Architecture(
    name="vit",
    config=_config,
    settings=_settings,
    forms=(
        Form(
            titles=("ViTModel",),
            model=Encoder,
            weights=lambda config: _weights(config, ""),
            bare=True,
            ignored=(f"{_PREFIX}pooler.dense.weight", f"{_PREFIX}pooler.dense.bias"),
        ),
        Form(
            titles=("ViTForImageClassification",),
            model=Classifier,
            build=_classifier,
            weights=lambda config: [*_weights(config, "encoder."), *pairs([("output", "classifier")], bias=True)],
            settings=lambda model: class_settings(model, "vit"),
        ),
    ),
    prefix=_PREFIX,
    refused={"ViTForMaskedImageModeling": "which draws the pixels of hidden patches: no model here has that head"},
    modules={"ViTAttention": AttentionModule(_widths)},
    renamed={
        # transformers 5 calls its modules so, and writes the names of before unless it is told otherwise.
        r"(?<![^.])layers\.": "encoder.layer.",
        r"attention\.q_proj\.": "attention.attention.query.",
        r"attention\.k_proj\.": "attention.attention.key.",
        r"attention\.v_proj\.": "attention.attention.value.",
        r"attention\.o_proj\.": "attention.output.dense.",
        r"mlp\.fc1\.": "intermediate.dense.",
        r"mlp\.fc2\.": "output.dense.",
    },
)
