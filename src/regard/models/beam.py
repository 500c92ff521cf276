"""Beam search: the best continuations of each row, by log-probability and length."""

from itertools import groupby
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.errors import ConfigError, NumericsError
from regard.core.state import State
from regard.core.types_of import typed
from regard.models.continuing import require_room
from regard.models.decoder import LanguageModel, ModelState
from regard.models.encoder_decoder import EncoderDecoder, EncoderDecoderState
from regard.models.generate import Prompts, Reason, evaluation, prompt_ids


class Hypothesis(NamedTuple):
    """One continuation. tokens: every new token, the end token included. score: log p / length_penalty(length)."""

    tokens: Tensor
    log_probability: float
    score: float
    ended: Reason


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha: what the log-probability is divided by, so that short sequences have no advantage.

    Example:
        >>> length_penalty(1, 0.6), length_penalty(7, 1.0)
        (1.0, 2.0)

    Source: Wu et al. 2016, equation 14 (without the coverage term).
    """
    return ((5 + length) / 6) ** alpha


@typed
def beam_search(
    model: LanguageModel | EncoderDecoder,
    inputs: Prompts,
    *,
    max_new_tokens: int,
    beams: int = 4,
    alpha: float = 0.6,
    end_token: int | None = None,
) -> list[list[Hypothesis]]:
    """Continue prompts, or translate sources, keeping the most probable partial sequences at every step.

    A row begins with `beams` places. Each step takes the best of (unfinished sequence, next token), as many as there
    are places; a sequence that ends keeps its score and its place, so that one beam is greedy search and enough beams
    for every sequence find the best of all. Every place costs one row of the model's state; rows do not influence each
    other.

    Args:
        model: a decoder that continues prompts, or an encoder-decoder, which begins with its start token.
        inputs: token ids, one sequence per row.
        max_new_tokens: new tokens per row; what is unfinished by then ends there.
        beams: places per row.
        alpha: exponent of `length_penalty`; 0: log-probability alone.
        end_token: ends a sequence; None: the encoder-decoder's own, or none.

    Returns:
        For every row its hypotheses, best score first; at most `beams`.

    Raises:
        ConfigError: an option out of range.
        InputError: an empty row, or a token id out of range.
        LimitError: more tokens than the model was built for; raised before any token.
        NumericsError: logits that are not finite.
        UnsupportedError: a mechanism without a state.

    Example:
        >>> from regard.models import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(dim=32, vocab_size=10))
        >>> rows = beam_search(model, [[1, 2], [4]], max_new_tokens=5, beams=3)
        >>> [[len(hypothesis.tokens) for hypothesis in row] for row in rows]
        [[5, 5, 5], [5, 5, 5]]

    Source: Sutskever et al. 2014, section 3.2; Wu et al. 2016, section 7.
    """
    if max_new_tokens < 1 or beams < 1:
        raise ConfigError(f"max_new_tokens and beams must be at least 1, got {max_new_tokens} and {beams}")
    if not 0 <= alpha < float("inf"):
        raise ConfigError(f"alpha must be at least 0, got {alpha}")
    ids = prompt_ids(inputs, None)
    if isinstance(model, EncoderDecoder):
        model.embeddings.require_room(max_new_tokens)
        end_token = model.config.end_token if end_token is None else end_token
    else:
        require_room(model, ids, max_new_tokens)
    if end_token is not None and not 0 <= end_token < model.config.vocab_size:
        raise ConfigError(f"end_token must be a token below vocab_size={model.config.vocab_size}, got {end_token}")
    hypotheses: dict[int, list[Hypothesis]] = {}
    pads = isinstance(model, EncoderDecoder) and model.pads
    groups: dict[int, list[int]] = {}
    for row, x in enumerate(ids):
        groups.setdefault(0 if pads else len(x), []).append(row)
    with evaluation(model), torch.no_grad():
        for rows in groups.values():
            search = _Search(len(rows), beams, max_new_tokens, alpha, end_token)
            hypotheses.update(zip(rows, search.run(model, *_begun(model, [ids[row] for row in rows])), strict=True))
    return [hypotheses[row] for row in range(len(ids))]


def following(
    model: LanguageModel | EncoderDecoder, tokens: Tensor, state: State | None
) -> tuple[Float[Tensor, "batch vocab"], State | None]:
    """Logits behind the last of these tokens, which follow those of a state, and the state after them.

    Args:
        state: of an encoder-decoder one with its source.
    """
    if isinstance(model, EncoderDecoder):
        decoded = model.decode(tokens, cast(EncoderDecoderState, state))
        return decoded.logits[:, -1], decoded.state
    output = model.hidden(tokens, state=cast("ModelState | None", state))
    return model.logits(output.hidden[:, -1]), output.state


def _begun(model: LanguageModel | EncoderDecoder, ids: list[Tensor]) -> tuple[Tensor, State]:
    """The tokens of each row that are read first, on the model's device, and the state before them."""
    device = next(model.parameters()).device
    if isinstance(model, EncoderDecoder):
        lengths = torch.tensor([len(x) for x in ids])
        source = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device)
        mask = torch.arange(source.shape[1]) < lengths[:, None]
        start = source.new_full((len(ids), 1), model.config.start_token)
        return start, model.prepare(source, key_mask=None if mask.all() else mask.to(device))
    return torch.stack(ids).to(device), model.initial_state(len(ids))


class _Beam(NamedTuple):
    """An unfinished sequence."""

    row: int
    tokens: tuple[int, ...]
    log_probability: float


class _Search:
    """The places of every row."""

    def __init__(self, rows: int, beams: int, max_new_tokens: int, alpha: float, end_token: int | None) -> None:
        self.beams, self.max_new_tokens, self.alpha, self.end_token = beams, max_new_tokens, alpha, end_token
        self.live = [_Beam(row, (), 0.0) for row in range(rows)]
        self.finished: list[list[Hypothesis]] = [[] for _ in range(rows)]

    def run(self, model: LanguageModel | EncoderDecoder, tokens: Tensor, state: State) -> list[list[Hypothesis]]:
        """Until every place holds a finished sequence, or nothing is left to try."""
        while True:
            logits, after = following(model, tokens, state)
            assert after is not None
            parents = self._grow(logits)
            if not self.live:
                return [sorted(row, key=lambda hypothesis: -hypothesis.score) for row in self.finished]
            tokens = torch.tensor([[beam.tokens[-1]] for beam in self.live], device=logits.device)
            state = after.select(torch.tensor(parents, device=logits.device))

    def _grow(self, logits: Tensor) -> list[int]:
        """Make every unfinished sequence one token longer; where each of the new ones comes from."""
        if not torch.isfinite(logits.amax(-1)).all():
            raise NumericsError("the model's logits are not finite, so there is nothing to search: it diverged")
        steps = logits.cpu().double().log_softmax(-1)
        grown: list[_Beam] = []
        parents: list[int] = []
        for row, group in groupby(enumerate(self.live), key=lambda member: member[1].row):
            members = list(group)
            past = torch.tensor([beam.log_probability for _, beam in members], dtype=torch.float64)
            total = (past[:, None] + steps[[at for at, _ in members]]).flatten()
            free_places = self.beams - len(self.finished[row])
            best, chosen = total.topk(min(free_places, len(total)))
            for value, index in zip(best.tolist(), chosen.tolist(), strict=True):
                member_at, token = divmod(index, steps.shape[1])
                at, beam = members[member_at]
                longer = _Beam(row, (*beam.tokens, token), value)
                if value == float("-inf"):
                    break
                if not self._finish(longer):
                    grown.append(longer)
                    parents.append(at)
        self.live = grown
        return parents

    def _finish(self, beam: _Beam) -> bool:
        """Put a sequence that has ended aside."""
        stopped = beam.tokens[-1] == self.end_token
        if stopped or len(beam.tokens) == self.max_new_tokens:
            score = beam.log_probability / length_penalty(len(beam.tokens), self.alpha)
            reason: Reason = "stop" if stopped else "length"
            self.finished[beam.row].append(Hypothesis(torch.tensor(beam.tokens), beam.log_probability, score, reason))
            return True
        return False
