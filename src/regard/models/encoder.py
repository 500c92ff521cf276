"""The encoder: every position sees every other."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard.core.randomness import drawn_on_cpu
from regard.core.types_of import typed
from regard.models.blocks import Block, block_class
from regard.models.depth import Tokens
from regard.models.embeddings import Embeddings, build_attention, check_mask, with_usual_logits
from regard.models.encoder_config import EncoderConfig
from regard.models.sharing import save_once
from regard.models.stack import Stack

Marks = Literal["none", "tokens", "segments"]
"""Labels of tokens that a model reads: none; a mark other than 0 for a global token; or the segments of `etc`."""


class Encoded(NamedTuple):
    """hidden: (batch, length, dim). key_mask: of these positions, None if all are real. losses and steps: as
    `ModelOutput`."""

    hidden: Tensor
    key_mask: Tensor | None
    losses: dict[str, Tensor]
    steps: Tensor | None = None


class Encoder(Stack):
    """norm(block_L(... block_1(embeddings))): blocks of bidirectional attention and an MLP.

    Post-norm blocks end in a norm already, so there is none at the end. A relative position scheme is one module that
    all layers share. Weights: as `LanguageModel`, with the tables and linear layer that `Embeddings` has.

    Args:
        config: the shape.
        table: token embeddings that another part of a model owns; None: its own.

    Raises:
        ConfigError: an unknown mechanism, position or option; a depth that reads an output layer.
        UnsupportedError: a mechanism that is causal only, or cannot take the position scheme or the dropout.

    Example:
        >>> import torch
        >>> encoder = Encoder(EncoderConfig(dim=32, attention=("linformer(rank=8)", "softmax"))).eval()
        >>> tokens = torch.tensor([[72, 101, 108], [72, 101, 7]])
        >>> hidden = encoder(tokens, key_mask=torch.tensor([True, True, False]).expand(2, 3)).hidden
        >>> torch.allclose(hidden[0, :2], hidden[1, :2], atol=1e-6)  # what is masked has no influence
        True

    Source: Vaswani et al. 2017, section 3.1 (encoder).
    """

    @typed
    @drawn_on_cpu
    def __init__(self, config: EncoderConfig, *, table: nn.Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config, causal=False, table=table, seed=config.seed)
        self._stack(config, (self._block(at, spec) for at, spec in enumerate(config.specs)), width=config.dim)
        if self.depth.reads_out:
            raise ConfigError(f"depth={config.depth!r} reads an output layer, which an encoder does not have")
        save_once(self)

    def _block(self, at: int, spec: str) -> Block:
        seed = generator(self.config.seed, "encoder layer", at).initial_seed()
        kind, relative = block_class(self.config.block), self.embeddings.relative
        layer = build_attention(self.config, spec, causal=False, position=relative, block=kind, seed=seed)
        block = kind(self.config, with_usual_logits(layer, self.config), seed=seed)
        block.position = self.embeddings.of_block(at)
        return block

    @property
    def reads_marks(self) -> Marks:
        """The marks that `forward` takes, by the facts of its mechanisms."""
        facts = [mechanism.info for mechanism in self.mechanisms if mechanism.info.supports.marks]
        return "none" if not facts else "segments" if any(info.segments for info in facts) else "tokens"

    def forward(
        self,
        inputs: Shaped[Tensor, "batch *given"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        token_types: Int[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*rows length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
    ) -> Encoded:
        """Hidden states of every position, cls in front where the encoder has one.

        Args:
            inputs: token ids (batch, length), or vectors (batch, length, input_dim); with `image`, images (batch,
                channels, height, width) too, whose patches are the vectors.
            key_mask: True = real; masked inputs influence no other position, whatever they hold.
            token_types: rows of the table of types; None: row 0.
            positions: for absolute and rotary schemes, where each token is; None: 0, 1, 2, ..., of real tokens
                alone with `skip_padding`.
            marks: labels of tokens, as `reads_marks` says: other than 0 for a global token; where a mechanism knows
                segments, s > 0 for a token of segment s and -s for the global token that summarises it, of which layers
                without segments take the global tokens. Layers without global tokens see what they always see; cls has
                the mark 0.

        Raises:
            ShapeError, InputError: inputs of the wrong shape or out of range.
            LimitError: longer than `max_length` where weights depend on it.
            UnsupportedError: a request that the position scheme or a mechanism does not support; marks, and no
                mechanism that has a meaning for them.
        """
        inputs = self._cut(inputs)
        check_mask(key_mask, inputs)
        if key_mask is not None and inputs.is_floating_point():
            # A NaN in a masked vector would reach the gradient of the weights, as 0 * NaN.
            inputs = inputs.masked_fill(~key_mask[..., None], 0)
        if positions is None and key_mask is not None and self.config.skip_padding:
            positions = key_mask.cumsum(1) * key_mask - 1
        x = self.embeddings(inputs, token_types=token_types, positions=positions)
        positions = self.embeddings.for_blocks(x, positions, 0)
        of_layers = self._marks(marks, inputs)
        if key_mask is not None and self.config.cls_token:
            key_mask = nn.functional.pad(key_mask, (1, 0), value=True)
        looped, losses = self._looped(x, None, Tokens(key_mask, positions, of_layers))
        return Encoded(looped.hidden, key_mask, losses, looped.steps)

    def _cut(self, inputs: Tensor) -> Tensor:
        """The patches of images; anything else as it is."""
        config = self.config
        if config.image is None or not isinstance(inputs, Tensor) or inputs.ndim != 4:
            return inputs
        if tuple(inputs.shape[1:]) != config.image:
            raise ShapeError(
                f"images must be (batch, {', '.join(map(str, config.image))}), got {tuple(inputs.shape)}: positions "
                "are learned for that shape and not interpolated, so resize the images"
            )
        return patches(inputs, config.patch)

    def _marks(self, marks: Tensor | None, inputs: Tensor) -> list[Tensor | None]:
        """The marks that each layer takes."""
        facts, reads = [mechanism.info for mechanism in self.mechanisms], self.reads_marks
        if marks is None:
            return [None] * len(facts)
        if reads == "none":
            raise UnsupportedError(
                f"none of the mechanisms of this encoder ({', '.join(dict.fromkeys(self.config.specs))}) has a meaning "
                "for marks; leave them out, or see regard list --supports marks"
            )
        if marks.is_floating_point() or marks.dtype == torch.bool or marks.shape != inputs.shape[:2]:
            raise ShapeError(
                f"marks must be integers {tuple(inputs.shape[:2])}, got {marks.dtype} {tuple(marks.shape)}"
            )
        marks = nn.functional.pad(marks, (1, 0)) if self.config.cls_token else marks
        tokens = global_tokens(marks) if reads == "segments" else marks
        return [None if not info.supports.marks else marks if info.segments else tokens for info in facts]


def global_tokens(marks: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Marks of segments without the tokens of the segments: other than 0 for the global tokens alone.

    Example:
        >>> global_tokens(torch.tensor([[-1, -2, 1, 1, 2, 0]])).tolist()
        [[-1, -2, 0, 0, 0, 0]]
    """
    return marks.clamp(max=0)


def patches(images: Float[Tensor, "batch channels height width"], size: int) -> Float[Tensor, "batch patches content"]:
    """Images cut into squares of `size`, row by row; content is channels size size, channel by channel.

    A linear layer on it is a convolution of stride `size` with the kernel's weights in a row.

    Raises:
        ShapeError: a height or width that `size` does not divide.

    Example:
        >>> import torch
        >>> patches(torch.arange(16.0).view(1, 1, 4, 4), 2)[0, 1]
        tensor([2., 3., 6., 7.])

    Source: Dosovitskiy et al. 2021, section 3.1.
    """
    if images.ndim != 4 or size < 1 or images.shape[2] % size or images.shape[3] % size:
        raise ShapeError(
            f"images must be (batch, channels, height, width) with sides that the patch size {size} divides, "
            f"got {tuple(images.shape)}"
        )
    batch, channels, height, width = images.shape
    cut = images.reshape(batch, channels, height // size, size, width // size, size)
    count = (height // size) * (width // size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, count, channels * size * size)
