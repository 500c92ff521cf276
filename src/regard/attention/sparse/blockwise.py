"""Attention of each block of positions to one block, chosen by a permutation for each head."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.errors import ConfigError, LimitError
from regard.core.info import Info, Supports
from regard.patterns import Pattern, everything, per_head, random_blocks


@final
class Blockwise(Sparse):
    """Softmax over one block: the j with block(j) = pi_h(block(i)), block(i) = floor(i / B), pi_h a permutation.

    `blocks` = n in the paper; B = `block_size`, or max_length / n rounded up. Head h has pi_h(b) = (b + h shift) mod n:
    the identity and its shifts; or `permutations`, one for each head, repeated from the first when heads are more.
    Causal where every pi(b) <= b, which leaves of permutations the identity; so -1 stands for no block, and
    (-1, 0, 1, ...) is the block before.
    Cost: O(length B dim) time, which is 1 / n of softmax's; O(length) memory. What is lost: in one layer every other
    block. A block whose pi(b) has no keys yet returns 0.
    State (causal): the keys of the blocks that later queries see.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 2, 4, 1), torch.tensor([1.0, 3.0, 10.0, 20.0]).expand(1, 2, 4)[..., None]
        >>> mechanism = Blockwise(Heads(count=2, key_dim=1, max_length=4), blocks=2)
        >>> mechanism(q, q, v).values[0, :, :, 0].round().tolist()  # head 1 sees the other block
        [[2.0, 2.0, 15.0, 15.0], [15.0, 15.0, 2.0, 2.0]]

    Source: Qiu et al. 2020, section 3.1.
    """

    default_info = Info(
        title="Blockwise",
        source="Qiu et al. 2020, Blockwise self-attention for long document understanding, section 3.1",
        supports=Supports(bidirectional=True, key_mask=True, bias=True, dropout=True),
        time=2,
        rows_sum_to_one=False,
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"blocks": 16},
        {"blocks": 16, "shift": 3},
        {"blocks": 5, "shift": 0, "scale": 0.7},
        {"blocks": 1},
        {"blocks": 4, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "causal": "a block sees a later one; shift=0, or permutations with pi(b) <= b (-1: no block), allow it",
        "state": "a block sees a later one; shift=0, or permutations with pi(b) <= b (-1: no block), allow it",
        "cross": "blocks need queries and keys at the same positions",
    }

    blocks: Annotated[int, Ge(1), Le(1 << 16)] = 2
    """blocks in the longest sequence; 1: every key"""
    block_size: Annotated[int, Ge(1)] | None = None
    """positions in a block; None: from `heads.max_length`"""
    shift: int | None = None
    """blocks by which the permutation of a head is shifted against that of the head before; 0: all see their own block;
    None: 1, unless there are `permutations`"""
    permutations: tuple[tuple[int, ...], ...] | None = None
    """for each head the block that each block sees, -1 for none; None: by `shift`"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Where no block sees a later one it serves causal heads; where all see themselves every query has a key."""
        info, blocks, maps = super().facts(options), options["blocks"], options["permutations"]
        if maps is None:
            itself = back = (1 if options["shift"] is None else options["shift"]) % blocks == 0
        else:
            itself = all(target == b for targets in maps for b, target in enumerate(targets))
            back = all(target <= b for targets in maps for b, target in enumerate(targets))
        if back:
            supports = replace(info.supports, causal=True, state=True, prefix=True)
            info = replace(info, supports=supports, state="length" if blocks == 1 else "window")
        if itself:
            info = replace(info, rows_sum_to_one=True, anchored=blocks > 1, sees_content_only=blocks == 1)
        return info

    def check_options(self) -> None:
        longest = self.heads.max_length
        if self.block_size is None and longest is None:
            raise ConfigError("blockwise needs block_size, or Heads.max_length to divide into blocks")
        if longest is not None and self.blocks * self.size < longest:
            raise ConfigError(
                f"blockwise: {self.blocks} blocks of {self.size} positions do not hold "
                f"heads.max_length={longest} positions"
            )
        if self.permutations is None:
            return
        if self.shift is not None:
            raise ConfigError(
                f"blockwise: `permutations` say which block each block sees, so leave out shift={self.shift}"
            )
        for targets in self.permutations or ((),):
            seen = [target for target in targets if target != -1]
            if len(targets) != self.blocks or len(set(seen)) != len(seen) or not set(seen) <= set(range(self.blocks)):
                raise ConfigError(
                    f"blockwise: each of `permutations` gives {self.blocks} blocks different blocks from 0 to "
                    f"{self.blocks - 1}, or -1 for none; got {targets}"
                )

    @property
    def size(self) -> int:
        """B."""
        return -(-(self.heads.max_length or 1) // self.blocks) if self.block_size is None else self.block_size

    @property
    def maps(self) -> list[tuple[int, ...]]:
        """pi of every head."""
        if self.permutations is not None:
            return [self.permutations[head % len(self.permutations)] for head in range(self.heads.count)]
        shift = 1 if self.shift is None else self.shift
        return [tuple((b + head * shift) % self.blocks for b in range(self.blocks)) for head in range(self.heads.count)]

    def pairs(self) -> Pattern:
        """The one block of each head."""
        return per_head(*(_one_block(self.size, targets) for targets in self.maps))

    def check_length(self, length: int) -> None:
        """Refuse more positions than the blocks hold."""
        self.require_length(length)
        if length > self.blocks * self.size:
            raise LimitError(
                f"blockwise has {self.blocks} blocks of {self.size} positions, got {length} positions; "
                "build it with more or larger ones"
            )

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """The block of j is the one that the head's permutation gives the block of i."""
        rows, columns = i // self.size, j // self.size
        return torch.stack([torch.tensor(targets, device=i.device)[rows] == columns for targets in self.maps])

    def kept_slots(self, length: int) -> int:
        """Causal: those of the blocks that the block of the next query and the later ones see."""
        if not self.heads.causal or self.blocks == 1:
            return length
        seen = {target for targets in self.maps for target in targets[length // self.size :] if target >= 0}
        return sum(min(max(length - target * self.size, 0), self.size) for target in seen)


@lru_cache
def _one_block(block_size: int, targets: tuple[int, ...]) -> Pattern:
    if targets == (0,):
        return everything
    steps = [b - target for b, target in enumerate(targets) if target >= 0] or [0]
    rule = random_blocks(block_size, torch.tensor(targets)[:, None]).rule
    return Pattern(rule, distances=((min(steps) - 1) * block_size + 1, (max(steps) + 1) * block_size - 1))
