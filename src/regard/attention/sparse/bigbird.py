"""Blocks: neighbours, global ones and random ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.sparse import Globals
from regard.core import Attended, generator
from regard.errors import ConfigError, nearest
from regard.info import Heads, Info, Supports
from regard.patterns import Pattern, causal, per_head, random_blocks
from regard.patterns.picks import draw, visible
from regard.state import State

FORMS = ("itc", "etc")


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

    Args:
        heads: what to serve; form `itc` needs `max_length`.
        block_size: positions in a block.
        num_global: form `itc`: global blocks at the start; form `etc`: global tokens there.
        num_random: random blocks per query block and head; causal, among the earlier ones. None: 3; form `etc`: none.
        last_global: whether the last block of `max_length` is global. None: it is; form `etc`: it is not.
        form: `itc` or `etc`.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state.

    Raises:
        ConfigError: a size below 1, a negative number, an unknown `form` or `impl`; no `max_length` in form `itc`;
            random blocks or a global last one in form `etc`.
        LimitError: in form `itc`, a sequence longer than `max_length`.

    Example:
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> Bigbird(Heads(count=2, key_dim=8, max_length=512), block_size=16)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Zaheer et al. 2020, sections 2 and 3.1, appendix D. The published code draws some blocks that are visible
    already and counts them twice; ours are always others.
    """

    info = Info(
        title="Neighbour, global and random blocks (BigBird)",
        source="Zaheer et al. 2020, sections 2 and 3.1, appendix D",
        supports=Supports(
            causal=True, bidirectional=True, key_mask=True, bias=True, marks=True, state=True, prefix=True
        ),
        time=1,
        state="length",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"block_size": 2, "num_random": 2},
        {"form": "etc", "block_size": 3, "num_global": 2, "impl": "torch", "scale": 0.7},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "neighbours need queries and keys at the same positions"}

    @classmethod
    def facts(cls, **options: object) -> Info:
        """Random blocks smaller than a tile touch most tiles of a short sequence, each with a mask of its own."""
        info, size = super().facts(**options), options.get("block_size", 64)
        assert isinstance(size, int)
        chance = options.get("form", "itc") == "itc" and options.get("num_random") != 0
        return replace(info, time=2, memory=2) if size < 64 and chance else info

    def __init__(
        self,
        heads: Heads,
        *,
        block_size: int = 64,
        num_global: int = 1,
        num_random: int | None = None,
        last_global: bool | None = None,
        form: Literal["itc", "etc"] = "itc",
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch"] = "auto",
    ) -> None:
        if block_size < 1 or min(num_global, num_random or 0) < 0:
            raise ConfigError(
                "bigbird needs block_size >= 1, num_global >= 0 and num_random >= 0, got "
                f"{block_size=}, {num_global=}, {num_random=}"
            )
        if form not in FORMS:
            raise ConfigError(f"bigbird has no form={form!r}; {nearest(form, FORMS)}")
        if form == "etc" and (num_random or last_global):
            raise ConfigError(
                "bigbird(form='etc') has neither random blocks nor a global last one, got "
                f"{num_random=}, {last_global=}; leave them out, or use form='itc'"
            )
        num_random = (3 if form == "itc" else 0) if num_random is None else num_random
        last_global = form == "itc" if last_global is None else last_global
        blocks = 0
        if form == "itc":
            if heads.max_length is None:
                raise ConfigError("bigbird places its blocks within a longest length; give max_length, or form='etc'")
            blocks = -(-heads.max_length // block_size)
        super().__init__(
            heads,
            _local(block_size, 0, -1),
            leading=num_global if form == "etc" else 0,
            symmetric=True,
            scale=scale,
            impl=impl,
            block_size=block_size,
            form=form,
            num_random=num_random,
        )
        self.block_size, self.num_global, self.num_random = block_size, num_global, num_random
        self.last_global, self.last = last_global, blocks - 1 if last_global else -1
        self.form: Literal["itc", "etc"] = form
        self.picks: Tensor
        if form == "itc":
            sees = visible(blocks, num_global, self.last)
            each = [generator(heads.seed, "bigbird", head) for head in range(heads.count)]
            picks = [draw(sees, num_random, causal=heads.causal, source=source) for source in each]
            self.register_buffer("picks", torch.stack(picks))
            self.register_load_state_dict_post_hook(_follow)
            self.place(self.picks)

    def place(self, picks: Int[Tensor, "heads blocks picks"]) -> None:
        """Take these random blocks: for every head and query block, key blocks, -1 for none.

        None may be visible already: a pair that is seen twice counts once.
        """
        first = _local(self.block_size, self.num_global, self.last)
        pattern = per_head(*(first | random_blocks(self.block_size, each) for each in picks))
        self.pattern = causal & pattern if self.heads.causal else pattern
        self.picks = picks

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, **given: Any) -> Attended:
        """Within `max_length`, as the template."""
        if self.form == "itc":
            self.require_length(k.shape[2] + (0 if state is None else state.length))
        return super().attend(q, k, v, state=state, **given)

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
