"""The Image Transformer."""

from typing import Literal

from regard.errors import ConfigError, nearest
from regard.models.config import ModelConfig


def image_transformer(
    *,
    height: int = 32,
    width: int = 32,
    channels: int = 3,
    levels: int = 256,
    local: Literal["1d", "2d"] = "1d",
    query_block: tuple[int, int] | None = None,
    dim: int = 512,
    layers: int = 12,
    heads: int = 4,
    mlp_dim: int | None = None,
    dropout: float = 0.3,
    seed: int = 0,
) -> ModelConfig:
    """The model of CIFAR-10, 40 million weights: post-norm decoder over the channels of pixels, each a category.

    Train it with the task `images`, which says what image it reads. `1d`: blocks of 256 positions in raster order, each
    with the block before it. `2d`: blocks of 8 x 16 pixels and the 8 rows above and 16 columns beside, generated block
    by block (`--task.query-block 8 16`); sides that these do not divide need another `query_block` in both places. Rows
    and columns have learned vectors; every level of every channel has an embedding of its own, and the output layer
    has one row for every level. The conditional form is the default model of the task `super_resolution`.

    Args:
        height, width, channels, levels: of the images, as `regard.tasks.pixels.Grid`.
        local: attention in one dimension or two.
        query_block: rows and columns of a block, and of what is seen above and beside it; of `2d` only. None: (8, 16).
        dim, layers, heads, mlp_dim, dropout, seed: as `ModelConfig`.

    Raises:
        ConfigError: another kind of local attention, a block of `1d`.

    Example:
        >>> config = image_transformer(height=28, width=28, channels=1)
        >>> config.vocab_size, config.targets, config.max_length
        (257, 256, 784)

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
    return ModelConfig(
        vocab_size=channels * levels + 1,
        targets=levels,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=(attention[local],),
        position=f"coordinates(width={width}, channels={channels}{blocks})",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="post",
        norm_kind="layer",
        max_length=height * width * channels,
        tied=False,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
