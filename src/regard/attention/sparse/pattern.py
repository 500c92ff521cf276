"""Attention over any predicate of two positions."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from regard import patterns
from regard.attention.sparse._base import Sparse
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports


@final
class Pattern(Sparse):
    """Softmax over any pattern: o_i = sum_j softmax_j(scale q_i . k_j) v_j over the j with rule(i, j).

    The rule is a text such as "window(64) | strided(128)" or "per_head(window(64), ...)" with one for each head, a
    pattern of `regard.patterns`, or a function of two integer tensors that returns booleans. Interval arithmetic finds
    the tiles that it touches; a function that intervals cannot follow is exact too, and costs a mask of every tile.
    Cost: O(tiles touched x 64^2 x dim) time, O(length) memory. State: the keys that a later query may see.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 2, 20, 8)
        >>> rules = "block(4) | first(2)", lambda i, j: (i // 4 == j // 4) | (j < 2)
        >>> text, function = (Pattern(Heads(count=2, key_dim=8), rule=rule)(q, k, v).values for rule in rules)
        >>> torch.allclose(text, function, atol=1e-6)
        True

    Source: block-sparse attention of Child et al. 2019, section 5.5; the patterns themselves are the user's.
    """

    default_info = Info(
        title="Any pattern",
        source="Child et al. 2019, section 5.5 (block-sparse attention)",
        supports=Supports.all(but=("marks",)),
        time=2,
        state="length",
        mergeable=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"rule": "window(3) | strided(4)"},
        {"rule": "window(2) | strided(3)"},
        {"rule": "block(5) | strided(4)", "scale": 0.7},
    )

    rule: str | patterns.Pattern | Callable[[Any, Any], Any] = "window(64) | strided(128)"
    """which keys j a query i sees; causal heads also ask for j <= i"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """A rule of bounded distance is linear in the length; one that names positions is anchored to them."""
        pattern = _read(options["rule"])
        info = super().facts(options)
        info = replace(info, anchored=pattern.anchored, mergeable=not pattern.anchored)
        low, high = pattern.distances
        return replace(info, time=1, state="window") if max(-low, high) < patterns.FAR else info

    def check_options(self) -> None:
        if not isinstance(self.rule, str | patterns.Pattern):
            _require_positions(self.rule)
        rules, count = self.pairs().heads, self.heads.count
        if rules not in (None, count):
            raise ConfigError(f"pattern has {count} heads and patterns for {rules}; give each head one, or one to all")

    def pairs(self) -> patterns.Pattern:
        """The rule as a pattern."""
        return _read(self.rule)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """The rule on every pair."""
        return _read(self.rule).mask(i[:, 0], j[0])

    def kept_slots(self, length: int) -> int:
        """Causal: those that a later query may see, as far as the rule can be followed over all later ones."""
        if not self.heads.causal:
            return length
        if not self.pattern.anchored:
            return min(length, max(self.pattern.distances[1], 0))
        return int(self.pattern.alive(torch.arange(length), length).sum())


def _read(rule: object) -> patterns.Pattern:
    if isinstance(rule, patterns.Pattern):
        return rule
    return patterns.parse(rule) if isinstance(rule, str) else patterns.Pattern(rule)  # type: ignore[arg-type]


def _require_positions(rule: Callable[[Any, Any], Any]) -> None:
    try:
        inspect.signature(rule).bind(0, 0)
    except ValueError:  # a function of C that does not say what it takes
        return
    except TypeError as error:
        raise ConfigError(f"pattern calls a rule with two positions, as in lambda i, j: i >= j, got {error}") from error
