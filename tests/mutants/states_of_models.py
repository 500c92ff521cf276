"""Decoders, memories and cache policies whose states do not fork or go back, each with the check that must see it."""

# Memories and policies are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from typing import Any

from torch import Tensor

from regard.core.state import Slots
from regard.memory import MemoryState
from regard.memory.caches._base import CacheState
from regard.memory.caches.h2o import H2o
from regard.memory.caches.streaming import Streaming
from regard.memory.recent import Recent
from regard.models import LanguageModel, ModelState
from tests.mutants import mutant


@mutant("decoders_fork")
class AddsToItsPrompt(LanguageModel):
    """Writes the sums of a continuation over those of the state that it was given."""

    def hidden(self, tokens: Tensor, *, state: ModelState | None = None, **given: Any) -> Any:
        got = super().hidden(tokens, state=state, **given)
        if state is not None and got.state is not None:
            for name, x in state.tensors().items():
                if name.endswith("sum"):
                    x.copy_(got.state.tensors()[name])
        return got


class _OneTooMany(ModelState):
    def rewind(self, count: int) -> "ModelState":
        back = super().rewind(count)
        return back if not 0 < count < self.length else super().rewind(count + 1)


@mutant("decoders_go_back")
class GivesBackOneTooMany(LanguageModel):
    """Takes the token before, too."""

    def hidden(self, tokens: Tensor, *, state: ModelState | None = None, **given: Any) -> Any:
        got = super().hidden(tokens, state=state, **given)
        return got if got.state is None else got._replace(state=_OneTooMany(got.state.parts))


class _Collecting(MemoryState):
    def wait(self, x: Tensor, key_mask: Tensor | None) -> MemoryState:
        after = super().wait(x, key_mask)
        if "waiting" in self.content:
            self.content["waiting"].copy_(after["waiting"][:, -self.waiting :])  # pyright: ignore[reportOptionalOperand]
        return _Collecting(after.content, after.length)


@mutant("decoders_with_a_memory_fork")
class WaitsInPlace(Recent):
    """Puts what comes over what waits, in the state that it was given."""

    def initial_state(self, batch: int, **like: Any) -> MemoryState:
        return _Collecting(super().initial_state(batch, **like).content)

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        return _Collecting(after.content, after.length), losses


class _OldestGoes(MemoryState):
    def wait(self, x: Tensor, key_mask: Tensor | None) -> MemoryState:
        after = super().wait(x, key_mask)
        return _OldestGoes(after.content, after.length)

    def rewind(self, count: int) -> MemoryState:
        back = super().rewind(count)
        if not back.waiting:
            return back
        return _OldestGoes({**back.content, "waiting": self["waiting"][:, count:]}, back.length)


@mutant("decoders_with_a_memory_go_back")
class GivesBackTheOldest(Recent):
    """Of the running segment the first tokens are given back, not the last."""

    def initial_state(self, batch: int, **like: Any) -> MemoryState:
        return _OldestGoes(super().initial_state(batch, **like).content)

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        return _OldestGoes(after.content, after.length), losses


@mutant("decoders_with_a_cache_fork")
class WeighsInPlace(H2o):
    """Adds the weights of a continuation to those of the state that it was given."""

    def append(self, *given: Any, **more: Any) -> Any:
        seen, after = super().append(*given, **more)
        old, new = given[-1].kept.view()["weight"], after.kept.view()["weight"]
        old.copy_(new[..., : old.shape[2]])
        return seen, after


class _Forgetful(Slots):
    def rewind(self, count: int) -> "Slots":
        back = super().rewind(count)
        return back if not count else back.drop(1)


@mutant("decoders_with_a_cache_go_back")
class DropsWhatItGivesBack(Streaming):
    """For every slot that is given back an old one goes, too."""

    def rows(self, *given: Any) -> Any:
        answer = super().rows(*given)
        assert isinstance(answer.state, CacheState)
        parts = {name: _Forgetful(**vars(part)) for name, part in answer.state.parts.items()}
        return answer._replace(state=CacheState(parts))


@mutant("decoders_with_a_cache_read_nothing")
class CountsEveryCall(Streaming):
    """Drops the oldest slot at every call, whether a token came or not."""

    def rows(self, *given: Any) -> Any:
        answer = super().rows(*given)
        assert isinstance(answer.state, CacheState)
        if given[1].k.shape[2]:
            return answer
        state = answer.state
        return answer._replace(state=CacheState({"slots": state.slots.drop(1), "kept": state.kept.drop(1)}))


@mutant("caches_of_tokens_that_leave")
class WeighsWhoLeft(H2o):
    """Adds what tokens gave that had left before the layer, if only others of the call had not."""

    def rows(self, *given: Any) -> Any:
        rows: Any = super().rows
        return rows(*given[:-1], None)
