"""Models of images: encoders of patches, and a decoder of pixels."""

from typing import Literal

from regard.core.errors import ConfigError, nearest
from regard.models.config import ModelConfig
from regard.models.encoder_config import EncoderConfig
from regard.models.presets._preset import Fields, preset


@preset(EncoderConfig, Fields(input_dim=768, dim=768, layers=12, heads=12, mlp_dim=None, max_length=197, dropout=0.1))
def vit() -> Fields:
    """ViT base for images of 224 x 224 in patches of 16 x 16, 86 million weights: pre-norm encoder behind a cls vector.

    Its inputs are patches, see `regard.models.encoder.patches`, or, with the field `image=(3, 224, 224)`, images too;
    the head is `Classifier`. Projections to queries, keys and values have no bias, as in most later implementations;
    `projection_bias=True` is the first one's. The other published sizes are (dim, layers, heads) = (1024, 24, 16) and
    (1280, 32, 16).

    Args:
        input_dim: numbers in a patch: channels x patch size squared.
        max_length: patches, and one for cls.

    Source: Dosovitskiy et al. 2021, section 3.1 and table 1.
    """
    return Fields(vocab_size=0, position="learned", cls_token=True, norm_eps=1e-6, projection_bias=False)


@preset(vit, Fields())
def efficient_attention(normaliser: Literal["softmax", "scaling"] = "softmax") -> Fields:
    """ViT base whose layers are Efficient Attention, O(length): every channel of the keys is one map over the image.

    The paper puts single modules, one head each, into convolutional networks for detection and stereo; no Transformer
    of it was published. The shape here is that of `vit`, and heads follow the authors' code. Attention is
    bidirectional, as published; a decoder with the running causal form, whose state is constant, is
    `build("gpt", attention=("efficient",), attention_dropout=0.0)`.

    Args:
        normaliser: softmax over channels and over positions, or scaling by the root of the length, the paper's two.

    Source: Shen et al. 2021, sections 3.2 and 3.3; shape: Dosovitskiy et al. 2021, table 1.
    """
    return Fields(attention=(f"efficient(normaliser={normaliser!r})",))


@preset(vit, Fields(input_dim=192, dim=192, heads=3, max_length=784, dropout=0.0))
def lara(num_landmarks: int = 49, coefficient: float = 2.0, pool: Literal["mean", "mixed"] = "mixed") -> Fields:
    """The tiny DeiT of the paper for images of 224 x 224 in patches of 8 x 8, O(length): 49 proposals for 784 patches.

    Without a cls vector: the head reads the mean of the patches, as the published code does. There landmarks are means
    over squares of the image, here over runs of the raster. Published in patches of 16: input_dim 768 and max_length
    196, also with (dim, heads) = (384, 6). Landmarks see all positions, so there is no decoder.

    Args:
        num_landmarks, coefficient, pool: as the mechanism `lara`, here as in published runs.
        max_length: patches.

    Source: Zheng, Wang, Kong 2022, section 5 (image classification), and the commands of its published code.
    """
    spec = f"lara(num_landmarks={num_landmarks}, coefficient={coefficient!r}, pool={pool!r})"
    return Fields(attention=(spec,), cls_token=False, pooling="mean", projection_bias=None)


@preset(ModelConfig, Fields(dim=512, layers=12, heads=4, mlp_dim=None, dropout=0.3))
def image_transformer(
    height: int = 32,
    width: int = 32,
    channels: int = 3,
    levels: int = 256,
    local: Literal["1d", "2d"] = "1d",
    query_block: tuple[int, int] | None = None,
) -> Fields:
    """The model of CIFAR-10, 40 million weights: post-norm decoder over the channels of pixels, each a category.

    Train it with the task `images`, which says what image it reads. `1d`: blocks of 256 positions in raster order, each
    with the block before it. `2d`: blocks of 8 x 16 pixels and the 8 rows above and 16 columns beside, generated block
    by block (`--task.query-block 8 16`); sides that these do not divide need another `query_block` in both places. Rows
    and columns have learned vectors; every level of every channel has an embedding of its own, and the output layer
    has one row for every level. The conditional form is the default model of the task `super_resolution`.

    Args:
        height, width, channels, levels: of the images, as `regard_lab.tasks.pixels.Grid`.
        local: attention in one dimension or two.
        query_block: rows and columns of a block, and of what is seen above and beside it; of `2d` only. None: (8, 16).

    Raises:
        ConfigError: another kind of local attention, a block of `1d`.

    Source: Parmar et al. 2018, sections 3 and 5.1; the published blocks of CIFAR-10 have a memory of 512 positions in
    one form and 256 in the code.
    """
    block = (8, 16) if query_block is None else tuple(query_block)
    attention = {
        "1d": "image_local_1d(block_size=256)",
        "2d": f"image_local_2d(width={width}, channels={channels}, query_block={block}, flange={block})",
    }
    if local == "1d" and query_block is not None:
        raise ConfigError(
            f"image_transformer: query_block belongs to local='2d', got {query_block=}, {local=}; leave it out"
        )
    if local not in attention:
        raise ConfigError(f"image_transformer has no local={local!r}: {nearest(local, attention)}")
    blocks = f", query_block={block}" if local == "2d" else ""
    return Fields(
        vocab_size=channels * levels + 1,
        targets=levels,
        attention=(attention[local],),
        position=f"coordinates(width={width}, channels={channels}{blocks})",
        mlp="relu",
        norm="post",
        max_length=height * width * channels,
        tied=False,
        bias=True,
    )
