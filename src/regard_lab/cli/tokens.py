"""Build, verify or describe a token store: text of any size as token files, which train and evaluate read from disk."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from regard.cli import leaving
from regard.core.errors import ConfigError
from regard_lab.cli._options import Ignore, Json, own_names
from regard_lab.cli._output import console, emit, table, tell, will_write

if TYPE_CHECKING:
    from regard.text.reader import Reader

_BUILD = {
    "out": None,
    "tokenizer": "bytes",
    "vocab_size": None,
    "processes": None,
    "shard_size": 256,
    "sample": 100,
    "holdout": 0.05,
    "field": None,
    "separator": None,
    "suffixes": (),
    "trust": False,
    "ignore": (),
}
"""options of build alone"""


@dataclass(frozen=True)
class Options:
    """An action on a token store."""

    action: tyro.conf.Positional[Literal["build", "verify", "stats"]]
    """build: of a folder of text; a build that was killed goes on when it is given again. verify: every file against
    its SHA-256, exit 3 if one is damaged, missing or of no shard. stats: what is in it"""
    what: tyro.conf.Positional[str]
    """build: a folder of files with text, and of such folders, or one file; the others: the folder of the store"""
    out: str | None = None
    """build: the folder of the store"""
    tokenizer: str = "bytes"
    """build: bytes; bpe, trained on a sample of the training documents; a tokenizer.json that regard wrote; or what has
    one: a run, a store, or published weights (package:NAME, a .gguf file, a Hugging Face folder)"""
    vocab_size: int | None = None
    """build: tokens of bpe; None: 4096"""
    processes: int | None = None
    """build: that write shards; the store is the same for any number. None: one for every core"""
    shard_size: int = 256
    """build: megabytes (2^20 bytes) of text in a shard"""
    sample: int = 100
    """build: megabytes of text that bpe is trained on"""
    holdout: float = 0.05
    """build: share of the documents that validation gets, and again as much for the test, by the hash of each"""
    field: str | None = None
    """build: column of .csv and .parquet files, or key of .jsonl files, that holds the text; None: text"""
    separator: str | None = None
    """build: text that separates the documents of a file of text; None: a file is one document"""
    suffixes: tuple[str, ...] = ()
    """build: read the files of the folder with these endings, such as .jsonl; none given: all that regard reads"""
    trust: bool = False
    """build: a run named by --tokenizer may name its mechanism by import path, module:Class, which runs that module"""
    ignore: Ignore = ()
    json: Json = False


def run(options: Options) -> int:
    """Do it."""
    if options.action != "build":
        for name, default in _BUILD.items():
            if getattr(options, name) != default:
                flag = name.replace("_", "-")
                raise ConfigError(f"tokens {options.action} has no use for --{flag}; leave it out")
    with own_names():
        return {"build": _build, "verify": _verify, "stats": _stats}[options.action](options)


def _build(options: Options) -> int:
    from regard_lab.tokens import TokenStore, build

    if options.out is None:
        raise ConfigError("tokens build needs --out with the folder of the store")
    if options.vocab_size is not None and options.tokenizer != "bpe":
        raise ConfigError(f"--vocab-size is for --tokenizer bpe, not for {options.tokenizer}; leave it out")
    will_write(options.out, folder=True)
    given = options.tokenizer if options.tokenizer in ("bytes", "bpe") else _reader(options)
    with leaving(lambda: f"the same command goes on where it stopped, with what is in {options.out}"):
        store: TokenStore = build(
            options.what,
            options.out,
            tokenizer=given,  # type: ignore[arg-type]
            vocab_size=options.vocab_size or 4096,
            processes=options.processes or len(os.sched_getaffinity(0)),
            shard_bytes=options.shard_size << 20,
            sample_bytes=options.sample << 20,
            holdout=options.holdout,
            field=options.field,
            separator=options.separator,
            suffixes=options.suffixes,
            progress=lambda done, count, shard: print(
                f"shard {done} of {count}: {sum(each.tokens for each in shard.amounts.values()):,} tokens",
                file=sys.stderr,
                flush=True,
            ),
        )
    return _shown(store, options)


def _reader(options: Options) -> "Reader":
    """The tokenizer of a file, a run, a store or published weights."""
    from regard.integrations import pretrained
    from regard.text.tokenizer import load_tokenizer
    from regard_lab.networks import datastores
    from regard_lab.tasks.token_store import TOKENIZER, TokenStore, is_store

    path = Path(options.tokenizer).expanduser()
    if is_store(options.tokenizer):
        return TokenStore.open(path).tokenizer
    if pretrained.recognised(options.tokenizer):
        return datastores.decoder(options.tokenizer, trust=options.trust, ignore=options.ignore).reader
    if (path / "config.toml").is_file():
        return load_tokenizer(path / TOKENIZER)
    if not path.is_file():
        raise ConfigError(
            f"there is no tokenizer {options.tokenizer!r}: give bytes, bpe, a tokenizer.json, a run, a token store or "
            "published weights"
        )
    return load_tokenizer(path)


def _verify(options: Options) -> int:
    from regard_lab.tasks.token_store import TokenStore

    store = TokenStore.open(options.what)
    store.verify()
    if options.json:
        emit({"store": options.what, "shards": len(store.facts.shards), "sound": True})
    else:
        console().print(f"{options.what}: {len(store.facts.shards):,} shard(s) are sound", markup=False)
    return 0


def _stats(options: Options) -> int:
    from regard_lab.tasks.token_store import TokenStore

    return _shown(TokenStore.open(options.what), options)


def _shown(store: "object", options: Options) -> int:
    from regard_lab.tasks.base import SPLITS
    from regard_lab.tasks.token_store import TokenStore

    assert isinstance(store, TokenStore)
    amounts = {split: store.amount(split) for split in SPLITS}
    for split in (split for split in SPLITS if not amounts[split].documents):
        tell(f"the {split} split is empty, and training needs it: build of more documents, or with another --holdout")
    facts = {
        "store": str(store.folder),
        "shards": len(store.facts.shards),
        "bytes": store.nbytes,
        "tokenizer": store.tokenizer.kind,
        "vocab_size": store.tokenizer.vocab_size,
        "tokenizer_sha256": store.facts.tokenizer.sha256,
        "holdout": store.facts.holdout,
    }
    if options.json:
        splits = {
            split: {"documents": each.documents, "tokens": each.tokens, "text_bytes": each.nbytes}
            for split, each in amounts.items()
        }
        emit({**facts, "splits": splits})
        return 0
    screen = console()
    screen.print(table("what", "value", rows=[(name, _said(value)) for name, value in facts.items()]))
    rows = [(split, *(f"{each:,}" for each in amount)) for split, amount in amounts.items()]
    screen.print(table("split", "documents", "tokens", "bytes of text", rows=rows))
    return 0


def _said(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
