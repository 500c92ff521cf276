"""What a decoder loses when a policy reduces its cache, against the bytes that are kept: real text and a pass key."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch

from regard import specs
from regard.core.attention import generator
from regard.core.errors import ConfigError, DataError, UnsupportedError
from regard.memory import caches
from regard.models import LanguageModel
from regard.models.generate import evaluation

PROMPT = "Find the pass key in the following text. "
NEEDLE = " The pass key is {key}. Remember it. "
QUESTION = " The pass key is"
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class CacheConfig:
    """What to measure.

    budgets: slots to keep. context: tokens that are read before what is scored. scored: tokens of text behind it.
    texts: rows of text. keys: pass keys, each asked for at the end and, in another row, known from the start.
    """

    budgets: tuple[int, ...] = (64, 128)
    context: int = 256
    scored: int = 64
    texts: int = 2
    keys: int = 2
    seed: int = 0


LONG = 512
"""tokens of a context beyond which one text and one pass key are measured unless more are asked for: evictions are one
step for every token and layer"""


def sized(
    budgets: tuple[int, ...],
    *,
    scored: int = 64,
    context: int | None = None,
    texts: int | None = None,
    keys: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> CacheConfig:
    """What to measure at these budgets where not all is said: a context that none of them holds, as far as the model's
    `limit` of positions allows, and as many texts and keys as take minutes.

    Example:
        >>> sized((64, 1024)).context, sized((64, 1024)).texts, sized((64,)).context
        (1088, 1, 256)
    """
    if context is None:
        context = max(256, max(budgets, default=0) + 64)
        context = context if limit is None else max(min(context, limit - scored), 1)
    rows = 1 if context > LONG else 2
    texts, keys = (rows if asked is None else asked for asked in (texts, keys))
    return CacheConfig(budgets=budgets, context=context, scored=scored, texts=texts, keys=keys, seed=seed)


class Row(NamedTuple):
    """kind: text, known or unknown. tail: what is scored, its last `answer` tokens; all rows have a context of one
    length."""

    kind: str
    context: list[int]
    tail: list[int]
    answer: int


def policies(config: CacheConfig) -> list[str]:
    """Every registered policy at every budget below the context, or in every number of bits; in front, none."""
    found = [""]
    for name in caches.names():
        known = specs.options_of(caches.cache_class(name))
        if "budget" in known:
            found += [f"{name}(budget={budget})" for budget in config.budgets if budget < config.context]
        else:
            found += [f"{name}(bits={bits})" for bits in (8, 4, 2)]
    return found


def buildable(model: LanguageModel, config: CacheConfig) -> tuple[list[str], dict[str, str]]:
    """Which of the policies the model can be given, and of each other one why not: it is left out.

    Raises:
        ConfigError, UnsupportedError: every one is refused; as the last.
    """
    found, refused, last = [""], dict[str, str](), ConfigError("no cache policy is registered")
    for spec in policies(config)[1:]:
        try:
            for layer in model.layers:
                layer.cache_of(spec)
        except (ConfigError, UnsupportedError) as error:
            refused[spec], last = str(error), error
        else:
            found.append(spec)
    if len(found) == 1:
        raise last
    return found, refused


def rows(config: CacheConfig, text: str, encode: Encode) -> list[Row]:
    """Texts to go on with, and texts with a pass key in them at several depths.

    Raises:
        DataError: too little text, or no room for a key. ConfigError: more keys than places.
    """
    ids, length = list(encode(text)), config.context + config.scored
    if len(ids) < length * max(config.texts, 1):
        raise DataError(f"{config.texts} rows of {length} tokens need more text: there are {len(ids)} tokens")
    found = [
        Row("text", ids[at : at + config.context], ids[at + config.context : at + length], config.scored)
        for at in range(0, length * config.texts, length)
    ]
    if config.keys > config.context:
        raise ConfigError(
            f"keys must be at most the {config.context} tokens of the context, one at each depth; got {config.keys}"
        )
    draw = generator(config.seed, "pass key")
    for at in range(config.keys):
        key = str(int(torch.randint(10_000, 100_000, (), generator=draw)))
        needle, question = list(encode(NEEDLE.format(key=key))), list(encode(QUESTION))
        whole = list(encode(f"{QUESTION} {key}"))
        filler = ids[at * 97 % max(len(ids) - config.context, 1) :]
        for kind, prompt in (("unknown", []), ("known", list(encode(PROMPT)))):
            room = config.context - len(needle) - len(prompt)
            if room < 1:
                raise DataError(f"a context of {config.context} tokens has no room for a pass key; make it longer")
            depth = room * (at + 1) // (config.keys + 1)
            context = [*prompt, *filler[:depth], *needle, *filler[depth:room]]
            found.append(Row(kind, context, whole, len(whole) - len(question)))
    return found


@torch.no_grad()
def measure(
    model: LanguageModel,
    config: CacheConfig,
    text: str,
    encode: Encode,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Losses and bytes under every policy; the model is left as it was.

    The context is read, reduced as the policy does it (where it waits to be told, at the end of the context), and then
    the tail is scored, on what is left. Bytes are those of one row of the state behind the context. A policy that
    refuses the model or a budget is left out, which is known before the first is measured.

    Raises:
        ConfigError: numbers below 1, or a context beyond the positions of the model.
        DataError: too little text. UnsupportedError: a model that every policy refuses.
    """
    sizes = (*config.budgets, config.context, config.scored, config.texts, config.keys)
    if min(sizes) < 1:
        raise ConfigError(f"budgets, context, scored, texts and keys are at least 1, got {config}")
    if model.limit is not None and config.context + config.scored > model.limit:
        raise ConfigError(
            f"{config.context} + {config.scored} tokens are more than the model's {model.limit} positions"
        )
    asked, found = rows(config, text, encode), list[dict[str, Any]]()
    served, refused = buildable(model, config)
    for spec, why in refused.items():
        tell(f"{spec} is left out: {why}")
    before = [layer.cache for layer in model.layers]
    try:
        with evaluation(model):
            for spec in served:
                model.reduce_cache(spec or None)
                found.append({"policy": spec.partition("(")[0] or "none", "spec": spec, **_losses(model, asked)})
                tell(f"{spec or 'no policy'}: {found[-1]['state_bytes']:,} bytes, {found[-1]['seconds']:.0f} s")
    finally:
        for layer, cache in zip(model.layers, before, strict=True):
            layer.cache = cache
    return {"config": vars(config), "rows": found, "left_out": refused}


def _losses(model: LanguageModel, asked: Sequence[Row]) -> dict[str, Any]:
    """Nats per scored token of each kind, shares of keys that are found, bytes of a row, and how long it took."""
    started, device = time.perf_counter(), model.table.weight.device
    contexts = torch.tensor([row.context for row in asked], device=device)
    with caches.compressing(model):
        read = model.hidden(contexts, state=model.initial_state(len(asked)))
    assert read.state is not None
    last, nats, right = model.logits(read.hidden[:, -1:]), dict[str, list[float]](), dict[str, list[bool]]()
    for at in _alike(asked):
        chosen = torch.tensor(at, device=device)
        tails = torch.tensor([asked[row].tail for row in at], device=device)
        more = model(tails[:, :-1], state=read.state.select(chosen)).logits
        logits = torch.cat([last[chosen], more], 1).float()
        of_token = -logits.log_softmax(-1).gather(-1, tails[..., None])[..., 0]
        hits = logits.argmax(-1) == tails
        for each, row in enumerate(at):
            answer = asked[row].answer
            nats.setdefault(asked[row].kind, []).append(float(of_token[each, -answer:].mean()))
            right.setdefault(asked[row].kind, []).append(bool(hits[each, -answer:].all()))
    losses = {f"{kind}_nats": fmean(values) for kind, values in nats.items()}
    shares = {f"{kind}_right": fmean(values) for kind, values in right.items() if kind != "text"}
    one = read.state.select(torch.tensor([0], device=device))
    return {**losses, **shares, "state_bytes": one.nbytes, "seconds": time.perf_counter() - started}


def _alike(asked: Sequence[Row]) -> Iterator[list[int]]:
    """Rows with tails of one length."""
    lengths: dict[int, list[int]] = {}
    for at, row in enumerate(asked):
        lengths.setdefault(len(row.tail), []).append(at)
    yield from lengths.values()
