"""Attention over any predicate of two positions."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

from torch import Tensor

from regard import patterns
from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports


@final
class Pattern(Sparse):
    """Softmax over any pattern: o_i = sum_j softmax_j(scale q_i . k_j) v_j over the j with rule(i, j).

    The rule is a text such as "window(64) | strided(128)" or "per_head(window(64), ...)" with one for each head, a
    pattern of `regard.masks`, or a function of two integer tensors that returns booleans. Interval arithmetic finds
    the tiles that it touches; a function that intervals cannot follow is exact too, and costs a mask of every tile.
    Cost: O(tiles touched x 64^2 x dim) time, O(length) memory. State: the keys that a later query may see.

    Args:
        heads: what to serve. Causal heads also ask for j <= i.
        rule: which keys j a query i sees.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: a text that is no pattern, an unknown `impl`.
        UnsupportedError: an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> Pattern(Heads(count=2, key_dim=8), rule="block(32) | first(4)")(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: block-sparse attention of Child et al. 2019, section 5.5; the patterns themselves are the user's.
    """

    info = Info(
        title="Any pattern",
        source="Child et al. 2019, section 5.5 (block-sparse attention)",
        supports=Supports(
            causal=True, bidirectional=True, cross=True, key_mask=True, bias=True, state=True, prefix=True
        ),
        time=2,
        state="length",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"rule": "window(3) | strided(4)"},
        {"rule": "window(2) | strided(3)", "impl": "torch"},
        {"rule": "block(5) | strided(4)", "scale": 0.7},
    )

    def __init__(
        self,
        heads: Heads,
        *,
        rule: str | patterns.Pattern | Callable[[Any, Any], Any] = "window(64) | strided(128)",
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if not isinstance(rule, str | patterns.Pattern):
            _require_positions(rule)
        super().__init__(heads, _read(rule), scale=scale, impl=impl, rule=rule)
        self.rule = rule

    @classmethod
    def facts(cls, **options: object) -> Info:
        """A rule of bounded distance is linear in the length; one that names positions is anchored to them."""
        info = super().facts(**options)
        rule = options.get("rule")
        if rule is None:
            return info
        pattern = _read(rule)
        info = replace(info, anchored=pattern.anchored)
        low, high = pattern.distances
        if max(-low, high) < patterns.FAR and info.supports.state:
            info = replace(info, time=1, state="window")
        return info

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """The rule on every pair."""
        return _read(self.rule).mask(i[:, 0], j[0])


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
