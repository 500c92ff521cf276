"""A text that grows in turns, of which each turn reads only what is new."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.core.errors import LimitError
from regard.core.types_of import typed
from regard.models.decoder import LanguageModel, ModelState
from regard.models.generate import Piece, Row, Tokenizer, check, evaluation, prompt_ids, read
from regard.models.sampling import Sampling

_KEPT = 4
"""states: those of the prompts and the replies of two turns, which share what they have in common"""


class Conversation:
    """A text that a model continues, then somebody else, then the model again.

    The states after every prompt and every reply are kept, so that a turn costs its own tokens only. A text that does
    not begin with what was read (a template that leaves something out of earlier turns, a reply that a tokenizer would
    have cut otherwise) is read from the latest state that it does begin with: the result is always that of the whole
    text. A model with a layer that keeps no state reads all of it for every token.

    Args:
        model: it runs in evaluation mode, and is left in the mode it was in.
        tokenizer: turns texts into ids and ids into text.

    Example:
        >>> from regard.models import ModelConfig
        >>> from regard.text.tokenizer import ByteTokenizer
        >>> conversation = Conversation(LanguageModel(ModelConfig(dim=32, vocab_size=256)), ByteTokenizer())
        >>> len([piece.token for piece in conversation.reply([1, 2, 3], max_new_tokens=5)])
        5
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.turns = 0
        self._kept: list[tuple[Tensor, ModelState]] = []

    @typed
    def reply(
        self,
        text: str | Sequence[int] | np.ndarray | Tensor,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: tuple[str, ...] = (),
        stop_tokens: Collection[int] = (),
    ) -> Iterator[Piece]:
        """Continue the conversation, token by token.

        Args:
            text: all of the conversation up to here, earlier replies included; or its token ids, (length,).
            max_new_tokens: of this reply; fewer where the model has no more positions.
            temperature, top_k, top_p, stop, stop_tokens: as `generate`.
            seed: of the draws, which also depend on the number of the turn.

        Raises:
            ConfigError, InputError, ShapeError: as `generate`.
            LimitError: the conversation has become longer than the model's positions. All at the call, before any
                token.
            NumericsError: logits that are not finite.
        """
        sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=top_p)
        check(max_new_tokens, stop, self.tokenizer)
        (ids,) = prompt_ids([text], self.tokenizer)
        limit = self.model.limit
        room = max_new_tokens if limit is None else limit + 1 - len(ids)
        if room < 1 <= max_new_tokens:
            raise LimitError(
                f"the conversation has {len(ids)} tokens, and this model max_length={limit}; begin a new one"
            )
        new = max(0, min(max_new_tokens, room))
        row = Row(self.turns, ids, new, stop, stop_tokens, self.tokenizer.stream(ids.tolist()), seed)
        self.turns += 1
        return self._pieces(row, sampling) if new else iter(())

    def _pieces(self, row: Row, sampling: Sampling) -> Iterator[Piece]:
        device = self.model.table.weight.device
        seen, state = row.prompt, None
        if self.model.streams:
            known, state = self._latest(row.prompt)
            unread = row.prompt[known:]
        else:
            unread = row.prompt
        while True:
            with evaluation(self.model), torch.inference_mode():
                logits, state, _ = read(self.model, unread[None].to(device), None, state)
            if len(seen) == len(row.prompt):
                self._keep(seen, state)
            token = sampling.pick(logits, row.uniform()[None])
            piece = row.accept(int(token))
            if piece.ended:
                self._keep(seen, state)
            yield piece
            if piece.ended:
                return
            seen = torch.cat([seen, token])
            unread = token if state is not None else seen

    def _latest(self, ids: Tensor) -> tuple[int, ModelState]:
        """How many of these ids were read, all but one at most, and the state after them."""
        best, state = 0, None
        for known, kept in self._kept:
            if best < len(known) < len(ids) and known.equal(ids[: len(known)]):
                best, state = len(known), kept
        if state is None:
            with torch.inference_mode():
                state = self.model.initial_state(1)
        return best, state

    def _keep(self, ids: Tensor, state: ModelState | None) -> None:
        if state is not None and not any(known.equal(ids) for known, _ in self._kept):
            self._kept = [*self._kept, (ids, state)][-_KEPT:]
