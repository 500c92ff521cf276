"""Facts about mechanisms as plain data. Imports no torch, so that lists and help answer at once."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

from regard.core.errors import ConfigError, divisors, nearest
from regard.core.types_of import typed, typed_fields

_SIZES = (
    ("count", False),
    ("key_dim", False),
    ("value_dim", True),
    ("query_dim", True),
    ("kv_count", True),
    ("max_length", True),
)
"""fields of `Heads` that are sizes, and whether they may be None"""
_MOST = 1 << 20
"""heads, and numbers in a key, query or value: more than any network has, and few enough to be counted and divided"""


def _integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ConfigError(f"Heads.{name} must be an integer of 64 bits, got {value!r}")
    return value


@typed_fields
@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads that a layer asks a mechanism to serve: build-time facts, so that unsupported use fails at build.

    Calls then take q (batch, count, queries, query_width), k (batch, kv_heads, keys, key_dim) and v (batch, kv_heads,
    keys, value_width), and give values (batch, count, queries, value_width).

    Args:
        count: query heads.
        key_dim: numbers in a key (and in a query, unless `query_dim` says otherwise).
        value_dim: width of a value; None: `key_dim`.
        query_dim: width of a query; None: `key_dim`.
        kv_count: heads of keys and values (grouped-query attention); None: `count`.
        causal: each query sees its own position and earlier ones only; the queries are the last positions.
        max_length: longest sequence to serve, in positions; required by mechanisms with position-sized weights or a
            fixed number of buckets.
        dropout: probability of dropping an attention weight in training.
        seed: every random projection, bucket, codebook and initial weight is drawn from this.

    Raises:
        ConfigError: a value of another type, a size below 1, heads or widths beyond 2^20, heads that do not divide, a
            dropout outside [0, 1).

    Example:
        >>> heads = Heads(count=8, key_dim=64, kv_count=2)
        >>> heads.kv_heads, heads.group, heads.value_width
        (2, 4, 64)
        >>> Heads(count=8, key_dim=64, kv_count=3)
        Traceback (most recent call last):
        regard.core.errors.ConfigError: Heads.kv_count must divide count: got count=8, kv_count=3; divisors of 8: ...
    """

    count: int
    key_dim: int
    value_dim: int | None = None
    query_dim: int | None = None
    kv_count: int | None = None
    causal: bool = False
    max_length: int | None = None
    dropout: float = 0.0
    seed: int = 0

    @typed
    def __post_init__(self) -> None:
        for name, optional in _SIZES:
            size = getattr(self, name)
            if size is None and optional:
                continue
            found = _integer(name, size)
            if found < 1:
                raise ConfigError(f"Heads.{name} must be at least 1, got {size}")
            if name != "max_length" and found > _MOST:
                raise ConfigError(f"Heads.{name} must be at most {_MOST}, got {size}; choose a smaller one")
        _integer("seed", self.seed)
        if type(self.causal) is not bool:
            raise ConfigError(f"Heads.causal must be True or False, got {self.causal!r}")
        if type(self.dropout) not in (float, int):
            raise ConfigError(f"Heads.dropout must be a number, got {self.dropout!r}")
        if self.count % self.kv_heads:
            raise ConfigError(
                f"Heads.kv_count must divide count: got count={self.count}, kv_count={self.kv_count}"
                f"{divisors(self.count)}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"Heads.dropout must be in [0, 1), got {self.dropout}")

    @property
    def value_width(self) -> int:
        """Numbers in a value."""
        return self.key_dim if self.value_dim is None else self.value_dim

    @property
    def query_width(self) -> int:
        """Numbers in a query."""
        return self.key_dim if self.query_dim is None else self.query_dim

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.count if self.kv_count is None else self.kv_count

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.count // self.kv_heads


@dataclass(frozen=True, kw_only=True)
class Supports:
    """Capabilities of a mechanism. Each field is named for the request that it permits."""

    causal: bool = False
    """each query sees its own position and earlier ones only"""
    bidirectional: bool = False
    """each query sees all positions"""
    cross: bool = False
    """keys of another sequence (queries != keys, not causal)"""
    key_mask: bool = False
    """keys that are hidden: padding"""
    bias: bool = False
    """a term added to the logits: relative positions, a mask of pairs"""
    marks: bool = False
    """a number for each token, such as one that makes it global"""
    state: bool = False
    """reading in pieces, and decoding token by token"""
    prefix: bool = False
    """causal, with leading keys that are the past"""
    dropout: bool = False
    """weights that are dropped in training"""

    @classmethod
    def all(cls, *, but: Iterable[str] = ()) -> Self:
        """Everything, except what is named.

        Example:
            >>> Supports.all(but=("marks", "cross")).cross
            False
        """
        missing = tuple(but)
        known = [f.name for f in fields(cls)]
        for name in missing:
            if name not in known:
                raise ConfigError(f"unknown capability {name!r}: {nearest(name, known)}")
        return cls(**{name: name not in missing for name in known})

    @property
    def names(self) -> tuple[str, ...]:
        """Those that it has."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name))


@dataclass(frozen=True, kw_only=True)
class Input:
    """A tensor that a mechanism needs besides q, k and v: a gate, a decay, a write strength.

    Shape (batch, heads, slots, width). Masked slots hold `neutral` before `attend` sees them, so that padding is exact.

    Raises:
        ConfigError: no width, or a neutral value out of bounds.
    """

    slots: Literal["queries", "keys"]
    """whose slots it has"""
    heads: Literal["query", "key"] | int
    """one for each query head, each head of keys, or so many"""
    width: int | Literal["key", "value"] = 1
    """numbers per slot and head; `key`, `value`: as wide as a key or a value"""
    low: float = -math.inf
    high: float = math.inf
    """bounds of every number, checked outside `torch.compile`"""
    neutral: float = 0.0
    """what padding gets: log decay 0, write strength 0"""

    @typed
    def __post_init__(self) -> None:
        if isinstance(self.width, int) and self.width < 1:
            raise ConfigError(f"an input needs a width of at least 1, got {self.width}")
        if not self.low <= self.neutral <= self.high:
            raise ConfigError(f"the neutral value {self.neutral} of an input lies outside [{self.low}, {self.high}]")

    def __str__(self) -> str:
        shape = f"{self.slots} x {self.heads} heads x {self.width}"
        return f"{shape}, {self.low:g} to {self.high:g}, padding {self.neutral:g}"

    def shape(self, heads: Heads) -> tuple[int, int]:
        """(heads, width) of the tensor for a mechanism that serves `heads`."""
        count = {"query": heads.count, "key": heads.kv_heads}.get(str(self.heads), self.heads)
        width = {"key": heads.key_dim, "value": heads.value_width}.get(str(self.width), self.width)
        assert isinstance(count, int)
        assert isinstance(width, int)
        return count, width


@dataclass(frozen=True, kw_only=True)
class Info:
    """Facts about a mechanism that code, checks, docs and reports all read.

    Written as a literal in each mechanism file, so that it can be read without importing torch.
    """

    title: str
    """its name in words"""
    source: str
    """paper, year, equations"""
    supports: Supports
    """what may be asked of it; anything else is refused"""
    reads: str = "qkv"
    """which of q, k, v it uses; a layer makes only these projections"""
    inputs: Mapping[str, Input] = field(default_factory=dict[str, Input])
    """what it needs besides; a layer projects them from its own input"""
    time: float = 2
    """exponent of the length in the operation count"""
    memory: float = 1
    """exponent of the length in the memory, beyond inputs and outputs"""
    state: Literal["none", "window", "constant", "length"] = "none"
    """how the decode state grows"""
    rows_sum_to_one: bool = True
    """the weights of a query that sees a key add up to 1"""
    nonnegative: bool = True
    """no weight is below 0"""
    linear_in_value: bool = True
    """twice the values give twice the output"""
    affine_in_value: bool = True
    """linear in the values plus a term that does not depend on them"""
    sees_content_only: bool = False
    """not causal: permuting the keys changes nothing, permuting the queries permutes the output"""
    shares_query_key: bool = False
    """one projection serves as query and key"""
    selects: bool = False
    """makes discrete choices (buckets, codes, top-k) from its inputs"""
    replays_choices: bool = False
    """so many of its choices round a number that no input keeps clear of every step: checks replay them instead"""
    straight_through: str = ""
    """which of q, k, v act through a discrete choice that their gradients pass as if it were the identity"""
    without_gradient: str = ""
    """which of q, k, v no gradient reaches, since it is a step function of them"""
    anchored: bool = False
    """the pattern depends on absolute slots, so left padding is refused"""
    segments: bool = False
    """marks name segments: s > 0 a token of one, -s its global token; elsewhere any mark but 0 makes a token global"""
    mixes_queries: bool = False
    """an output depends on other queries too, so it is refused where queries must be independent"""
    mergeable: bool = False
    """one softmax over its keys: asked for it, it returns the log-sum-exp by which parts are merged"""
    grouped: Literal["native", "expanded"] = "native"
    """whether query heads share heads of keys as they are, or each gets a copy"""
    stochastic: bool = False
    """draws random features or samples from its seed"""
    approximates: str | None = None
    """the mechanism whose output it approaches as `knob` grows, only where the error provably falls"""
    knob: str | None = None
    """the option that makes the approximation better as it grows"""
    compiles_whole: bool = True
    """`torch.compile(fullgraph=True)` makes one graph of it"""
    leaks: bool = False
    """a paper form whose past depends on the future"""
    losses: Mapping[str, float] = field(default_factory=dict[str, float])
    """auxiliary losses returned in training, with their default weights"""

    def explicit(self) -> Self:
        """The facts of the definition: every weight is made, every key kept, and nothing of training is left."""
        supports = replace(self.supports, dropout=False)
        state = "length" if supports.state else "none"
        return replace(self, supports=supports, state=state, time=2, memory=2, losses={}, mergeable=False)
