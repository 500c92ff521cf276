"""LSH attention within chunks of the sorted sequence, as Reformer publishes it; it leaks the future."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.routed import Routed
from regard.attention.routed.lsh import Buckets, Lsh, direction
from regard.core.attention import Attended, Call
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.randomness import decided


@final
class LshPublished(Routed):
    """Softmax over the keys of the query's buckets, as `lsh`, that lie in its chunk of a round or in the one before.

    Each round sorts the tokens by (bucket, position), hidden ones last, and cuts them into chunks of `bucket_size`. One
    projection serves as query and key. Where a chunk begins depends on the buckets of later tokens, so it leaks.
    (Public code also attends across the buckets of a chunk.)

    Cost: as `lsh`, but O(rounds length bucket_size dim) time besides the hashes, however the tokens spread.

    Source: Kitaev, Kaiser, Levskaya 2020 (Reformer), section 2.
    """

    default_info = Info(
        title="Locality-sensitive hashing in chunks",
        source="Kitaev, Kaiser, Levskaya 2020, Reformer, section 2",
        supports=Supports(causal=True, bidirectional=True, key_mask=True),
        shares_query_key=True,
        selects=True,
        stochastic=True,
        leaks=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"num_buckets": 2, "rounds": 1, "bucket_size": 2},)
    reasons: ClassVar[Mapping[str, str]] = {
        **Lsh.reasons,
        **dict.fromkeys(("cross", "prefix", "state"), "a query's chunk depends on the whole sequence of keys"),
    }

    rounds: Annotated[int, Ge(1)] = 4
    """independent hashes"""
    bucket_size: Annotated[int, Ge(1)] = 64
    """the length of a chunk; tokens per bucket at `max_length`"""
    num_buckets: Annotated[int, Ge(1)] | None = None
    """even, or 1 for a single bucket; None: max_length / bucket_size, rounded up to an even number"""
    duplicates: bool = False
    """a key met in several rounds counts once per round"""
    lsh: Lsh = weight()
    """its hashes, its average and its definition"""

    def setup(self) -> None:
        self.lsh = Lsh(self.heads, **self.options)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the rotations again."""
        self.lsh.redraw(generator)

    def check_length(self, length: int) -> None:
        """Refuse what is longer than the `max_length` that fixed the buckets."""
        self.lsh.check_length(length)

    def decisions(self, q: Tensor, k: Tensor) -> Buckets:
        """The buckets of queries and keys."""
        return self.lsh.decisions(q, k)

    def choices(self, q: Tensor, k: Tensor, call: Call) -> Buckets:
        """The same by definition."""
        return self.lsh.choices(q, k, call)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Hash, sort, and meet the keys of each round in two: those of the query's chunk, and of the one before."""
        chunks = k.shape[2] // self.bucket_size + 2
        ours, theirs = decided(lambda: self.decisions(q, k))
        ours, theirs = (x * chunks + 1 + self.chunks(x, call.key_mask) for x in (ours, theirs))
        codes = torch.cat([ours, ours - 1], -1), torch.cat([theirs, theirs], -1)
        choices, crowd = self.lsh.buckets * chunks, self.bucket_size
        values = self.lsh.average(q, direction(k), v, codes, call, choices, crowd, duplicates=self.duplicates)
        return Attended(values, call.state)

    def chunks(self, buckets: Tensor, key_mask: Tensor | None) -> Tensor:
        """The chunk of each token in each round."""
        if key_mask is not None:
            buckets = buckets.masked_fill(~key_mask[:, None, :, None], self.lsh.buckets)
        return buckets.argsort(dim=2, stable=True).argsort(dim=2) // self.bucket_size

    def logits(self, q: Tensor, k: Tensor, choices: Buckets, call: Call) -> Tensor:
        """Every pair of every round; a token's place is how many stand before it in the order of (bucket, position)."""
        slots, codes = torch.arange(k.shape[2], device=k.device)[:, None], list[Tensor]()
        for buckets in choices:
            real = 1 if call.key_mask is None else call.key_mask[:, None, :, None].long()
            order = (buckets * real + self.lsh.buckets * (1 - real)) * len(slots) + slots
            chunk = (order[..., None, :, :] < order[..., :, None, :]).sum(-2) // self.bucket_size
            codes.append(buckets * (len(slots) + 1) + chunk)
        ours, theirs = codes
        met = Buckets(torch.cat([ours, ours - 1], -1), torch.cat([theirs, theirs], -1))
        return self.lsh.logits(q, k, met, call)
