"""SPALM: a decoder whose hidden states are mixed with the tokens of neighbours, in training as afterwards."""

import hashlib
from typing import ClassVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from regard.core.errors import CheckpointError, ConfigError, ShapeError, UnsupportedError
from regard.core.state import State
from regard.files.checksums import MANIFEST, Entry
from regard.models import LanguageModel, ModelOutput
from regard.models.decoder import Hidden, ModelState
from regard.models.generate import evaluation
from regard.models.neighbours import NeighbourTokens
from regard_lab.retrieval.beside import Beside
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.documents import other_windows, tokenizer_digest
from regard_lab.retrieval.index import Index
from regard_lab.retrieval.keys import joined, kept_keys, require_keys
from regard_lab.retrieval.own import Own, Placed, Tally
from regard_lab.tasks.base import IGNORE, Consecutive, Example, Examples, Split, Task
from regard_lab.training.batches import collate


class Lookup:
    """Looks positions up by what a frozen decoder makes of them: the one that made the datastore.

    Args:
        keys: that decoder. It gets no gradient, and its mode is as it was.
        found_in: what is searched: a `Datastore`, or an `Index` of one.
        k: neighbours of every position.

    Raises:
        CheckpointError: no entries, or another width. LimitError: k above the entries. ConfigError: k below 1.
        UnsupportedError: a decoder without keys (`kept_keys`).
    """

    def __init__(self, keys: LanguageModel, found_in: Datastore | Index, *, k: int) -> None:
        require_keys(keys)
        found_in.store.require_origin({}, keys.config.dim)
        self.keys, self.found_in, self.store, self.k = keys, found_in, found_in.store, k
        found_in.search(torch.zeros(0, self.store.dim), k)  # refuses what would be refused at the first token

    def read(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        state: ModelState | None = None,
        own: Int[Tensor, "queries copies"] | None = None,
    ) -> tuple[NeighbourTokens, ModelState | None]:
        """The neighbours of every position, and the decoder's state behind them; arguments as the decoder's.

        Args:
            own: entries that each position must not find; None: it may find all.
        """
        device = self.keys.table.weight.device
        with evaluation(self.keys), torch.no_grad(), kept_keys(self.keys) as pieces:
            after = self.keys.hidden(tokens.to(device), key_mask=key_mask, state=state).state
        found = self.found_in.search(joined(pieces).flatten(0, 1).float(), self.k, own=own)
        there = found.ids >= 0
        ids, far = found.values.masked_fill(~there, -1), found.distances.float()
        return NeighbourTokens(*(x.view(*tokens.shape, self.k).to(tokens.device) for x in (ids, far))), after


class LookedUp(Task):
    """A task on text whose examples say the neighbours of every position.

    No position finds the entry that was made of its own target, in any copy of its document; other positions of the
    document are found, as kNN-LM finds them. A window is looked up when it is first asked for, by the window alone, as
    the datastore was built; its neighbours are kept in memory, 8 k bytes a token.

    Args:
        task: on text.
        lookup: what finds them.
        leaving_out: finds own entries. None: a position may find the entry that was made of its own target, which shows
            what looking it up can do.

    Raises:
        CheckpointError: the datastore has another tokenizer or vocabulary. ConfigError: a task without text.
    """

    name: ClassVar[str] = "text"
    metric: ClassVar = "bits_per_byte"

    def __init__(self, task: Task, lookup: Lookup, *, leaving_out: Own | None) -> None:
        if task.tokenizer is None:
            raise ConfigError(f"neighbours are tokens of a text, and task {task.name} has none")
        store = lookup.store
        if "tokenizer" in store.manifest.origin:
            store.require_origin({"tokenizer": tokenizer_digest(task.tokenizer)}, store.dim)
        if store.manifest.vocab_size != task.vocab_size:
            raise CheckpointError(f"{store.folder} has {store.manifest.vocab_size} tokens, the text {task.vocab_size}")
        self.task, self.lookup, self.leaving_out = task, lookup, leaving_out
        self.vocab_size, self.length, self.tokenizer = task.vocab_size, task.length, task.tokenizer
        described = f"{Entry.at(store.folder / MANIFEST).sha256} {lookup.k} {leaving_out is None}"
        self.fingerprint = f"{task.fingerprint}+{hashlib.sha256(described.encode()).hexdigest()[:32]}"
        self._splits: dict[Split, _Windows] = {}

    def examples(self, split: Split) -> "_Windows":
        """The examples of a split, with their neighbours."""
        if split not in self._splits:
            self._splits[split] = _Windows(self.task.examples(split), self)
        return self._splits[split]

    def own(self, split: Split) -> Tally:
        """How many targets of a split have own entries, which are left out; none if they are not."""
        tally = Tally()
        if self.leaving_out is None:
            return tally
        examples = self.examples(split)
        for first in examples.begins.tolist():
            tally = tally.with_(self.leaving_out.of(examples.place(first)[0]))
        return tally

    def cut_otherwise(self, split: Split) -> str:
        """How the text of a split is cut otherwise than the datastore's was; empty: it is not, or that is not known.

        The decoder that makes keys sees a window from its beginning on. So the same tokens have other keys in windows
        of another length, or in those that begin elsewhere, and other neighbours.
        """
        store = self.lookup.store
        if said := other_windows(store, self.length):
            return said
        built = store.manifest.origin.get("length", "")
        if not built.isdecimal() or not int(built) or self.leaving_out is None:
            return ""
        examples, starts, moved, known = self.examples(split), np.array(store.starts()), 0, 0
        for index in range(len(examples)):
            ids, place = examples.place(index)
            here = [run for run in self.leaving_out.of(ids).runs if run.first <= place - 1 < run.stop]
            entries = np.array([run.entry + place - 1 - run.first for run in here])
            if len(entries):
                offsets = entries - starts[np.searchsorted(starts, entries, side="right") - 1]
                known, moved = known + 1, moved + bool((offsets % int(built)).all())
        if not moved:
            return ""
        return (
            f"{store.folder} was built in windows of {built} tokens, and {moved:,} of the {known:,} windows of this "
            "text that it has begin elsewhere than there: "
            "their tokens have other keys, and so other neighbours, than in its own windows. For the same ones, build "
            "one with the documents of this run, cut as here"
        )


class _Windows:
    """Windows of documents, with the neighbours of every position."""

    def __init__(self, examples: Examples, of: LookedUp) -> None:
        if not isinstance(examples, Consecutive) or not isinstance(examples, Placed):
            raise ConfigError("neighbours are looked up for windows of documents, and these examples are none")
        self._examples, self._of = examples, of
        self._found: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        example = self._examples[index]
        if index not in self._found:
            self._found[index] = self._look(index)
        tokens, distances = self._found[index]
        return example._replace(neighbours=tokens.astype(np.int64), distances=distances)

    @property
    def begins(self) -> Int64[np.ndarray, "documents"]:
        """As those of the windows."""
        return self._examples.begins

    def place(self, index: int) -> tuple[np.ndarray, int]:
        """As that of the windows."""
        return cast(Placed, self._examples).place(index)

    def _look(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        batch = collate(self._examples, [index], self._of.vocab_size)
        count = int((batch.targets[0] != IGNORE).sum())  # the others are padding, at the end
        own = None if self._of.leaving_out is None else self._of.leaving_out(self._examples, batch)
        found, _ = self._of.lookup.read(batch.inputs[:, :count], own=None if own is None else own[:count])
        padding = (0, 0, 0, batch.inputs.shape[1] - count)
        tokens = nn.functional.pad(found.tokens[0], padding, value=-1)
        return tokens.to(torch.int32).numpy(), nn.functional.pad(found.distances[0], padding).numpy()


class Spalm(Beside):
    """p(y | x) = softmax(W z) with z = (1 - g) m + g h: m of the tokens of the neighbours, g a gate.

    It is called, continued and evaluated as the decoder that it is around, a model with `neighbours`; the mixture
    itself is `regard.models.neighbours.NeighbourGate`. The one that made the datastore reads everything too, frozen.

    Cost: that decoder's computation, and a search for every position.

    Args:
        model: with neighbours. It is trained, through here or by `regard train`.
        lookup: what finds them.

    Raises:
        ConfigError: a decoder without neighbours. CheckpointError: a datastore of another vocabulary.

    Source: Yogatama, de Masson d'Autume & Kong 2021, sections 2.2 and 2.3; its ScaNN is exact search or FAISS here.
    """

    def __init__(self, model: LanguageModel, lookup: Lookup) -> None:
        super().__init__(model)
        if not model.config.neighbours:
            raise ConfigError("this decoder mixes in no neighbours: build it with neighbours=4, or use KnnLm")
        tokens = lookup.store.manifest.vocab_size
        if tokens != model.config.vocab_size:
            raise CheckpointError(f"{lookup.store.folder} has {tokens} tokens, the model {model.config.vocab_size}")
        self._lookup = (lookup,)  # a tuple: the frozen decoder is no part of this module

    @property
    def lookup(self) -> Lookup:
        """What finds the neighbours."""
        return self._lookup[0]

    @property
    def limit(self) -> int | None:
        """Longest text: of the decoder, and of that which made the datastore."""
        limits = [limit for limit in (self.model.limit, self.lookup.keys.limit) if limit is not None]
        return min(limits, default=None)

    @property
    def pads(self) -> bool:
        """Rows of unequal length do not share a batch."""
        return False

    @property
    def streams(self) -> bool:
        """Whether both decoders do."""
        return self.model.streams and self.lookup.keys.streams

    def initial_state(self, batch: int) -> ModelState:
        """The state of both before the first token."""
        return _together(self.model.initial_state(batch), self.lookup.keys.initial_state(batch))

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
        own: Int[Tensor, "queries copies"] | None = None,
    ) -> Hidden:
        """What `logits` reads, the neighbours mixed in; arguments as the decoder's.

        Args:
            own: entries that each position must not find; None: it may find all.

        Raises:
            UnsupportedError: positions: both decoders count from the first token.
        """
        if positions is not None:
            raise UnsupportedError("two decoders read the text from its first token; leave positions out")
        past, keys = (None, None) if state is None else _apart(state)
        neighbours, after = self.lookup.read(tokens, key_mask=key_mask, state=keys, own=own)
        output = self.model.hidden(tokens, key_mask=key_mask, state=past, neighbours=neighbours)
        if output.state is None or after is None:
            return output
        return output._replace(state=_together(output.state, after))

    def logits(self, hidden: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows vocab"]:
        """The output layer alone."""
        return self.model.logits(hidden)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
        own: Int[Tensor, "queries copies"] | None = None,
    ) -> ModelOutput:
        """Logits of the next token at every position; arguments and errors as `hidden`."""
        got = self.hidden(tokens, key_mask=key_mask, positions=positions, state=state, own=own)
        return ModelOutput(self.logits(got.hidden), got.state, got.losses, got.steps)


_KEYS = "datastore"


def _together(state: ModelState, keys: ModelState) -> ModelState:
    """The state of the decoder, and in a part of its own that of the one that made the datastore."""
    return ModelState({**state.parts, _KEYS: keys})


def _apart(state: ModelState) -> tuple[ModelState, ModelState]:
    """What `_together` put together.

    Raises:
        ShapeError: a state of something else.
    """
    parts: dict[str, State] = dict(state.parts)
    keys = parts.pop(_KEYS, None)
    if not isinstance(keys, ModelState):
        raise ShapeError("state must be one that initial_state of this model, or a call of it, gave")
    return ModelState(parts), keys
