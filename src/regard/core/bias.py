"""Score biases as data indexed by distance: no tensor of queries x keys unless the user brings one."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.errors import ShapeError


@dataclass(frozen=True, kw_only=True)
class ScoreBias:
    """A term added to the logits. Distance is query slot - key slot; column c belongs to distance `high - c`.

    Parts are added up, after the scale of the logits. A distance without a column gets 0. A mechanism says by
    `bias_distances` which distances it reads.

    Args:
        high: the distance of column 0, in slots.
        curve: (heads, distances), added to the logit (ALiBi, T5).
        query: (batch, heads, queries, dim), with `relative`: their product is a logit per query and distance.
        relative: (heads, distances, dim).
        table: (batch or 1, heads or 1, queries, keys), float with -inf or boolean True = keep; for small inputs. Keys
            that came earlier through a state are counted: its last axis covers every key that the mechanism sees.

    Raises:
        ShapeError: `query` without `relative` or the reverse, or widths that differ.

    Example:
        One head of ALiBi with slope 0.5, for distances 2, 1 and 0:

        >>> alibi = ScoreBias(high=2, curve=torch.tensor([[-1.0, -0.5, 0.0]]))
        >>> slots = torch.arange(3)
        >>> alibi.logits(slots, slots)[0, 0].tril()
        tensor([[ 0.0000,  0.0000,  0.0000],
                [-0.5000,  0.0000,  0.0000],
                [-1.0000, -0.5000,  0.0000]])
    """

    high: int = 0
    curve: Float[Tensor, "heads distances"] | None = None
    query: Float[Tensor, "batch heads queries dim"] | None = None
    relative: Float[Tensor, "heads distances dim"] | None = None
    table: Float[Tensor, "b h queries keys"] | Bool[Tensor, "b h queries keys"] | None = None

    def __post_init__(self) -> None:
        if (self.query is None) != (self.relative is None):
            raise ShapeError("ScoreBias takes `query` and `relative` together, got only one of them")
        if self.curve is not None and self.relative is not None and self.curve.shape[1] != self.relative.shape[1]:
            raise ShapeError(
                f"ScoreBias: curve has {self.curve.shape[1]} distances, relative {self.relative.shape[1]}; "
                "both start at distance `high`"
            )

    @property
    def by_distance(self) -> bool:
        """Whether any part is indexed by distance."""
        return self.curve is not None or self.relative is not None

    @property
    def distances(self) -> int:
        """Columns of the parts that are indexed by distance."""
        if self.curve is not None:
            return self.curve.shape[1]
        return 0 if self.relative is None else self.relative.shape[1]

    def logits(
        self, query_positions: Int[Tensor, " queries"], key_positions: Int[Tensor, " keys"]
    ) -> Float[Tensor, "b h queries keys"]:
        """Every part as one tensor, for references and short calls."""
        distance = query_positions[:, None] - key_positions[None, :]
        total: Tensor | None = None
        if self.by_distance:
            column = self.high - distance
            inside = (column >= 0) & (column < self.distances)
            column = column.clamp(0, max(self.distances - 1, 0))
            if self.curve is not None:
                total = self.curve[:, column].masked_fill(~inside, 0)[None]
            if self.query is not None and self.relative is not None:
                by_column = self.query @ self.relative.mT
                picked = by_column.gather(-1, column.expand(*by_column.shape[:2], -1, -1)).masked_fill(~inside, 0)
                total = picked if total is None else total + picked
        if self.table is not None:
            table = self.table
            if table.dtype == torch.bool:
                table = torch.zeros(table.shape, device=table.device).masked_fill(~table, float("-inf"))
            total = table if total is None else total + table
        if total is None:
            return torch.zeros(1, 1, *distance.shape, device=distance.device)
        return total

    def heads(self, picked: slice) -> "ScoreBias":
        """The bias of some of the heads (parts with one shared head stay as they are)."""

        def pick(x: Tensor | None, axis: int) -> Tensor | None:
            return x if x is None or x.shape[axis] == 1 else x[(slice(None),) * axis + (picked,)]

        return replace(
            self,
            curve=pick(self.curve, 0),
            query=pick(self.query, 1),
            relative=pick(self.relative, 0),
            table=pick(self.table, 1),
        )
