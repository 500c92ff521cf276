"""The parts of every stack of Transformer blocks, as data. Imports no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from regard import specs
from regard.core.errors import ConfigError, divisors, nearest
from regard.core.types_of import typed

MlpKind = Literal["gelu", "gelu_tanh", "relu", "swiglu", "geglu", "geglu_tanh", "none"]
NormPlace = Literal["pre", "post"]
NormKind = Literal["layer", "rms", "rms_unscaled"]
Recomputed = Literal["none", "block", "attention"]
Projections = Literal["all", "global", "separate"]

GATED = frozenset({"swiglu", "geglu", "geglu_tanh"})
"""MLPs with a third matrix"""


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Attention, MLP, norms and positions of a stack; a model's configuration adds what goes in and comes out.

    Raises:
        ConfigError: every problem, one a line: a size out of range, sizes that do not divide, a choice that does not
            exist, or a number of attention specifications that is neither one nor one per layer.
    """

    dim: int = 128
    """Width of the hidden states."""
    layers: int = 2
    """Blocks, each of attention and an MLP."""
    heads: int = 4
    """Query heads of every attention; must divide dim, unless head_dim is given."""
    kv_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; None: as many as heads."""
    head_dim: int | None = None
    """Width of a head; None: dim / heads."""
    value_dim: int | None = None
    """Width of a head's values; None: as head_dim, in a gated unit 2 dim / heads."""
    attention: tuple[str, ...] = ("softmax",)
    """One specification for all layers, such as local(window=128), or one per layer."""
    position: str = "rotary"
    """Position scheme, such as rotary(base=500000.0) or learned; none: no scheme."""
    block: str = "residual"
    """How attention and MLP stand around the hidden states: residual (one after the other), parallel (side by side),
    gated_unit (one gated branch in place of both, with mlp=none), reversible (two streams, and no activations kept)."""
    unit_gain: float | None = None
    """Of gated units: what the gains of queries and keys start at; None: drawn near 0, with deviation 0.02, as
    published (weights of a squared ReLU then begin near 1e-8, and hardly learn at first)."""
    depth: str = "fixed"
    """Who runs the blocks: fixed (each once, in order), universal (again and again), early_exit (as few as suffice)."""
    mlp: MlpKind = "gelu"
    """The MLP of a block: its activation (gelu_tanh: GPT-2's approximation), swiglu or geglu for a gated unit, none to
    leave it out."""
    mlp_dim: int | None = None
    """Hidden width of the MLP; None: 4 dim, or 8/3 dim rounded up to a multiple of 8 for a gated unit (as many
    weights)."""
    mlp_chunks: int = 1
    """Pieces of the sequence that the MLP takes one after the other: the same result, in less memory where its hidden
    values are not kept for a backward pass (a reversible block, inference)."""
    norm: NormPlace = "pre"
    """pre: x + f(norm(x)) and a norm at the end; post: norm(x + f(x)), as in the first Transformer."""
    norm_kind: NormKind = "layer"
    """layer: LayerNorm; rms: RMSNorm; rms_unscaled: RMSNorm without weights."""
    norm_eps: float = 1e-5
    """Number that a norm adds to the variance (rms: to the mean square) before the root."""
    max_length: int = 512
    """Longest sequence, for schemes and mechanisms whose weights depend on it; others go beyond it."""
    dropout: float = 0.0
    """Probability of dropping an element of the embeddings and of every residual branch in training."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight in training, for mechanisms that support it."""
    bias: bool = False
    """Bias terms in linear layers and LayerNorm."""
    projections: Projections = "all"
    """Queries, keys and values of encoder layers with global tokens: all rows share theirs; those of global tokens have
    their own (global); and global tokens have keys and values of their own (separate). Decoders have `all`."""
    checkpoint: Recomputed = "none"
    """Part that is computed again in the backward pass instead of being kept: none, whole blocks (each then keeps one
    hidden state), or the attention of each (projections included). Changes memory and time, no result."""
    seed: int = 0
    """Every initial weight, and every random feature, bucket and codebook, is drawn from this."""

    @typed
    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise ConfigError("\n".join(problems))

    def problems(self) -> list[str]:
        """Problems of these values, each a line that begins with the field."""
        problems = self._sizes(
            "dim", "layers", "heads", "kv_heads", "head_dim", "value_dim", "mlp_dim", "mlp_chunks", "max_length"
        )
        if self.heads > 0 and self.head_dim is None and self.dim % self.heads:
            problems.append(f"heads must divide dim, got dim={self.dim}, heads={self.heads}{divisors(self.dim)}")
        if self.kv_heads is not None and self.kv_heads > 0 and self.heads % self.kv_heads:
            problems.append(
                f"kv_heads must divide heads, got heads={self.heads}, kv_heads={self.kv_heads}{divisors(self.heads)}"
            )
        problems += self._choices(
            mlp=get_args(MlpKind),
            norm=get_args(NormPlace),
            norm_kind=get_args(NormKind),
            checkpoint=get_args(Recomputed),
            projections=get_args(Projections),
        )
        problems += self._named("block", "regard.models.blocks") + self._named("depth", "regard.models.depth")
        problems += self._unit_gain()
        if not 0 < self.norm_eps < 1:
            problems.append(f"norm_eps must be in (0, 1), got {self.norm_eps}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f"{name} must be in [0, 1), got {getattr(self, name)}")
        problems += self._specs("attention", self.layers)
        if self.mlp == "none":
            problems += [
                f"{name}={getattr(self, name)} has no use with mlp='none'; leave one of them out"
                for name, left_out in (("mlp_dim", None), ("mlp_chunks", 1))
                if getattr(self, name) != left_out
            ]
        return problems

    def _unit_gain(self) -> list[str]:
        gain = self.unit_gain
        if gain is None or (0 < gain < float("inf") and self.block.partition("(")[0].strip() == "gated_unit"):
            return []
        return [f"unit_gain must be more than 0, and goes with block='gated_unit'; got {gain}, block={self.block!r}"]

    def _sizes(self, *names: str, least: int = 1) -> list[str]:
        values = {name: getattr(self, name) for name in names}
        return [
            f"{name} must be at least {least}, got {x}" for name, x in values.items() if x is not None and x < least
        ]

    def _choices(self, **allowed: tuple[str, ...]) -> list[str]:
        values = {name: getattr(self, name) for name in allowed}
        return [
            f"{name}: no choice {x!r}: {nearest(str(x), allowed[name])}"
            for name, x in values.items()
            if x not in allowed[name]
        ]

    def _named(self, name: str, package: str) -> list[str]:
        """An unknown name of a file in a package."""
        try:
            choice, known = specs.parse(getattr(self, name)).name, sorted(specs.files(package))
        except ConfigError as error:
            return [f"{name}: {error}"]
        return [] if choice in known else [f"{name}: unknown {name} {choice!r}: {nearest(choice, known)}"]

    def _specs(self, name: str, layers: int) -> list[str]:
        value = getattr(self, name)
        if not isinstance(value, str) and len(value) in {1, layers}:
            return []
        given = f"{value!r}; write ({value!r},)" if isinstance(value, str) else repr(value)
        return [f"{name} must be a tuple of one specification, or of one for each of the {layers} layers, got {given}"]

    @property
    def specs(self) -> tuple[str, ...]:
        """The attention specification of every layer."""
        return per_layer(self.attention, self.layers)

    @property
    def key_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP; 0 without one."""
        if self.mlp == "none":
            return 0
        if self.mlp_dim is not None:
            return self.mlp_dim
        return -(-8 * self.dim // 24) * 8 if self.mlp in GATED else 4 * self.dim


def per_layer(specs: tuple[str, ...], layers: int) -> tuple[str, ...]:
    """One specification for every layer."""
    return tuple(specs) * (layers if len(specs) == 1 else 1)


def untied(targets: int | None, tied: bool) -> list[str]:
    """Problems of an output layer with `targets` rows."""
    if targets is None or not tied:
        return []
    return [f"targets={targets} are other outputs than the tokens, so they have no table in common; set tied=False"]
