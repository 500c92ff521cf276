"""What turns every position into `rank` slots: learned mixtures, means, maxima, or a convolution."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class Projection(nn.Module, ABC):
    """Template: keys and values of every position in, `rank` slots of each out; what is hidden holds 0."""

    @abstractmethod
    def forward(
        self,
        k: Float[Tensor, "batch kv_heads keys dim"],
        v: Float[Tensor, "batch kv_heads keys value"],
        real: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch kv_heads rank dim"], Float[Tensor, "batch kv_heads rank value"]]:
        """Slots of the keys and of the values."""


class Matrices(Projection):
    """Template: slots E k and F v."""

    @abstractmethod
    def matrices(self, keys: int) -> tuple[Tensor, Tensor]:
        """The first columns of E and F, where there are fewer keys than max_length."""

    def forward(self, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        del real
        e, f = (x.to(k.dtype) for x in self.matrices(k.shape[2]))
        return _mixed(e, k), _mixed(f, v)


def _mixed(
    matrix: Float[Tensor, "own rank keys"], x: Float[Tensor, "batch kv_heads keys dim"]
) -> Float[Tensor, "batch kv_heads rank dim"]:
    """The matrix of every head, or of all, times its vectors.

    One matrix takes all heads of a row at once: so its gradient is one product, not a sum over heads. Of one row the
    products are not spread over the batch, whose gradient would be copied to be summed.
    """
    if len(matrix) == 1:
        beside = torch.bmm(matrix.expand(len(x), -1, -1), x.transpose(1, 2).flatten(2))
        return beside.unflatten(2, x.shape[1::2]).transpose(1, 2)
    return torch.bmm(matrix, x[0])[None] if len(x) == 1 else matrix @ x


class Mixtures(Matrices):
    """The matrices E (for keys) and F (for values), (kv_heads or 1, rank, max_length); F is E if `value` is None."""

    def __init__(self, key: Tensor, value: Tensor | None) -> None:
        super().__init__()
        self.key = nn.Parameter(key)
        self.value = None if value is None else nn.Parameter(value)

    def matrices(self, keys: int) -> tuple[Tensor, Tensor]:
        """The first columns of both."""
        e = _first(self.key, keys)
        return e, e if self.value is None else _first(self.value, keys)


def _first(matrix: Tensor, keys: int) -> Tensor:
    """The first columns. Of all of them no slice, whose gradient would be copied into zeros; a graph asks no length."""
    return matrix if not torch.compiler.is_compiling() and keys == matrix.shape[-1] else matrix[..., :keys]


class Means(Matrices):
    """Fixed means over `rank` equal blocks of max_length positions, as both E and F."""

    block: Tensor

    def __init__(self, rank: int, max_length: int) -> None:
        super().__init__()
        self.rank = rank
        self.register_buffer("block", blocks(rank, max_length), persistent=False)

    def matrices(self, keys: int) -> tuple[Tensor, Tensor]:
        """The first columns; in float64, since a third in float32 would stay one."""
        member = (self.block == torch.arange(self.rank, device=self.block.device)[:, None]).double()
        e = (member / member.sum(1, keepdim=True).clamp(min=1))[None, :, :keys]
        return e, e


class Maxima(Projection):
    """The largest number of each channel over the real positions of a block; 0 of a block without any."""

    members: Tensor

    def __init__(self, rank: int, max_length: int) -> None:
        super().__init__()
        of = blocks(rank, max_length)
        sizes = torch.bincount(of, minlength=rank)
        members = torch.full((rank, max(int(sizes.max()), 1)), max_length)
        members[of, torch.arange(max_length) - (sizes.cumsum(0) - sizes)[of]] = torch.arange(max_length)
        self.register_buffer("members", members, persistent=False)

    def forward(self, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._highest(k, real), self._highest(v, real)

    def _highest(self, x: Tensor, real: Tensor | None) -> Tensor:
        if real is not None:
            x = x.masked_fill(~real[:, None, :, None], float("-inf"))
        behind = F.pad(x, (0, 0, 0, 1), value=float("-inf"))  # the one row that stands for every missing member
        highest = behind[:, :, self.members.clamp(max=x.shape[2])].amax(3)
        return torch.where(highest == float("-inf"), 0.0, highest)


class Filters(Projection):
    """A convolution whose kernel is as wide as its stride: sum_s w_s k_(r size + s), the same w for every channel.

    `key` and `value` are w for both, (kv_heads or 1, size), where rank times size reaches max_length; one kernel serves
    both if `value` is None.
    """

    def __init__(self, rank: int, key: Tensor, value: Tensor | None) -> None:
        super().__init__()
        self.rank = rank
        self.key = nn.Parameter(key)
        self.value = None if value is None else nn.Parameter(value)

    def forward(self, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        del real
        return self._filtered(k, self.key), self._filtered(v, self.key if self.value is None else self.value)

    def _filtered(self, x: Tensor, kernel: Tensor) -> Tensor:
        size = kernel.shape[1]
        whole = F.pad(x, (0, 0, 0, self.rank * size - x.shape[2])).unflatten(2, (self.rank, size))
        return (whole * kernel[:, None, :, None].to(x.dtype)).sum(3)


def blocks(rank: int, max_length: int) -> Tensor:
    """The block of each position."""
    return torch.arange(max_length) * rank // max_length
