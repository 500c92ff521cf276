"""Text from a language model: prompts of any lengths in one batch, token by token."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError, ShapeError, UnsupportedError, kind_of
from regard.core.types_of import typed
from regard.models.continuing import Continuing, require_room
from regard.models.decoder import LanguageModel, ModelState
from regard.models.lookup import checked, guess
from regard.models.sampling import Sampling

Prompts = Tensor | np.ndarray | Sequence[str | Sequence[int] | np.ndarray | Tensor]
Reason = Literal["length", "stop"]


class TextStream(Protocol):
    """Text from token ids that come one after the other; only whole characters come out."""

    def feed(self, ids: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        ...

    def finish(self) -> str:
        """The text that an unfinished character becomes at the end."""
        ...

    @property
    def pending(self) -> str:
        """Whole characters that did not come yet, since tokens that follow may still change them."""
        ...


class Tokenizer(Protocol):
    """The part of a tokenizer that generating needs; `regard.text.tokenizer` has some."""

    def encode(self, text: str) -> np.ndarray | Sequence[int]:
        """Token ids of a text."""
        ...

    def stream(self, after: Sequence[int] = ()) -> TextStream:
        """A decoder for the tokens that follow some others."""
        ...


class Piece(NamedTuple):
    """One token of one row. text: what may be shown now. ended: why this was the row's last token, if it was. layers:
    blocks that were taken for it, of a model whose depth decides that."""

    row: int
    token: int
    text: str
    ended: Reason | None
    layers: int | None = None


class Following(NamedTuple):
    """What follows the last token of every row. logits: (batch, vocab). state: if one was passed. layers: (batch,), as
    `Hidden.blocks`, of that token."""

    logits: Tensor
    state: ModelState | None
    layers: Tensor | None


class Generated(NamedTuple):
    """One row. tokens: every new token, those of a stop string included. text: without it, "" without a tokenizer.
    layers: blocks that were taken for each token, of a model whose depth decides that."""

    tokens: Tensor
    text: str
    ended: Reason
    layers: tuple[int, ...] = ()


@typed
def generate(
    model: LanguageModel | Continuing,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    stop_tokens: Collection[int] = (),
    tokenizer: Tokenizer | None = None,
    use_state: bool = True,
    batch_size: int | None = None,
    lookup: int = 0,
) -> list[Generated]:
    """Continue prompts.

    Prompts of unequal length share a batch by left padding, except in a model with a mechanism that depends on
    absolute slots (`info.anchored`) or takes no mask: there, each length runs on its own. A row's draws depend on
    (seed, row), never on other rows or on how many share a batch. The model runs in evaluation mode and is left in the
    mode it was in.

    Args:
        model: the model.
        prompts: token ids, (batch, length) or one sequence per row; or texts, with a tokenizer.
        max_new_tokens: new tokens per row.
        temperature, top_k, top_p: as `Sampling`; temperature 0 is greedy, equal to the arg max of the full forward.
        seed: of the draws.
        stop: texts that end a row; the row's text is cut before the first of them.
        stop_tokens: ids that end a row; they are in `tokens`, and not in the text.
        tokenizer: turns texts into ids and ids into text.
        use_state: stream with the mechanisms' states where all layers have one; else each token recomputes the whole
            sequence.
        batch_size: most rows at a time; None: all that can share a batch.
        lookup: guess up to so many tokens at a time, those that followed the last ones earlier in the text, and check
            them in one call (`regard.models.lookup`); greedy, one row at a time. The tokens are the
            same, unless two of them are as likely as rounding can tell.

    Raises:
        ConfigError: an option out of range, texts or `stop` without a tokenizer, `lookup` when tokens are drawn.
        UnsupportedError: `lookup` in a model without states.
        InputError: an empty prompt, or a token id out of range.
        LimitError: prompt and new tokens exceed what the model was built for; raised before any token.
        NumericsError: logits that are not finite.

    Example:
        >>> from regard.models import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(dim=32, vocab_size=10))
        >>> rows = generate(model, [[1, 2, 3], [4]], max_new_tokens=5, seed=1)
        >>> [len(row.tokens) for row in rows]
        [5, 5]
    """
    ids = prompt_ids(prompts, tokenizer)
    pieces: dict[int, list[Piece]] = {row: [] for row in range(len(ids))}
    for piece in stream(
        model,
        ids,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        stop_tokens=stop_tokens,
        tokenizer=tokenizer,
        use_state=use_state,
        batch_size=batch_size,
        lookup=lookup,
    ):
        pieces[piece.row].append(piece)
    return [
        Generated(
            torch.tensor([piece.token for piece in row], dtype=torch.int64),
            "".join(piece.text for piece in row),
            (row[-1].ended if row else None) or "length",
            tuple(piece.layers for piece in row if piece.layers is not None),
        )
        for row in pieces.values()
    ]


@typed
def stream(
    model: LanguageModel | Continuing,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    stop_tokens: Collection[int] = (),
    tokenizer: Tokenizer | None = None,
    use_state: bool = True,
    batch_size: int | None = None,
    lookup: int = 0,
) -> Iterator[Piece]:
    """As `generate`, but each token comes as soon as it is chosen; texts join to exactly the text of `generate`.

    Arguments are checked at the call, before the first piece is asked for.
    """
    sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=top_p)
    check(max_new_tokens, stop, tokenizer)
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    ids = prompt_ids(prompts, tokenizer)
    longest = require_room(model, ids, max_new_tokens)
    if model.limit is None and isinstance(model, LanguageModel) and longest + max_new_tokens > model.config.max_length:
        said = f"the model was made for {model.config.max_length} tokens: beyond these its text may get worse"
        logging.getLogger("regard").warning(said)
    rows = [
        Row(at, x, max_new_tokens, stop, stop_tokens, None if tokenizer is None else tokenizer.stream(x.tolist()), seed)
        for at, x in enumerate(ids)
    ]
    asked = rows if max_new_tokens else []
    if lookup:
        _require_lookup(model, sampling, use_state, lookup)
        return (piece for row in asked for piece in _looked_up(model, row, lookup))
    return _pieces(model, asked, sampling, use_state, batch_size or len(rows))


def _require_lookup(model: LanguageModel | Continuing, sampling: Sampling, use_state: bool, lookup: int) -> None:
    if lookup < 0:
        raise ConfigError(f"lookup={lookup}: the number of tokens to guess must be at least 0")
    if sampling.temperature:
        raise ConfigError(
            f"lookup={lookup} guesses the most likely tokens: it needs temperature=0, got {sampling.temperature}"
        )
    if not (use_state and model.streams):
        raise UnsupportedError("lookup goes on from states: every layer needs one, and use_state=True")


def check(max_new_tokens: int, stop: tuple[str, ...], tokenizer: Tokenizer | None) -> None:
    """Refuse what makes no sense for any prompt.

    Raises:
        ConfigError: an option out of range, or `stop` without a tokenizer.
    """
    if not hasattr(max_new_tokens, "__index__") or max_new_tokens < 0:
        raise ConfigError(f"max_new_tokens must be at least 0, and a whole number, got {max_new_tokens}")
    if isinstance(stop, str) or "" in stop:
        raise ConfigError(f"stop must be a tuple of texts that are not empty, got {stop!r}")
    if stop and tokenizer is None:
        raise ConfigError("stop texts need a tokenizer to find them in; pass tokenizer=")


def prompt_ids(prompts: Prompts, tokenizer: Tokenizer | None) -> list[Tensor]:
    """Token ids of every prompt, on the CPU.

    Raises:
        ConfigError, InputError, ShapeError: as `generate`.
    """
    if isinstance(prompts, str):
        raise ConfigError("prompts is a list; write [text] for one text")
    if not isinstance(prompts, Tensor | np.ndarray | Sequence):
        raise ConfigError(f"prompts is a list of texts or token ids, or a tensor of ids; got {kind_of(prompts)}")
    rows: list[Tensor] = []
    for at, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            if tokenizer is None:
                raise ConfigError(f"prompt {at} is a text, and there is no tokenizer to read it; pass tokenizer=")
            prompt = tokenizer.encode(prompt)
        try:
            ids = prompt if isinstance(prompt, Tensor) else torch.tensor(prompt)
        except (TypeError, ValueError, RuntimeError):
            raise ShapeError(f"prompt {at} must be integers (length,) or a text, got {prompt!r}") from None
        if not ids.numel():
            raise InputError(f"prompt {at} is empty; a model continues at least one token")
        if ids.ndim != 1 or ids.is_floating_point():
            raise ShapeError(f"prompt {at} must be integers (length,), got {ids.dtype} {tuple(ids.shape)}")
        rows.append(ids.to("cpu", torch.int64))
    return rows


class Row:
    """One row while it is generated: its draws, its decoder, and text that may yet turn out to begin a stop text."""

    def __init__(
        self,
        at: int,
        prompt: Tensor,
        new_tokens: int,
        stop: tuple[str, ...],
        stop_tokens: Collection[int],
        decoder: TextStream | None,
        seed: int,
    ) -> None:
        self.at, self.prompt, self.left, self.decoder = at, prompt, new_tokens, decoder
        self.stop, self.stop_tokens = stop, stop_tokens
        self.draw = generator(seed, "generate", at)
        self.held = ""

    def uniform(self) -> Tensor:
        return torch.rand((), dtype=torch.float64, generator=self.draw)

    def accept(self, token: int) -> Piece:
        """The piece for a new token."""
        self.left -= 1
        ended: Reason | None = "stop" if token in self.stop_tokens else "length" if self.left == 0 else None
        if self.decoder is None:
            return Piece(self.at, token, "", ended)
        self.held += self.decoder.feed([] if ended == "stop" else [token]) + (self.decoder.finish() if ended else "")
        seen = self.held + (self.decoder.pending if self.stop else "")
        starts = [at for text in self.stop if (at := seen.find(text)) >= 0]
        if starts:
            return Piece(self.at, token, seen[: min(starts)], "stop")
        keep = 0 if ended else max((_begun(self.held, text) for text in self.stop), default=0)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return Piece(self.at, token, shown, ended)


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def _pieces(
    model: LanguageModel | Continuing, rows: list[Row], sampling: Sampling, use_state: bool, batch_size: int
) -> Iterator[Piece]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(0 if model.pads else len(row.prompt), []).append(row)
    for group in groups.values():
        for first in range(0, len(group), batch_size):
            yield from _group(model, group[first : first + batch_size], sampling, use_state and model.streams)


def _group(model: LanguageModel | Continuing, rows: list[Row], sampling: Sampling, use_state: bool) -> Iterator[Piece]:
    """Rows that share a batch."""
    device = model.table.weight.device
    width = max(len(row.prompt) for row in rows)
    start = torch.tensor([width - len(row.prompt) for row in rows], device=device)
    tokens = torch.stack([torch.nn.functional.pad(row.prompt, (width - len(row.prompt), 0)) for row in rows])
    tokens = tokens.to(device)
    modules = list(model.modules())
    padded = len({len(row.prompt) for row in rows}) > 1
    with torch.inference_mode():
        state = model.initial_state(len(rows)) if use_state else None
    while True:
        with _evaluation(modules), torch.inference_mode():
            got = read(model, tokens, start if padded else None, state)
        state, taken = got.state, [None] * len(rows) if got.layers is None else got.layers.tolist()
        picked = sampling.pick(got.logits, torch.stack([row.uniform() for row in rows]))
        pieces = [
            row.accept(token)._replace(layers=layers)
            for row, token, layers in zip(rows, picked.tolist(), taken, strict=True)
        ]
        yield from pieces
        going = [at for at, piece in enumerate(pieces) if piece.ended is None]
        if not going:
            return
        if len(going) < len(rows):
            chosen = torch.tensor(going, device=device)
            rows, tokens, start = [rows[at] for at in going], tokens[chosen], start[chosen]
            state = None if state is None else state.select(chosen)
        new = picked[going, None].to(device)
        tokens = new if state is not None else torch.cat([tokens, new], 1)


def _looked_up(model: LanguageModel | Continuing, row: Row, lookup: int) -> Iterator[Piece]:
    """One row, several tokens at a time where what follows was guessed."""
    modules, tokens, new = list(model.modules()), row.prompt.tolist(), row.prompt.tolist()
    with torch.inference_mode():
        state = model.initial_state(1)
    while True:
        room = row.left - 1 if model.limit is None else min(row.left - 1, model.limit - len(tokens))
        draft = guess(tokens, min(lookup, room))
        with _evaluation(modules), torch.inference_mode():
            picked, state, layers = checked(model, new, draft, state)
        for token, taken in zip(picked, [None] * len(picked) if layers is None else layers, strict=True):
            piece = row.accept(token)._replace(layers=taken)
            yield piece
            if piece.ended is not None:
                return
        tokens, new = [*tokens, *picked], picked[-1:]


def read(
    model: LanguageModel | Continuing, tokens: Tensor, start: Tensor | None, state: ModelState | None
) -> Following:
    """What follows; each row's real tokens begin at slot `start`, None: all at the first."""
    mask = positions = None
    if start is not None:
        past = 0 if state is None else state.length
        slots = torch.arange(past, past + tokens.shape[1], device=tokens.device)
        mask = slots >= start[:, None] if past == 0 else None
        positions = (slots - start[:, None]).clamp_min(0) if model.embeddings.placed else None
    output = model.hidden(tokens, key_mask=mask, positions=positions, state=state)
    layers = None if output.blocks is None else output.blocks[:, -1]
    return Following(model.logits(output.hidden[:, -1]), output.state, layers)


def evaluation(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode inside, every submodule's own mode afterwards."""
    return _evaluation(list(model.modules()))


@contextmanager
def _evaluation(modules: list[torch.nn.Module]) -> Iterator[None]:
    training = [module for module in modules if module.training]
    _set_training(training, False)
    try:
        yield
    finally:
        _set_training(training, True)


def _set_training(modules: list[torch.nn.Module], mode: bool) -> None:
    for module in modules:  # once a token: past torch's search for a parameter in every assignment
        object.__setattr__(module, "training", mode)
