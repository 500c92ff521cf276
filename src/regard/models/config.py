"""The shape of a decoder language model, as data. Imports no torch, so that command lines answer at once."""

from dataclasses import dataclass
from typing import Literal, get_args

from regard.errors import ConfigError, nearest

MlpKind = Literal["gelu", "gelu_tanh", "relu", "swiglu", "none"]
NormPlace = Literal["pre", "post"]
NormKind = Literal["layer", "rms"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A causal Transformer decoder.

    Raises:
        ConfigError: a size out of range, sizes that do not divide, a choice that does not exist, or a number of
            attention specifications that is neither one nor one per layer.

    Example:
        >>> ModelConfig(layers=3, attention=("linear", "linear", "softmax")).specs
        ('linear', 'linear', 'softmax')
        >>> ModelConfig(dim=96, heads=4).key_dim
        24
    """

    vocab_size: int = 256
    """Number of different tokens; 256 reads bytes."""
    dim: int = 128
    """Width of the hidden states."""
    layers: int = 2
    """Blocks, each of attention and an MLP."""
    heads: int = 4
    """Query heads of every attention; must divide dim."""
    kv_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; None: as many as heads."""
    attention: tuple[str, ...] = ("softmax",)
    """One specification for all layers, such as local(window=128), or one per layer."""
    position: str = "rotary"
    """Position scheme, such as rotary(base=500000.0) or learned; none: no scheme."""
    mlp: MlpKind = "gelu"
    """The MLP of a block: its activation (gelu_tanh: GPT-2's approximation), swiglu for a gated unit, none to leave it
    out."""
    mlp_dim: int | None = None
    """Hidden width of the MLP; None: 4 dim, or 8/3 dim rounded up to a multiple of 8 for swiglu (as many weights)."""
    norm: NormPlace = "pre"
    """pre: x + f(norm(x)) and a norm at the end; post: norm(x + f(x)), as in the first Transformer."""
    norm_kind: NormKind = "layer"
    """layer: LayerNorm; rms: RMSNorm."""
    norm_eps: float = 1e-5
    """What a norm adds to the variance (rms: to the mean square) before the root."""
    max_length: int = 512
    """Longest sequence, for schemes and mechanisms whose weights depend on it; others go beyond it."""
    tied: bool = True
    """The output layer is the embedding table."""
    dropout: float = 0.0
    """Probability of dropping an element of the embeddings and of every residual branch in training."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight in training, for mechanisms that support it."""
    bias: bool = False
    """Bias terms in linear layers and LayerNorm."""
    short_convolution: int = 0
    """Width of a causal depthwise convolution over the embeddings; 0: none. It lets one layer compare a token with the
    token before it, which associative recall needs."""
    seed: int = 0
    """Every initial weight, and every random feature, bucket and codebook, is drawn from this."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "layers", "heads", "kv_heads", "mlp_dim", "max_length"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"ModelConfig.{name} must be at least 1, got {size}")
        if self.dim % self.heads:
            raise ConfigError(f"heads must divide dim, got dim={self.dim}, heads={self.heads}{_divisors(self.dim)}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads must divide heads, got heads={self.heads}, kv_heads={self.kv_heads}{_divisors(self.heads)}"
            )
        for name, choices in (("mlp", MlpKind), ("norm", NormPlace), ("norm_kind", NormKind)):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ConfigError(f"ModelConfig.{name}: no choice {value!r}: {nearest(str(value), get_args(choices))}")
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"ModelConfig.norm_eps must be in (0, 1), got {self.norm_eps}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"ModelConfig.{name} must be in [0, 1), got {getattr(self, name)}")
        if isinstance(self.attention, str) or len(self.attention) not in {1, self.layers}:
            raise ConfigError(
                f"attention must be a tuple of one specification, or of one for each of the {self.layers} layers, "
                f"got {self.attention!r}"
            )
        if self.mlp == "none" and self.mlp_dim is not None:
            raise ConfigError(f"mlp_dim={self.mlp_dim} has no use with mlp='none'; leave one of them out")
        if self.short_convolution < 0 or self.short_convolution == 1:
            raise ConfigError(
                f"short_convolution must be 0 (none) or at least 2 (a token and its past), got {self.short_convolution}"
            )

    @property
    def specs(self) -> tuple[str, ...]:
        """The attention specification of every layer."""
        return tuple(self.attention) * (self.layers if len(self.attention) == 1 else 1)

    @property
    def key_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.heads

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP; 0 without one."""
        if self.mlp == "none":
            return 0
        if self.mlp_dim is not None:
            return self.mlp_dim
        return -(-8 * self.dim // 24) * 8 if self.mlp == "swiglu" else 4 * self.dim


def _divisors(number: int) -> str:
    """The end of a message: what would divide."""
    return f"; divisors of {number}: {', '.join(str(d) for d in range(1, number + 1) if number % d == 0)}"
