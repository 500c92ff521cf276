"""Laws of the states of decoders: they fork, many texts share one, and they go back or say that they cannot."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.core.attention import generator
from regard.core.errors import UnsupportedError
from regard.memory import Memory
from regard.memory.caches import Cache, Eviction, compressing
from regard.models import LanguageModel, ModelConfig, ModelState
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import here, randn
from regard.testing.registry import check
from tests.laws.depth import SIZES

WORDS, SEGMENT, LENGTH, LATER, LEFT = 20, 6, 15, 8, 10
"""tokens there are; of a segment; of a prompt, which ends in the middle of one; of a text behind it; of one whose
tokens leave early"""
LEAVING = ("early_exit(threshold=0.2)", "early_exit(threshold=0.5, confidence=geometric)", "light_exit(threshold=0.55)")
DEPTHS = (*LEAVING, "universal(steps=4, coordinates=none)", "universal(steps=4, transition=convolution, width=24)")
"""where tokens of a batch take unlike numbers of blocks"""
DECODERS: tuple[Mapping[str, object], ...] = (
    {"attention": ("softmax", "local(window=3)"), "position": "rotary"},
    {"attention": ("linear", "softmax:1 + local(window=3):1"), "short_convolution": 3},
    {"attention": ("softmax",), "layers": 1, "depth": "universal(steps=2)"},
)
"""a state of slots, one with sums and a convolution, and one that a block is asked for more than once"""


def _decoder(part: type[LanguageModel], **options: object) -> LanguageModel:
    shape: dict[str, Any] = {"dim": 16, "layers": 2, "heads": 2, "vocab_size": WORDS, "seed": 3, **options}
    return part(ModelConfig(**shape)).to(here()).double().eval()


def _named(part: type, options: Mapping[str, object]) -> str:
    return f"{part.__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"


def _remembering(part: type[Memory]) -> Iterator[tuple[LanguageModel, str]]:
    """A decoder with the memory in every layer, for every option set."""
    for options in part.samples:
        model = _decoder(LanguageModel, memory="recent", position="rotary", max_length=SEGMENT)
        for layer in model.layers:
            layer.memory = part(layer.heads, layer.dim, **options).to(here()).double().eval()
        yield model, _named(part, options)


def _reduced(part: type[Cache], **shape: object) -> Iterator[tuple[LanguageModel, str]]:
    """A decoder with the policy in every layer, for every option set."""
    for options in part.samples:
        model = _decoder(LanguageModel, **{"position": "rotary", "kv_heads": 1, **shape})
        for layer in model.layers:
            layer.cache = part(layer.heads, **options).to(here()).eval()
            layer.cache.check(layer.attention)
        yield model, _named(part, options)


def _plain(part: type[LanguageModel]) -> Iterator[tuple[LanguageModel, str]]:
    for options in DECODERS:
        yield _decoder(part, **options), _named(part, options)


def _text(seed: str, batch: int = 1, length: int = LENGTH) -> Tensor:
    return torch.randint(WORDS, (batch, length), generator=generator(0, "text", seed)).to(here())


def _read(
    model: LanguageModel, tokens: Tensor, state: ModelState | None = None, piece: int = 4
) -> tuple[Tensor, ModelState]:
    """Logits of tokens that are read in pieces, and the state behind them."""
    after, logits = model.initial_state(len(tokens)) if state is None else state, list[Tensor]()
    for tokens_of_piece in tokens.split(piece, 1):
        got = model(tokens_of_piece, state=after)
        require(got.state is not None, "no state came back")
        after = got.state
        logits.append(got.logits)
    return torch.cat(logits, 1), after


def _from_nothing(model: LanguageModel, *texts: Tensor) -> Tensor:
    """The logits of the last of several texts that are one, in one call without a state."""
    return model(torch.cat(texts, 1)).logits[:, -texts[-1].shape[1] :]


@torch.no_grad()
def _forks(model: LanguageModel, what: str) -> None:
    """Two continuations by turns, and rows that share a prompt: each as from nothing, and the prompt stays."""
    prompt, (one, two) = _text("prompt"), (_text(seed, length=LATER) for seed in ("one", "two"))
    state = _read(model, prompt)[1]
    before = {name: x.clone() for name, x in state.tensors().items()}
    states, logits = [state, state], (list[Tensor](), list[Tensor]())
    for part in range(0, LATER, 2):
        for turn, text in enumerate((one, two)):
            got, states[turn] = _read(model, text[:, part : part + 2], states[turn])
            logits[turn].append(got)
    for turn, text in enumerate((one, two)):
        got, wanted = torch.cat(logits[turn], 1), _from_nothing(model, prompt, text)
        assert_close(got, wanted, tolerance=1e-10, what=f"{what}: continuation {turn + 1} of one state")
    rows = _text("rows", 3, LATER)
    shared = state.select(torch.zeros(3, dtype=torch.long, device=here()))
    require(shared.length == state.length, f"{what}: {shared.length} slots of a prompt of {state.length}")
    got, wanted = _read(model, rows, shared)[0], _from_nothing(model, prompt.expand(3, -1), rows)
    assert_close(got, wanted, tolerance=1e-10, what=f"{what}: 3 rows that share a prompt")
    after = state.tensors()
    require(after.keys() == before.keys(), f"{what}: the prompt's state is of {sorted(after)}, not {sorted(before)}")
    for name, x in before.items():
        assert_identical(after[name], x, what=f"{what}: {name} of the prompt's state")


@torch.no_grad()
def _goes_back(model: LanguageModel, what: str, able: int) -> None:
    """After `rewind(n)` a state goes on as if the newest n tokens had never been read; refused, the earlier state does.

    Args:
        able: so many tokens can be given back at least.
    """
    prompt, draft, other = _text("prompt"), _text("draft", length=2), _text("other", length=LATER)
    earlier = _read(model, prompt)[1]
    newest = _read(model, draft, earlier, piece=1)[1]
    for count in (1, 2, 4):
        kept = torch.cat([prompt, draft], 1)[:, : LENGTH + 2 - count]
        try:
            back = newest.rewind(count)
        except UnsupportedError:
            require(count > able, f"{what}: {count} tokens were not given back, and {able} could have been")
            back, kept = earlier, prompt
        else:
            require(back.length == kept.shape[1], f"{what}: {back.length} tokens before the newest {count}")
        wanted = _from_nothing(model, kept, other)
        assert_close(_read(model, other, back)[0], wanted, tolerance=1e-10, what=f"{what}: {count} tokens given back")
    got, wanted = _read(model, other, newest)[0], _from_nothing(model, prompt, draft, other)
    assert_close(got, wanted, tolerance=1e-10, what=f"{what}: the state that was asked")


@check(kind=LanguageModel)
def decoders_fork(part: type[LanguageModel]) -> None:
    """A decoder's state serves many continuations, alone and as rows of a batch, each as if read from nothing."""
    for model, what in _plain(part):
        _forks(model, what)


@check(kind=LanguageModel)
def decoders_go_back(part: type[LanguageModel]) -> None:
    """A decoder's state gives back its newest tokens, or refuses and is as it was."""
    for model, what in _plain(part):
        by_slot = not model.config.short_convolution
        _goes_back(model, what, able=2 if by_slot else 0)


@check(kind=Memory)
def decoders_with_a_memory_fork(part: type[Memory]) -> None:
    """The state of a decoder with the memory serves many continuations, across the ends of segments."""
    for model, what in _remembering(part):
        _forks(model, what)


@check(kind=Memory)
def decoders_with_a_memory_go_back(part: type[Memory]) -> None:
    """The state of a decoder with the memory gives back tokens of the running segment, or refuses and is as it was."""
    for model, what in _remembering(part):
        _goes_back(model, what, able=(LENGTH + 2) % SEGMENT)


@check(kind=Cache)
def decoders_with_a_cache_fork(part: type[Cache]) -> None:
    """The state of a decoder under the policy serves many continuations, each of which drops slots of its own."""
    for model, what in _reduced(part):
        _forks(model, what)


@check(kind=Cache)
def decoders_with_a_cache_go_back(part: type[Cache]) -> None:
    """The state of a decoder under the policy gives back tokens until one was dropped, or refuses and is as it was."""
    for model, what in _reduced(part):
        cache = model.layers[0].cache
        drops_none = isinstance(cache, Eviction) and not cache.weighs and cache.budget > 2 * LENGTH
        _goes_back(model, what, able=LENGTH if drops_none else 0)


@check(kind=Cache)
def decoders_with_a_cache_read_nothing(part: type[Cache]) -> None:
    """A call of no tokens changes nothing, also where slots were dropped, and no rows may be in a batch.

    So for a mechanism that reads kept slots side by side, and for one whose slots are put back where they were.
    """
    for attention, position in (("softmax", "rotary"), ("shaw", "none")):
        for model, what in _reduced(part, attention=(attention,), position=position):
            text, none = _text("prompt"), torch.zeros(1, 0, dtype=torch.long, device=here())
            with torch.no_grad():
                before = _read(model, text)[1]
                got = model(none, state=before)
                require(got.logits.shape == (1, 0, WORDS), f"{what}: logits {tuple(got.logits.shape)} of no token")
                require(got.state.length == LENGTH, f"{what}: {got.state.length} slots after no token")
                for name, x in before.tensors().items():
                    assert_identical(got.state.tensors()[name], x, what=f"{what}: {name} after no token")
                rows = _read(model, text[:0])[0]
                require(rows.shape == (0, LENGTH, WORDS), f"{what}: logits {tuple(rows.shape)} of no row")


def _of_depth(part: type[Cache], depth: str) -> Iterator[tuple[LanguageModel, str]]:
    """A decoder of random weights with the policy in every layer, for every option set."""
    mlp = "none" if "convolution" in depth else "gelu"
    for model, what in _reduced(part, depth=depth, layers=3, mlp=mlp):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.add_(
                    {**SIZES, "depth.halt.weight": 0.3}.get(name, 0.3)
                    * (1.0 if weight.numel() == 1 else randn(*weight.shape, seed=name))
                )
        yield model, f"{what} with {depth}"


@check(kind=Cache)
def caches_of_tokens_that_leave(part: type[Cache]) -> None:
    """Where tokens leave early, what is kept depends neither on the split of a text nor on other rows.

    Only tokens that are still there may have a part in it. Compressed where the caller says so, rows depend on no
    others, and no layer keeps more than its budget, though all tokens of a call left before it.
    """
    texts = _text("rows", 3, LEFT)
    for depth in DEPTHS:
        for model, what in _of_depth(part, depth):
            with torch.no_grad():
                whole = model(texts)
                require(whole.steps is not None and len(whole.steps.unique()) > 1, f"{what}: all tokens leave together")
                for piece in (1, 4):
                    got = _read(model, texts, piece=piece)[0]
                    assert_close(got, whole.logits, tolerance=1e-10, what=f"{what}: pieces of {piece}")
                rows = torch.cat([_read(model, row[None])[0] for row in texts])
                assert_close(rows, whole.logits, tolerance=1e-10, what=f"{what}: each row alone")
                if part.waits:
                    _compressed(model, texts, what)


def _compressed(model: LanguageModel, texts: Tensor, what: str) -> None:
    """Rows depend on no others, and all is reduced."""
    with compressing(model):
        together = _read(model, texts, piece=1)
        alone = torch.cat([_read(model, row[None], piece=1)[0] for row in texts])
    assert_close(alone, together[0], tolerance=1e-10, what=f"{what}: each row alone, compressed")
    for layer in model.layers:
        assert isinstance(layer.cache, Eviction)
        kept = [x.shape[2] for name, x in together[1].tensors().items() if name.endswith("kept.slot")]
        require(max(kept) <= layer.cache.budget, f"{what}: {max(kept)} slots kept, of {layer.cache.budget}")
