"""Attention of each block of positions to one block, chosen by a permutation for each head."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, cast, final

import torch
from torch import Tensor

from regard.attention.sparse import Sparse
from regard.core import Attended
from regard.errors import ConfigError, LimitError
from regard.info import Heads, Info, Supports
from regard.patterns import Pattern, everything, per_head, random_blocks
from regard.state import State


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

    Args:
        heads: what to serve.
        blocks: blocks in the longest sequence; 1: every key.
        block_size: positions in a block; None: from `heads.max_length`.
        shift: blocks by which the permutation of a head is shifted against that of the head before; 0: all see their
            own block. None: 1, unless there are `permutations`.
        permutations: for each head the block that each block sees, -1 for none; None: by `shift`.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: sizes below 1, neither block_size nor max_length, blocks that do not hold max_length positions,
            `permutations` that are none, or beside a `shift`, an unknown `impl`.
        UnsupportedError: causal heads where a block sees a later one, an `impl` that this mechanism does not have.
        LimitError: more positions than the blocks hold.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> Blockwise(Heads(count=2, key_dim=8, max_length=300), blocks=3)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Qiu et al. 2020, section 3.1.
    """

    info = Info(
        title="Blockwise",
        source="Qiu et al. 2020, Blockwise self-attention for long document understanding, section 3.1",
        supports=Supports(bidirectional=True, key_mask=True, bias=True),
        time=2,
        rows_sum_to_one=False,
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"blocks": 16},
        {"blocks": 16, "shift": 3, "impl": "torch"},
        {"blocks": 5, "shift": 0, "scale": 0.7},
        {"blocks": 1},
        {"blocks": 4, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "causal": "a block sees a later one; shift=0, or permutations with pi(b) <= b (-1: no block), allow it",
        "state": "a block sees a later one; shift=0, or permutations with pi(b) <= b (-1: no block), allow it",
        "cross": "blocks need queries and keys at the same positions",
    }

    @classmethod
    def facts(cls, **options: object) -> Info:
        """Where no block sees a later one it serves causal heads; where all see themselves every query has a key."""
        info = cls.info
        blocks, shift, given = (options.get(name) for name in ("blocks", "shift", "permutations"))
        blocks, shift = 2 if blocks is None else cast("int", blocks), 1 if shift is None else cast("int", shift)
        if given is None:
            own = back = shift % blocks == 0
        else:
            maps = cast("tuple[tuple[int, ...], ...]", given)
            own = all(target == b for targets in maps for b, target in enumerate(targets))
            back = all(target <= b for targets in maps for b, target in enumerate(targets))
        if back:
            supports = replace(info.supports, causal=True, state=True, prefix=True)
            info = replace(info, supports=supports, state="length" if blocks == 1 else "window")
        if own:
            info = replace(info, rows_sum_to_one=True, anchored=blocks > 1, sees_content_only=blocks == 1)
        if options.get("impl") == "reference":
            return replace(info, supports=replace(info.supports, state=False), state="none", memory=2)
        return info

    def __init__(
        self,
        heads: Heads,
        *,
        blocks: int = 2,
        block_size: int | None = None,
        shift: int | None = None,
        permutations: tuple[tuple[int, ...], ...] | None = None,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if blocks < 1 or (block_size is not None and block_size < 1):
            raise ConfigError(f"blockwise needs blocks >= 1 and block_size >= 1, got {blocks=}, {block_size=}")
        longest = heads.max_length
        if block_size is None:
            if longest is None:
                raise ConfigError("blockwise needs block_size, or Heads.max_length to divide into blocks")
            block_size = -(-longest // blocks)
        if longest is not None and blocks * block_size < longest:
            raise ConfigError(
                f"blockwise: {blocks} blocks of {block_size} positions do not hold {heads.max_length=} positions"
            )
        if permutations is None:
            shift = 1 if shift is None else shift
            maps = [tuple((b + h * shift) % blocks for b in range(blocks)) for h in range(heads.count)]
        elif shift is not None:
            raise ConfigError(f"blockwise: `permutations` say which block each block sees, so leave out {shift=}")
        else:
            _check(permutations, blocks)
            maps = [permutations[h % len(permutations)] for h in range(heads.count)]
        pattern = per_head(*(_one_block(block_size, targets) for targets in maps))
        super().__init__(heads, pattern, scale=scale, impl=impl, blocks=blocks, shift=shift, permutations=permutations)
        self.blocks, self.block_size, self.shift = blocks, block_size, shift
        self.permutations, self.maps = permutations, maps

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, **given: Any) -> Attended:  # type: ignore[override]
        """Over the tiles of the pattern, within the blocks that there are."""
        length = k.shape[2] + (0 if state is None else state.length)
        self.require_length(length)
        if length > self.blocks * self.block_size:
            raise LimitError(
                f"blockwise has {self.blocks} blocks of {self.block_size} positions, got {length} positions; "
                "build it with more or larger ones"
            )
        return super().attend(q, k, v, state=state, **given)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """The block of j is the one that the head's permutation gives the block of i."""
        rows, columns = i // self.block_size, j // self.block_size
        return torch.stack([torch.tensor(targets, device=i.device)[rows] == columns for targets in self.maps])


def _check(permutations: tuple[tuple[int, ...], ...], blocks: int) -> None:
    for targets in permutations or ((),):
        seen = [target for target in targets if target != -1]
        if len(targets) != blocks or len(set(seen)) != len(seen) or not set(seen) <= set(range(blocks)):
            raise ConfigError(
                f"blockwise: each of `permutations` gives {blocks} blocks different blocks from 0 to {blocks - 1}, "
                f"or -1 for none; got {targets}"
            )


@lru_cache
def _one_block(block_size: int, targets: tuple[int, ...]) -> Pattern:
    if targets == (0,):
        return everything
    steps = [b - target for b, target in enumerate(targets) if target >= 0] or [0]
    rule = random_blocks(block_size, torch.tensor(targets)[:, None]).rule
    return Pattern(rule, distances=((min(steps) - 1) * block_size + 1, (max(steps) + 1) * block_size - 1))
