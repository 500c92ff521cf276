"""A corpus of any size becomes a token store, shard by shard, by several processes."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.core.errors import ConfigError, DataError, LimitError, ResourceError
from regard.files.checksums import Entry, opened, sealed
from regard.files.folders import locked_folder, save_file, writing
from regard.files.reading import content
from regard.files.reading import text as file_text
from regard.files.writing import is_partial, sweep
from regard.text.reader import Reader
from regard.text.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer, tokenizer_from_json
from regard_lab.tasks.config import TABLES, TEXTS
from regard_lab.tasks.token_store import (
    BUILD,
    FORMAT,
    KINDS,
    RECORD,
    STORE,
    TOKENIZER,
    Facts,
    Shard,
    TokenStore,
)
from regard_lab.tokens.plan import Piece, Plan, digest, plan
from regard_lab.tokens.shard import finished, write_shard
from regard_lab.tokens.texts import split_of, texts

SHARD_BYTES = 256 << 20
SAMPLE_BYTES = 100 << 20
_LOG = logging.getLogger("regard")

Progress = Callable[[int, int, Shard], None]
"""called with the number of finished shards, of all, and the one that was finished"""


class Reading(NamedTuple):
    """How documents are read and split."""

    base: str
    field: str | None
    separator: str | None
    holdout: float

    def texts(self, pieces: Iterable[Piece]) -> Iterator[str]:
        """Of pieces, in order."""
        return (text for piece in pieces for text in texts(Path(self.base), piece, self.field, self.separator))


class Work(NamedTuple):
    """A shard to write."""

    folder: str
    name: str
    pieces: tuple[Piece, ...]
    reading: Reading
    source: str


def build(
    corpus: str | Path,
    out: str | Path,
    *,
    tokenizer: Reader | Literal["bytes", "bpe"] = "bytes",
    vocab_size: int = 4096,
    processes: int = 1,
    shard_bytes: int = SHARD_BYTES,
    sample_bytes: int = SAMPLE_BYTES,
    holdout: float = 0.05,
    field: str | None = None,
    separator: str | None = None,
    suffixes: tuple[str, ...] = (),
    progress: Progress = lambda done, count, shard: None,
) -> TokenStore:
    """The token store of a folder of text, however large.

    Shards follow from names and sizes of files and from `shard_bytes`: their bits are the same for any number of
    processes. A build that was killed goes on when it is given again: finished shards are kept.

    Args:
        corpus: a folder of .txt, .md, .py, .jsonl, .csv and .parquet files, with the folders below it; or such a file.
        out: the folder of the store: a new one, or that of an interrupted build.
        tokenizer: a ready one; bytes; or bpe, trained on the training documents at the beginning of files, as far as
            `sample_bytes`.
        vocab_size: of bpe.
        processes: that write shards; above 1, a script that calls this needs the `__main__` guard of multiprocessing.
        shard_bytes: of text in a shard.
        sample_bytes: of text that bpe is trained on.
        holdout: share of the documents that validation gets, and again the test, by the hash of their text.
        field, separator, suffixes: as `TextConfig`.
        progress: called for every shard, kept ones first.

    Raises:
        ConfigError: `out` holds something else, a whole store, or the beginning of another build; options out of range
            or of no use.
        DataError: nothing to read, or a file that is malformed. LimitError: a document that is too large.
        ResourceError: the store cannot be written, is being written, or a process was killed.
    """
    corpus, out = Path(corpus).expanduser(), Path(out).expanduser()
    if not 0 < holdout < 0.5 or min(processes, shard_bytes, sample_bytes) < 1:
        raise ConfigError(
            "a build needs a holdout of more than 0 and less than 0.5, and at least one process and one byte, got "
            f"holdout={holdout}, processes={processes}, shard_bytes={shard_bytes}, sample_bytes={sample_bytes}"
        )
    planned = plan(corpus, shard_bytes, suffixes)
    _require_used(planned, field, separator)
    if planned.left_out:
        _LOG.warning("%s: %d shard(s)%s", corpus, len(planned.units), planned.left_out)
    reading = Reading(str(planned.base), field, separator, holdout)
    kind: Any = tokenizer if isinstance(tokenizer, str) else digest(tokenizer.to_json())
    options = {
        "tokenizer": f"bpe {vocab_size} of {sample_bytes}" if kind == "bpe" else kind,
        "holdout": holdout,
        "field": field,
        "separator": separator,
        "shard_bytes": shard_bytes,
        "corpus": planned.digest(),
    }
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with locked_folder(out):
        if (out / STORE).exists() and not (out / BUILD).exists():
            raise ConfigError(f"{out} is a token store already; choose another name: nothing is ever overwritten")
        _begin(out, options)
        if (out / STORE).exists():  # the build was killed while it tidied up
            return _tidied(out)
        reader = _tokenizer(out, tokenizer, vocab_size, sample_bytes, planned, reading)
        shards = _shards(out, planned, reading, reader, processes, progress)
        measured = not isinstance(reader, Tokenizer)
        facts = Facts(Entry.at(out / TOKENIZER), reader.vocab_size, measured, holdout, tuple(shards))
        save_file(out / STORE, (json.dumps(facts.document(), indent=1) + "\n").encode())
        return _tidied(out)


def _tidied(out: Path) -> TokenStore:
    """A store that is whole, without what its build wrote for itself; last of all what says that there is such."""
    store = TokenStore.open(out)
    with writing(out):
        for path in (*(out / f"{shard.name}.{RECORD}" for shard in store.facts.shards), out / BUILD):
            path.unlink(missing_ok=True)
    return store


def _require_used(planned: Plan, field: str | None, separator: str | None) -> None:
    if field is not None and not planned.suffixes & {*TABLES}:
        raise ConfigError(f"field={field!r} is for {', '.join(TABLES)} files, and there are none; leave it out")
    if separator is not None and not planned.suffixes & {*TEXTS}:
        raise ConfigError(f"separator={separator!r} is for {', '.join(TEXTS)} files, and there are none; leave it out")
    if separator == "":
        raise ConfigError("an empty separator separates nothing; leave it out")


def _begin(out: Path, options: dict[str, Any]) -> None:
    """Say what is being built, or see that it is what was being built; remove what a killed process left of a file.

    What was begun otherwise, and has no token yet, is begun anew: a corpus that could not be read, and now can be.
    """
    begins = json.dumps(sealed({"format": FORMAT, **options})).encode()
    if (out / BUILD).exists():
        try:
            begun = opened(content(out / BUILD))
        except (OSError, ValueError) as error:
            raise DataError(f"{out / BUILD} is damaged ({error}); remove {out} and build again") from error
        others = [
            f"{name}={begun.get(name)!r}, now {value!r}" for name, value in options.items() if begun.get(name) != value
        ]
        if others and all(path.name in (BUILD, TOKENIZER) or path.name.startswith(".") for path in out.iterdir()):
            with writing(out):
                (out / TOKENIZER).unlink(missing_ok=True)
            save_file(out / BUILD, begins)
        elif others or begun.get("format") != FORMAT:
            raise ConfigError(
                f"{out} was begun with {'; '.join(others) or 'another version'}; give the same, or another name"
            )
    else:
        if not all(map(is_partial, out.iterdir())):
            raise ConfigError(f"{out} holds something else than a token store; choose another name")
        save_file(out / BUILD, begins)
    sweep(out)


def _tokenizer(
    out: Path, wanted: Reader | str, vocab_size: int, sample_bytes: int, planned: Plan, reading: Reading
) -> Reader:
    """That of the store: written once, and read when the build goes on."""
    path = out / TOKENIZER
    if path.exists():
        return tokenizer_from_json(file_text(path))
    if isinstance(wanted, Reader):
        reader = wanted
    elif wanted == "bytes":
        reader = ByteTokenizer()
    else:
        reader = BpeTokenizer.train(_sample(planned, reading, sample_bytes), vocab_size)
    save_file(path, reader.to_json().encode())
    return tokenizer_from_json(file_text(path))  # as every process reads it


def _sample(planned: Plan, reading: Reading, most: int) -> Iterator[str]:
    """Training documents at the beginning of pieces, ordered by the hash of their names, as far as `most` bytes."""
    pieces = [piece for unit in planned.units for piece in unit]
    pieces.sort(key=lambda piece: hashlib.sha256(os.fsencode(f"{piece.start} {piece.path}")).digest())
    share, left = max(1 << 20, most // len(pieces)), most
    for piece in pieces:
        of_piece = share
        for text in reading.texts([piece]):
            if split_of(text, reading.holdout) == "train":
                yield text
                of_piece -= len(text.encode())
                left -= len(text.encode())
            if min(of_piece, left) <= 0:
                break
        if left <= 0:
            return


def _shards(
    out: Path, planned: Plan, reading: Reading, reader: Reader, processes: int, progress: Progress
) -> list[Shard]:
    """All shards, in order; those that are finished are not written again."""
    made_by = Entry.at(out / TOKENIZER).sha256
    count, found, missing = len(planned.units), {}, []
    for number, unit in enumerate(planned.units):
        name, source = f"{number:08d}", digest([made_by, *reading[1:], unit])
        shard = finished(out, name, source)
        if shard is None:
            missing.append(Work(str(out), name, unit, reading, source))
        else:
            found[name] = shard
            progress(len(found), count, shard)
    with writing(out):  # what is no part of a finished shard is written anew
        for work in missing:
            for kind in (*KINDS, RECORD):
                (out / f"{work.name}.{kind}").unlink(missing_ok=True)
    for shard in _alone(missing, reader) if min(processes, len(missing)) < 2 else _together(missing, out, processes):
        found[shard.name] = shard
        progress(len(found), count, shard)
    return [found[name] for name in sorted(found)]


def _alone(missing: Iterable[Work], reader: Reader) -> Iterator[Shard]:
    return (_write(work, reader) for work in missing)


def _together(missing: list[Work], out: Path, processes: int) -> Iterator[Shard]:
    """Shards as they are finished, by processes of which none outlives this one."""
    waiting, running = iter(missing), set[Future[Shard]]()
    pool = ProcessPoolExecutor(
        min(processes, len(missing)), get_context("spawn"), initializer=_enter, initargs=(str(out / TOKENIZER),)
    )
    try:
        running |= {pool.submit(_work, work) for work in islice(waiting, 2 * processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()
                running |= {pool.submit(_work, work) for work in islice(waiting, 1)}
    except BrokenProcessPool as error:
        raise ResourceError(
            f"a process that builds {out} was killed, perhaps for want of memory: give the same command again, which "
            "goes on, with fewer --processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_reader: Reader | None = None
"""of a process of a build"""


def _enter(tokenizer: str) -> None:
    """Begin a process of a build: it ends with the one that began it, and its tokenizer uses one core."""
    global _reader
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _reader = tokenizer_from_json(file_text(Path(tokenizer)))


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(work: Work) -> Shard:
    assert _reader is not None
    return _write(work, _reader)


def _write(work: Work, reader: Reader) -> Shard:
    texts = work.reading.texts(work.pieces)
    try:
        return write_shard(Path(work.folder), work.name, texts, reader, work.reading.holdout, work.source)
    except MemoryError as error:
        raise LimitError(
            f"shard {work.name} holds a document that does not fit in memory; separate documents"
        ) from error
