"""Patterns of (query, key) pairs: one rule over two positions, read in three ways.

A pattern is a function of a query position i and a key position j, such as `(j <= i) & (abs(i - j) <= 64)`.

* On integers it is the exact mask: `pattern.mask(query_positions, key_positions)`.
* On sets of positions (`Span`) it is interval arithmetic whose comparisons answer `Possibility(may, must)`: which tiles
  are empty, full or partial, without looking at their pairs: `pattern.over(queries, keys)`.
* On spans that reach to infinity it says which keys a future query can still see: `pattern.alive(keys, first)`.

Patterns combine with & | ~ and have a text, which `parse` reads back without `eval`:

    >>> import torch
    >>> pattern = causal & (window(1) | first(1))
    >>> pattern.mask(torch.arange(4), torch.arange(4)).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 1, 1]], dtype=torch.int32)
    >>> parse("causal & (window(1) | first(1))") == pattern
    True

`per_head(a, b)` gives each head a pattern of its own, and `disjoint(a, b)` says that a and b have no pair in common.
"""

import functools
import itertools
import operator
import re
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.core.errors import ConfigError, UnsupportedError
from regard.patterns.edges import Edges, drawn_blocks
from regard.patterns.intervals import FAR, Possibility, Span, followed
from regard.patterns.text import Reader

Rule = Callable[[Any, Any], Any]
"""A function of query positions and key positions that returns a condition."""


class Residues(NamedTuple):
    """The rule joins only positions that are equal modulo `stride`."""

    stride: int


class Columns(NamedTuple):
    """The rule is that j % `stride` is in [`low`, `low` + `count`), and so says nothing of the query."""

    stride: int
    low: int
    count: int


@final
class Pattern:
    """A rule for the (query, key) pairs that attend.

    Args:
        rule: a function of (i, j), positions of queries and keys. With + - * abs // % comparisons & | ~ and integers it
            is laid out by interval arithmetic; anything else that works on integer tensors is exact too, and slower:
            its mask is computed for every tile.
        text: what `parse` reads back; None: a name that is valid as long as the pattern lives.
        distances: lowest and highest i - j at which the rule may hold.
        anchored: whether the rule depends on positions beyond their difference.
        sign: what joins `terms`: & | ~, "heads" (one term per head) or "disjoint" (no common pair); None: the rule
            is not made of others.
        terms: the patterns that it is made of.
        order: in which order of positions its pairs lie close together; None: in the natural one.
    """

    __slots__ = ("__weakref__", "anchored", "distances", "heads", "order", "rule", "sign", "terms", "text")

    heads: int | None
    """how many heads it has a rule for each; None: one rule for all"""

    def __init__(
        self,
        rule: Rule,
        text: str | None = None,
        *,
        distances: tuple[int, int] = (-FAR, FAR),
        anchored: bool = True,
        sign: str | None = None,
        terms: "tuple[Pattern, ...]" = (),
        order: "Residues | Columns | None" = None,
    ) -> None:
        self.rule, self.distances, self.anchored = rule, distances, anchored
        self.sign, self.terms, self.order = sign, terms, order
        self.heads = len(terms) if sign == "heads" else None
        self.text = f"rule_{next(_numbers)}" if text is None else text
        if text is None:
            _unwritten[self.text] = self

    def of(self, head: int) -> "Pattern":
        """The pattern of one head."""
        return self.terms[head] if self.sign == "heads" else self

    def mask(
        self, query_positions: Int[Tensor, "*#rows queries"], key_positions: Int[Tensor, "*#rows keys"]
    ) -> Bool[Tensor, "... queries keys"]:
        """The exact mask (rows, queries, keys), True = keep; of a rule per head, (rows, heads, queries, keys)."""
        if self.sign == "heads":
            return torch.stack([term.mask(query_positions, key_positions) for term in self.terms], -3)
        i, j = query_positions[..., :, None], key_positions[..., None, :]
        return torch.broadcast_tensors(self.holds(i, j), i, j)[0]

    def holds(self, i: Tensor, j: Tensor) -> Tensor:
        """The rule on integer tensors that broadcast; of a rule per head, whether any holds."""
        held = self.rule(i, j)
        if not isinstance(held, Tensor):
            held = torch.as_tensor(held, device=i.device)
        if held.dtype != torch.bool:
            raise ConfigError(f"the rule of {self.text} must return booleans, got {held.dtype}")
        return held

    def over(self, i: Span, j: Span) -> Possibility:
        """The rule on sets of positions. A rule that spans cannot follow: maybe, everywhere; see `followed`."""
        try:
            truth = followed(self.rule, self.text, i, j)
        except ConfigError:
            raise
        except Exception:  # the user's code; on integers, where it must work, its errors do surface
            truth = None
        if isinstance(truth, Possibility):
            return truth
        shape = torch.broadcast_shapes(i.lo.shape, j.lo.shape)
        maybe = torch.ones(shape, dtype=torch.bool, device=i.lo.device)
        return Possibility(maybe, ~maybe)

    def alive(self, key_positions: Int[Tensor, " keys"], first_query: int) -> Bool[Tensor, " keys"]:
        """The keys that a query at `first_query` or later may still see, as a mask."""
        start = torch.tensor(first_query, device=key_positions.device)
        may = self.over(Span(start, start + FAR), Span(key_positions, key_positions, 0)).may
        return may.expand(key_positions.shape)

    def __and__(self, other: "Pattern") -> "Pattern":
        if not isinstance(other, Pattern):
            return NotImplemented
        (a, b), (c, d) = self.distances, other.distances
        return self._with(other, "&", operator.and_, (max(a, c), min(b, d)))

    def __or__(self, other: "Pattern") -> "Pattern":
        if not isinstance(other, Pattern):
            return NotImplemented
        (a, b), (c, d) = self.distances, other.distances
        return self._with(other, "|", operator.or_, (min(a, c), max(b, d)))

    def _with(self, other: "Pattern", sign: str, combine: Rule, distances: tuple[int, int]) -> "Pattern":
        heads = self.heads or other.heads
        if heads is not None:
            if (other.heads or heads) != heads:
                raise ConfigError(f"patterns of {heads} and of {other.heads} heads do not combine")
            return per_head(*(combine(self.of(h), other.of(h)) for h in range(heads)))
        if sign == "&" and "disjoint" in (self.sign, other.sign):
            one, rest = (self, other) if self.sign == "disjoint" else (other, self)
            return disjoint(*(combine(rest, term) for term in one.terms))

        def rule(i: Any, j: Any) -> Any:
            if isinstance(i, Span):
                return combine(self.over(i, j), other.over(i, j))
            return combine(self.holds(i, j), other.holds(i, j))

        text = f"({self.text} {sign} {other.text})"
        anchored = self.anchored or other.anchored
        return Pattern(rule, text, distances=distances, anchored=anchored, sign=sign, terms=(self, other))

    def __invert__(self) -> "Pattern":
        if self.sign == "heads":
            return per_head(*(~term for term in self.terms))

        def rule(i: Any, j: Any) -> Any:
            return ~(self.over(i, j) if isinstance(i, Span) else self.holds(i, j))

        return Pattern(rule, f"~{self.text}", anchored=self.anchored, sign="~", terms=(self,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text

    def __copy__(self) -> "Pattern":
        return self

    def __deepcopy__(self, memo: object) -> "Pattern":
        return self  # immutable, and a rule without text is known by its identity

    def __reduce__(self) -> tuple[Callable[..., "Pattern"], tuple[Any, ...]]:
        if self.sign is not None:
            return _JOINED[self.sign], self.terms
        try:
            parse(self.text)
        except ConfigError:
            _require_importable(self.rule)
            text = None if self.text in _unwritten else self.text
            facts = {"distances": self.distances, "anchored": self.anchored, "order": self.order}
            return functools.partial(Pattern, **facts), (self.rule, text)
        return parse, (self.text,)


def _require_importable(rule: Rule) -> None:
    """Refuse a function that another process would not find."""
    name = getattr(rule, "__qualname__", None)
    if name is not None and ("<lambda>" in name or "<locals>" in name):
        raise UnsupportedError(
            f"a pattern made of {rule.__module__}.{name} cannot be pickled: another process finds only what stands at "
            "the top of a module; define the function there, or write the pattern as text"
        )


_numbers = itertools.count()
_unwritten: weakref.WeakValueDictionary[str, Pattern] = weakref.WeakValueDictionary()
"""Patterns that have no text of their own, for as long as somebody uses them."""


def require_size(low: int, **sizes: int) -> None:
    """Refuse, by a ConfigError, what is no integer from `low` to 2^40."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < low:
            raise ConfigError(f"{name} of a pattern must be an integer of at least {low}, got {size!r}")
        if size > FAR:
            raise ConfigError(f"{name} of a pattern must be at most 2^40, further than any position, got {size}")


def _always(i: Any, j: Any) -> Any:
    if isinstance(i, Span):
        held = torch.ones(torch.broadcast_shapes(i.lo.shape, j.lo.shape), dtype=torch.bool, device=i.lo.device)
        return Possibility(held, held)
    return torch.ones(torch.broadcast_shapes(i.shape, j.shape), dtype=torch.bool, device=i.device)


everything = Pattern(_always, "everything", anchored=False)
"""Every key."""

causal = Pattern(lambda i, j: j <= i, "causal", distances=(0, FAR), anchored=False)
"""Keys at the query's own position and before."""


def window(size: int) -> Pattern:
    """Keys at most `size` positions away on either side."""
    require_size(0, size=size)
    return Pattern(lambda i, j: abs(i - j) <= size, f"window({size})", distances=(-size, size), anchored=False)


def dilated(size: int, dilation: int) -> Pattern:
    """`size` keys on either side, `dilation` positions apart."""
    require_size(0, size=size)
    require_size(1, dilation=dilation)
    far = min(size * dilation, FAR)
    return Pattern(
        lambda i, j: (abs(i - j) <= far) & ((i - j) % dilation == 0),
        f"dilated({size}, {dilation})",
        distances=(-far, far),
        anchored=False,
        order=Residues(dilation),
    )


def strided(stride: int) -> Pattern:
    """Keys whose distance is a multiple of `stride`."""
    require_size(1, stride=stride)
    return Pattern(lambda i, j: (i - j) % stride == 0, f"strided({stride})", anchored=False, order=Residues(stride))


def block(size: int, past: int = 0) -> Pattern:
    """Keys in the query's own block of `size` positions, or in one of the `past` blocks before it."""
    require_size(1, size=size)
    require_size(0, past=past)
    text, distances = f"block({size}, {past})", (1 - size, (past + 1) * size - 1)
    if past == 0:
        return Pattern(lambda i, j: i // size == j // size, text, distances=distances)
    return Pattern(lambda i, j: (j // size <= i // size) & (i // size - j // size <= past), text, distances=distances)


def summary(stride: int, count: int, offset: int = 0) -> Pattern:
    """`count` keys of every `stride` positions: the last ones, or those `offset` positions before them."""
    require_size(1, stride=stride, count=count)
    require_size(0, offset=offset)
    if count + offset > stride:
        raise ConfigError(
            f"summary({stride}, {count}, {offset}) has no {count} keys {offset} before the end of {stride}"
        )
    low, text = stride - offset - count, f"summary({stride}, {count}{f', {offset}' if offset else ''})"
    order = Columns(stride, low, count)
    if offset == 0:
        return Pattern(lambda i, j: j % stride >= low, text, order=order)
    return Pattern(lambda i, j: (j % stride >= low) & (j % stride < low + count), text, order=order)


def first(count: int) -> Pattern:
    """The first `count` keys."""
    require_size(0, count=count)
    return Pattern(lambda i, j: j < count, f"first({count})")


def per_head(*patterns: Pattern) -> Pattern:
    """A pattern for each head, in order. Its `alive`, `distances` and `anchored` are those of all heads together.

    Raises:
        ConfigError: no pattern, or one that has heads of its own.
    """
    for at, pattern in enumerate(patterns):
        if not isinstance(pattern, Pattern) or pattern.heads is not None:
            raise ConfigError(f"per_head takes one pattern for each head, got {pattern!r} for head {at}")
    if not patterns:
        raise ConfigError("per_head takes one pattern for each head, got none")

    def rule(i: Any, j: Any) -> Any:
        if isinstance(i, Span):
            truths = [pattern.over(i, j) for pattern in patterns]
            return functools.reduce(lambda a, b: Possibility(a.may | b.may, a.must & b.must), truths)
        return functools.reduce(operator.or_, (pattern.holds(i, j) for pattern in patterns))

    return Pattern(
        rule,
        f"per_head({', '.join(pattern.text for pattern in patterns)})",
        distances=(min(x.distances[0] for x in patterns), max(x.distances[1] for x in patterns)),
        anchored=any(x.anchored for x in patterns),
        sign="heads",
        terms=patterns,
    )


def disjoint(*patterns: Pattern) -> Pattern:
    """The union of patterns that have no pair in common, each of which is to be computed by itself.

    Unions of other patterns are taken apart where that pays, at the strided and summary patterns in them; this states
    the parts instead. Where they overlap, the common pairs would count twice.

    Raises:
        ConfigError: no pattern, or one that has heads or parts of its own.
    """
    for at, pattern in enumerate(patterns):
        if not isinstance(pattern, Pattern) or pattern.sign in ("heads", "disjoint"):
            raise ConfigError(f"disjoint takes patterns for all heads without parts, got {pattern!r} as number {at}")
    if not patterns:
        raise ConfigError("disjoint takes at least one pattern, got none")
    union = functools.reduce(operator.or_, patterns)
    return Pattern(
        union.rule,
        f"disjoint({', '.join(pattern.text for pattern in patterns)})",
        distances=union.distances,
        anchored=union.anchored,
        sign="disjoint",
        terms=patterns,
    )


def block_model(nodes: int, blocks: int, inside: int, outside: int, seed: int = 0) -> Pattern:
    """A random graph whose nodes see themselves and their neighbours, `inside` of their block and `outside` of others.

    These are the averages; the nodes are dealt to blocks of equal size (Holland et al. 1983).
    """
    require_size(0, inside=inside, outside=outside, seed=seed)
    require_size(1, nodes=nodes, blocks=blocks)
    rule = Edges(drawn_blocks(nodes, blocks, inside, outside, seed), nodes, loops=True)
    return Pattern(rule, f"block_model({nodes}, {blocks}, {inside}, {outside}, {seed})", distances=rule.distances)


_JOINED: dict[str, Callable[..., Any]] = {
    "&": operator.and_,
    "|": operator.or_,
    "~": operator.invert,
    "heads": per_head,
    "disjoint": disjoint,
}
"""what makes a pattern of others, by its sign"""
_VALUES = {"causal": causal, "everything": everything}
_MAKERS = {maker.__name__: maker for maker in (window, dilated, strided, block, summary, first, block_model)}
_JOINERS = {joiner.__name__: joiner for joiner in (per_head, disjoint)}


def parse(text: str) -> Pattern:
    """The pattern that a text such as "causal & (window(64) | strided(128))" describes; nothing is executed.

    Raises:
        ConfigError: anything but the names of this module, integers, & | ~ and parentheses.
    """
    return Reader(text, _VALUES, _MAKERS, _JOINERS).read()


def resolve(text: str) -> Pattern:
    """The living pattern that has this `text`, including patterns made from functions."""
    return Reader(text, {**_VALUES, **_unwritten}, _MAKERS, _JOINERS).read()


def unwritten(text: str) -> list[Pattern]:
    """The living patterns without text that `text` names; `resolve` finds it as long as somebody holds these."""
    return [_unwritten[name] for name in re.findall(r"rule_\d+", text)]
