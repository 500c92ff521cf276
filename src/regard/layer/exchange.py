"""What stands between a layer and its mechanism where other processes have the rest of the sequence."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from regard.core.attention import Attended, Attention
from regard.core.errors import UnsupportedError
from regard.position import Position


class Exchange(ABC):
    """Attention of a part of every sequence, whose other parts other processes have.

    A layer whose `exchange` it is projects its own tokens, and leaves positions and averages to it.
    """

    @property
    @abstractmethod
    def start(self) -> int:
        """The slots of the sequence before this part."""

    @abstractmethod
    def attended(
        self,
        attention: Attention,
        scheme: Position | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None,
        positions: Tensor | None,
        inputs: Mapping[str, Tensor],
    ) -> Attended:
        """The averages of this part's queries over the keys of all parts.

        Args:
            attention: the mechanism. scheme: the layer's positions, not yet applied to queries and keys.
            q, k, v, key_mask, inputs: of this part, as `Attention.forward` takes them.
            positions: of its tokens, as `AttentionLayer.forward`.
        """

    def begun(self, **given: object) -> int:
        """`start`, for a call that the parts of a sequence can share.

        Raises:
            UnsupportedError: an argument that belongs to one process.
        """
        named = [name for name, x in given.items() if x is not None]
        if named:
            raise UnsupportedError(
                f"processes that share a sequence take no {' and no '.join(named)}; leave sequence_parallel for this"
            )
        return self.start
