"""The shape of an encoder, as data. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from regard.core.types_of import typed_fields
from regard.models.block_config import BlockConfig

Pooling = Literal["first", "mean"]


@dataclass(frozen=True, kw_only=True)
class InputConfig(BlockConfig):
    """Blocks, and how tokens become their input.

    Raises:
        ConfigError: as `BlockConfig`.
    """

    vocab_size: int = 256
    """Number of different tokens; 256 reads bytes. A training takes the number of its task."""
    position: str = "sinusoidal"
    """Position scheme, such as learned or t5_bias; none: no scheme."""
    position_offset: int = 0
    """Rows of the position table before the first token's: 2 in RoBERTa and BART."""
    embedding_scale: float | None = None
    """Factor of the token embeddings; None: sqrt(dim) under sinusoidal positions, as published, else 1."""
    embedding_norm: bool = False
    """A norm over the sum of embeddings, before the first block, as in BERT."""
    bias: bool = True
    """Bias terms in linear layers and LayerNorm."""
    projection_bias: bool | None = None
    """Bias terms in the projections to queries, keys and values; None: as bias."""

    def problems(self) -> list[str]:
        """Problems of these values, as `BlockConfig`."""
        problems = super().problems() + self._sizes("position_offset", least=0)
        if self.embedding_scale is not None and not 0 < self.embedding_scale < float("inf"):
            problems.append(
                f"embedding_scale must be positive, got {self.embedding_scale}; leave it out for the default"
            )
        return problems


@typed_fields
@dataclass(frozen=True, kw_only=True)
class EncoderConfig(InputConfig):
    """A bidirectional Transformer over tokens, or over vectors such as the patches of an image.

    Raises:
        ConfigError: as `BlockConfig`; neither vocab_size nor input_dim, or both.

    Example:
        >>> EncoderConfig(vocab_size=0, input_dim=48, cls_token=True).mlp_width
        512
        >>> EncoderConfig(input_dim=48)
        Traceback (most recent call last):
        regard.core.errors.ConfigError: input_dim=48 (vectors) and vocab_size=256 (tokens) exclude each other; ...
    """

    vocab_size: int = 256
    """Number of different tokens; 0: the inputs are vectors."""
    input_dim: int = 0
    """Width of vectors that come instead of tokens, each through one linear layer; 0: the inputs are tokens."""
    image: tuple[int, int, int] | None = None
    """Channels, height and width of images, whose patches, (input_dim / channels)^0.5 wide, are the inputs; such an
    encoder takes the images too. None: any vectors."""
    token_types: int = 0
    """Rows of a table added to the embeddings by the type of a token (BERT's segments); 0: none."""
    skip_padding: bool = False
    """Positions count the real tokens of key_mask alone, wherever padding is, as in RoBERTa; padding has the row of the
    position table before the first token's."""
    cls_token: bool = False
    """A learned vector in front of the inputs, which takes the first position."""
    pooling: Pooling = "first"
    """Input of a head for a whole sequence: the first position, or the mean over the real ones."""
    pooler: bool = False
    """Such a head begins with tanh(linear(x)), as BERT's does."""
    cpc_weight: float = 0.0
    """Weight of the contrastive loss of hidden sentences, beside that of masked tokens; needs global tokens that
    summarise segments, as etc has."""

    @property
    def patch(self) -> int:
        """Side of a patch of the images, in pixels; 0 without images."""
        return math.isqrt(self.input_dim // self.image[0]) if self.image else 0

    @property
    def patches(self) -> int:
        """Patches of an image; 0 without images."""
        return self.image[1] * self.image[2] // self.patch**2 if self.image else 0

    def problems(self) -> list[str]:
        """Problems of these values, as `BlockConfig`."""
        problems = super().problems() + self._choices(pooling=get_args(Pooling))
        problems += self._sizes("vocab_size", "input_dim", "token_types", least=0)
        if (self.vocab_size > 0) == (self.input_dim > 0):
            inputs = f"input_dim={self.input_dim} (vectors) and vocab_size={self.vocab_size} (tokens)"
            problems.append(
                f"{inputs} exclude each other; set one to 0"
                if self.vocab_size
                else "vocab_size or input_dim must be given: an encoder reads tokens or vectors"
            )
        if self.skip_padding and (not self.position_offset or self.cls_token):
            problems.append("skip_padding needs a position_offset of at least 1, for padding, and no cls_token")
        problems += self._image_problems()
        if not 0 <= self.cpc_weight < float("inf"):
            problems.append(f"cpc_weight must be at least 0, got {self.cpc_weight}")
        if self.token_types and not self.vocab_size:
            problems.append(f"token_types={self.token_types} has no use without tokens (vocab_size=0)")
        return problems

    def _image_problems(self) -> list[str]:
        if self.image is None:
            return []
        channels, height, width = self.image
        if min(self.image) < 1:
            return [f"image must be channels, height and width of at least 1, got {self.image}"]
        if self.input_dim <= 0 or channels * self.patch**2 != self.input_dim:
            return [f"image={self.image}: input_dim={self.input_dim} is not {channels} times the square of a side"]
        if height % self.patch or width % self.patch:
            return [f"image={self.image}: its sides are no multiples of {self.patch}, that of a patch"]
        return []
