"""Measure what a decoder loses when a policy reduces its cache: on real text, and on a pass key in it.

Every registered policy at every budget, random eviction among them as the control, against the exact bytes that are
kept. The key is asked for before the text and after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import tyro

from regard.core.errors import ConfigError
from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import one_word, parse_numbers, require_positive
from regard_lab.cli._options import Device, Ignore, Json, Threads, Trust
from regard_lab.cli._output import console, finish, table, tell, will_write
from regard_lab.cli._threads import cpu_threads

_HELD_OUT_FIRST = ("valid", "test", "train")
"""parts of a run's text in the order in which they are read"""


@dataclass(frozen=True)
class Options:
    """The decoder, the text, and the budgets."""

    model: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, what `pretrained.save`
    wrote, or package:NAME"""
    budgets: str = "64:128"
    """slots to keep in each head; 64:1024 doubles, 100 200 lists"""
    corpus: str | None = None
    """a bundled corpus, a file of text, or a folder of such files; None: that of the run, first what it was not trained
    on, or state_of_the_union"""
    context: int | None = None
    """tokens that are read before what is scored; None: 64 more than the largest budget, at least 256"""
    scored: int = 64
    """tokens of text that are scored behind them"""
    texts: int | None = None
    """rows of text; None: 2, or 1 behind a context of more than 512"""
    keys: int | None = None
    """pass keys; None: 2, or 1 behind a context of more than 512"""
    device: Device = "auto"
    threads: Threads = field(default_factory=default_threads)
    seed: int = 0
    """of the keys"""
    trust: Trust = False
    ignore: Ignore = ()
    out: str | None = None
    """folder for results.json and cache.html"""
    json: Json = False


def parse(words: Sequence[str]) -> Options:
    """The options of a command line, on which budgets may be several words."""
    from regard_lab.cli._options import read

    return read(Options, one_word(words, "--budgets"), verb="cache", description=__doc__)


def run(options: Options) -> int:
    """Measure, show, write."""
    given = {name: getattr(options, name) for name in ("context", "scored", "texts", "keys", "threads")}
    require_positive({name: value for name, value in given.items() if value is not None})
    will_write(options.out, "results.json", "cache.html")
    with cpu_threads(options.threads):
        return _measure(options)


def _measure(options: Options) -> int:
    from regard.integrations import pretrained
    from regard.models import LanguageModel
    from regard_lab.benchmark import cache
    from regard_lab.report import cache as page
    from regard_lab.tasks.config import TextConfig
    from regard_lab.tasks.corpus import open_corpus
    from regard_lab.training import load

    read, own = TextConfig(corpus="state_of_the_union" if options.corpus is None else options.corpus), False
    if pretrained.recognised(options.model):
        loaded = pretrained.load(options.model, device=options.device, trust=options.trust, ignore=options.ignore)
    else:
        loaded = load(options.model, device=options.device, trust=options.trust)
        if isinstance(loaded.config.task, TextConfig) and options.corpus is None:
            read, own = loaded.config.task, True
    model, reader = loaded.model, loaded.tokenizer
    if not isinstance(model, LanguageModel) or reader is None:
        raise ConfigError(f"{options.model} is no decoder with a tokenizer: a cache is what a decoder keeps of a text")
    config = cache.sized(
        parse_numbers(options.budgets, "budgets"),
        scored=options.scored,
        context=options.context,
        texts=options.texts,
        keys=options.keys,
        limit=model.limit,
        seed=options.seed,
    )
    needed, text = 16 * (config.context + config.scored) * config.texts, ""
    corpus = open_corpus(read)
    documents = corpus.parse()
    if own:
        split_of = corpus.splits(read.holdout)
        documents = sorted(documents, key=lambda one: _HELD_OUT_FIRST.index(split_of[one.group]))
    for document in documents:
        text += document.text
        if len(text) > needed:  # characters, more than tokens of any alphabet need
            break
    screen = console(machine=options.json)

    def encode(words: str) -> list[int]:
        ids = reader.encode(words, added=False) if isinstance(reader, pretrained.PretrainedTokenizer) else None
        return [int(each) for each in (reader.encode(words) if ids is None else ids)]

    results = cache.measure(model, config, text, encode, tell=tell)
    results["model"] = options.model
    screen.print(table(*page.columns(), rows=page.rows(results)))
    for line in page.notes(results):
        screen.print(line, markup=False)
    finish(results, options, page)
    return 0
