"""The memory of Transformer-XL: the most recent hidden states."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.memory._base import Memory, MemoryState, Project, join


@final
class Recent(Memory):
    """Keeps the last `length` inputs of the layer; h~ = [SG(memory); h].

    State: `length` hidden states, and their mask once one was given.

    Source: Dai et al. 2019, section 3.2.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"length": 5}, {"length": 64})
    masks: ClassVar[Mapping[str, str]] = {"hidden": "key_mask"}

    length: Annotated[int, Ge(1)] = 512
    """positions to keep"""

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> MemoryState:
        """No hidden states yet."""
        hidden = torch.zeros(batch, 0, self.dim, device=device, dtype=dtype)
        return MemoryState({"hidden": hidden}, spec_tag=self.spec_tag)

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        """All of it, detached: no gradient reaches earlier segments."""
        return state["hidden"].detach(), state.content.get("key_mask")

    def write(
        self,
        state: MemoryState,
        x: Tensor,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        project: Project,
        key_mask: Tensor | None = None,
    ) -> tuple[MemoryState, dict[str, Tensor]]:
        """The last `length` of what was kept and what came."""
        del q, k, v, project
        hidden, mask = join(state["hidden"], state.content.get("key_mask"), x.detach(), key_mask)
        kept = {"hidden": hidden[:, -self.length :]}
        if mask is not None:
            kept["key_mask"] = mask[:, -self.length :]
        return MemoryState(kept, state.length + x.shape[1]), {}
