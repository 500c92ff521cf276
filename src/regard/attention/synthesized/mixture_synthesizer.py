"""Synthesized attention whose logits are a learned mixture of several ways to make them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, cast, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.dense import inner_products
from regard.attention.synthesized import Logits, Synthesizer
from regard.attention.synthesized.dense_synthesizer import DenseSynthesizer
from regard.attention.synthesized.factorized_dense_synthesizer import FactorizedDenseSynthesizer
from regard.attention.synthesized.factorized_random_synthesizer import FactorizedRandomSynthesizer
from regard.attention.synthesized.random_synthesizer import RandomSynthesizer
from regard.core.attention import generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.state import Entry, per_slot
from regard.engines.dense import expand_heads

PARTS: Mapping[str, tuple[type[Synthesizer], tuple[str, ...]]] = {
    "random": (RandomSynthesizer, ()),
    "factorized_random": (FactorizedRandomSynthesizer, ("rank",)),
    "dense": (DenseSynthesizer, ("hidden",)),
    "factorized_dense": (FactorizedDenseSynthesizer, ("hidden", "block_size")),
}
"""part -> its mechanism, and the options that it takes; `dot_product` has neither"""


@final
class MixtureSynthesizer(Synthesizer):
    """A softmax of several logits, weighted: o_i = sum_j softmax_j(sum_p alpha_p B^p_ij) v_j, alpha = softmax(balance).

    B^p comes from a Synthesizer, or is q_i . k_j / sqrt(d). `balance`, one number for each part, starts at 0: equal
    shares. `synthesizers` holds the parts that have weights.

    Cost: that of its parts. State: every value, and with `dot_product` every key. With `dot_product` it can look up by
    content, which no other Synthesizer does.

    Raises:
        ConfigError: no `Heads.max_length`; fewer than two parts, or one twice; an option of a part that is not there.
        LimitError: more slots than `max_length`.

    Example:
        >>> from regard import Heads, weights
        >>> heads = Heads(count=1, key_dim=8, max_length=16)
        >>> mechanism, q, k = MixtureSynthesizer(heads), *torch.randn(2, 1, 1, 5, 8)
        >>> with torch.no_grad():
        ...     _ = mechanism.balance.copy_(torch.tensor([-50.0, 0.0]))  # nothing of the random matrix
        >>> products = torch.softmax(q @ k.mT / 8**0.5, -1)
        >>> torch.allclose(weights(mechanism, q, k), products)
        True

    Source: Tay et al. 2020, section 3.4; the default is the "Random + Vanilla" of its experiments.
    """

    default_info = Info(
        title="Mixture of Synthesizers",
        source="Tay et al. 2020, section 3.4",
        supports=Supports.all(but=("cross", "bias", "marks")),
        memory=2,
        state="length",
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"parts": ("factorized_random", "dense", "factorized_dense"), "rank": 3, "hidden": 5, "block_size": 4},
        {"parts": ("dot_product", "factorized_random")},
    )

    parts: tuple[Literal["random", "factorized_random", "dense", "factorized_dense", "dot_product"], ...] = (
        "random",
        "dot_product",
    )
    """what is mixed, two or more"""
    rank: Annotated[int, Ge(1)] | None = None
    """of `factorized_random`; None: its default"""
    hidden: Annotated[int, Ge(1)] | None = None
    """width of the networks of `dense` and `factorized_dense`; None: key_dim"""
    block_size: Annotated[int, Ge(1)] | None = None
    """of `factorized_dense`; None: its default"""
    balance: nn.Parameter = weight()
    synthesizers: nn.ModuleDict = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Only inner products read keys, and only what no product of rows and columns makes is a table."""
        infos = [PARTS[part][0].default_info for part in options["parts"] if part in PARTS]
        dot = "dot_product" in options["parts"]
        query = dot or any("q" in info.reads for info in infos)
        reads = f"{'q' if query else ''}{'k' if dot else ''}v"
        return replace(cls.default_info, reads=reads, memory=max((info.memory for info in infos), default=1))

    def check_options(self) -> None:
        super().check_options()
        if len(self.parts) < 2 or len(set(self.parts)) < len(self.parts):
            raise ConfigError(f"mixture_synthesizer mixes two different parts or more, got parts={self.parts!r}")
        taken = {option for part in self.parts if part in PARTS for option in PARTS[part][1]}
        for option in ("rank", "hidden", "block_size"):
            if self.options[option] is not None and option not in taken:
                of = " or ".join(part for part, (_, options) in PARTS.items() if option in options)
                raise ConfigError(
                    f"mixture_synthesizer: {option} belongs to {of}, got {option}={self.options[option]!r} with "
                    f"parts={self.parts!r}"
                )

    def setup(self) -> None:
        # A seed of its own, so that a part does not draw what a Synthesizer beside this one draws.
        own = replace(self.heads, seed=generator(self.heads.seed, "mixture_synthesizer").initial_seed())
        self.synthesizers = nn.ModuleDict()
        for part in self.parts:
            if part in PARTS:
                cls, takes = PARTS[part]
                given = {name: self.options[name] for name in takes if self.options[name] is not None}
                self.synthesizers[part] = cls(own, **given)
        self.balance = nn.Parameter(torch.zeros(len(self.parts)))

    def kept(self, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        """Keys too, where they are read."""
        return {"k": k, "v": v} if "k" in self.info.reads else {"v": v}

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        """Rows and columns side by side, tables added up, each times its share."""
        rows: list[Tensor] = []
        columns: list[Tensor] = []
        tables: list[Tensor] = []
        for share, each in zip(self.balance.softmax(0), self._each(q, k, first, slots), strict=True):
            if each.table is not None:
                tables.append(share * each.table)
            if each.rows is not None and each.columns is not None:
                rows.append((share * each.rows).to(q.dtype).expand(q.shape[0], -1, -1, -1))
                columns.append(each.columns.to(q.dtype).expand(q.shape[0], -1, -1, -1))
        table = sum(tables[1:], tables[0]) if tables else None
        return Logits(torch.cat(rows, -1), torch.cat(columns, -1), table) if rows else Logits(table=table)

    def _each(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Iterator[Logits]:
        for part in self.parts:
            if part == "dot_product":
                assert k is not None
                yield Logits(q * q.shape[-1] ** -0.5, expand_heads(k, self.heads.count))
            else:
                yield cast(Synthesizer, self.synthesizers[part]).logits(q, k, first, slots)

    def synthesized(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """Every part whole, then their weighted sum."""
        odds = (self.balance - self.balance.max()).exp()
        total = torch.zeros((), dtype=q.dtype, device=q.device)
        for odd, part in zip(odds, self.parts, strict=True):
            if part == "dot_product":
                whole = inner_products(q, k) / q.shape[-1] ** 0.5
            else:
                whole = cast(Synthesizer, self.synthesizers[part]).synthesized(q, k, first)
            total = total + odd / odds.sum() * whole
        return total

    def state_layout(self) -> Mapping[str, Entry]:
        """Every value, and every key where they are read."""
        values = super().state_layout()
        if "k" not in self.info.reads:
            return values
        return {"k": per_slot(self.heads.kv_heads, self.heads.key_dim), **values}
