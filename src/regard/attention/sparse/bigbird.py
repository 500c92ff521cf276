"""Blocks: neighbours, global ones and random ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from jaxtyping import Int
from torch import Tensor

from regard.attention.sparse._globals import Globals
from regard.core.attention import generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.patterns import Pattern, per_head, random_blocks
from regard.patterns.picks import draw, visible


@final
class Bigbird(Globals):
    """Softmax over blocks of b positions: the query's own and its two neighbours, g global ones, r random ones.

    `block_size` = b, `num_global` = g, `num_random` = r. Form `itc` (internal): the first g blocks are global, and with
    `last_global` the last block of `max_length` too, as in the authors' code; every other query block of every head
    sees r more blocks, drawn once from the seed among those that it does not see yet. Form `etc` (extended): the first
    g tokens are global, and there are no random blocks. In both, tokens with a mark other than 0 are global as well,
    different ones in every batch row; whatever is global sees all and is seen by all. Causal: all this, and j <= i.
    The pattern is the same at every length up to `max_length`: a shorter sequence is the start of the longest one, its
    random blocks past the end do not exist, and it is never replaced by dense attention.
    Cost: O(length (3 + g + r) b dim) time, O(length) memory, for b of 64 and more; smaller blocks fill tiles of 64 in
    part. What is lost: any two tokens meet over two layers, but only through the global blocks or by chance.
    State: every key and value, since a global token that is yet to come sees all.

    Example:
        >>> from regard import Heads, weights
        >>> q = torch.zeros(1, 1, 8, 8)
        >>> mechanism = Bigbird(Heads(count=1, key_dim=8, max_length=8), block_size=1, num_random=1)
        >>> (weights(mechanism, q, q) > 0).sum(-1).flatten().tolist()  # own, neighbours, first, last, random; or global
        [8, 5, 6, 6, 6, 6, 5, 8]

    Source: Zaheer et al. 2020, sections 2 and 3.1, appendix D. The published code draws some blocks that are visible
    already and counts them twice; ours are always others.
    """

    default_info = Info(
        title="Neighbour, global and random blocks (BigBird)",
        source="Zaheer et al. 2020, sections 2 and 3.1, appendix D",
        supports=Supports.all(but=("cross",)),
        time=1,
        state="length",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"block_size": 2, "num_random": 2},
        {"form": "etc", "block_size": 3, "num_global": 2, "scale": 0.7},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "neighbours need queries and keys at the same positions"}

    block_size: Annotated[int, Ge(1)] = 64
    """positions in a block"""
    num_global: Annotated[int, Ge(0)] = 1
    """form `itc`: global blocks at the start; form `etc`: global tokens there"""
    num_random: Annotated[int, Ge(0)] | None = None
    """random blocks per query block and head; causal, among the earlier ones; None: 3; form `etc`: none"""
    last_global: bool | None = None
    """whether the last block of `max_length` is global; None: it is; form `etc`: it is not"""
    form: Literal["itc", "etc"] = "itc"
    """`itc` (internal) or `etc` (extended)"""

    picks: Tensor = weight()
    """form `itc`: for every head and query block, its random key blocks, -1 for none"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Random blocks smaller than a tile touch most tiles of a short sequence, each with a mask of its own."""
        chance = options["form"] == "itc" and options["num_random"] != 0
        info = cls.default_info
        return replace(info, time=2, memory=2) if chance and options["block_size"] < 64 else info

    def check_options(self) -> None:
        if self.form == "etc" and (self.num_random or self.last_global):
            raise ConfigError(
                "bigbird(form='etc') has neither random blocks nor a global last one, got "
                f"num_random={self.num_random}, last_global={self.last_global}; leave them out, or use form='itc'"
            )
        if self.form == "itc" and self.heads.max_length is None:
            raise ConfigError("bigbird places its blocks within a longest length; give max_length, or form='etc'")

    def draw_weights(self) -> None:
        """The random blocks."""
        internal = self.form == "itc"
        self.num_random = (3 if internal else 0) if self.num_random is None else self.num_random
        self.last_global = internal if self.last_global is None else self.last_global
        if not internal:
            return
        sees = visible(self.blocks, self.num_global, self.last)
        sources = [generator(self.heads.seed, "bigbird", head) for head in range(self.heads.count)]
        picks = [draw(sees, self.num_random, causal=self.heads.causal, source=source) for source in sources]
        self.register_buffer("picks", torch.stack(picks))
        self.register_load_state_dict_post_hook(_follow)

    @property
    def blocks(self) -> int:
        """Blocks in the longest sequence."""
        return -(-(self.heads.max_length or 0) // self.block_size)

    @property
    def last(self) -> int:
        """The last block, where it is global; -1: it is not."""
        return self.blocks - 1 if self.last_global else -1

    @property
    def leading(self) -> int:
        """Form `etc`: the first tokens that are global."""
        return self.num_global if self.form == "etc" else 0

    def pairs(self) -> Pattern:
        """Neighbouring blocks; form `itc`: and global ones, and the random ones of every head."""
        if self.form == "etc":
            return _local(self.block_size, 0, -1)
        certain = _local(self.block_size, self.num_global, self.last)
        return per_head(*(certain | random_blocks(self.block_size, each) for each in self.picks))

    def place(self, picks: Int[Tensor, "heads blocks picks"]) -> None:
        """Take these random blocks: for every head and query block, key blocks, -1 for none.

        None may be visible already: a pair that is seen twice counts once.
        """
        self.picks = picks
        self.make_pattern()

    def check_length(self, length: int) -> None:
        """Refuse more slots than `max_length`, in form `itc`."""
        if self.form == "itc":
            self.require_length(length)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """Neighbouring, global and picked blocks."""
        rows, columns = i // self.block_size, j // self.block_size
        near = (rows - columns).abs() <= 1
        if self.form == "etc":
            return near
        for block in (rows, columns):
            near = near | (block < self.num_global) | (block == self.last)
        return torch.stack([near | (each[rows[:, 0]][:, None] == columns[..., None]).any(-1) for each in self.picks])


def _local(size: int, first: int, last: int) -> Pattern:
    """Neighbouring blocks, and the first ones and the last as rows and columns."""
    near = Pattern(lambda i, j: abs(i // size - j // size) <= 1, distances=(1 - 2 * size, 2 * size - 1))
    if not first and last < 0:
        return near
    ends = Pattern(lambda i, j: (i // size < first) | (j // size < first) | (i // size == last) | (j // size == last))
    return near | ends


def _follow(module: Bigbird, keys: object) -> None:
    """After loading: the pattern is that of the loaded picks."""
    del keys
    module.place(module.picks)
