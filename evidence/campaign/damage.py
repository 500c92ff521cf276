"""Damaged files: what could change a result is named, and everything else gives the same bits; never a traceback."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evidence.campaign import broken, children, works
from evidence.campaign.log import Outcome
from evidence.campaign.works import CALIBRATED, DECODER, EXITS, PACE, STORE, TEXT, TINY, TRAININGS

NAME = "damage"
BATCH = 100
SECONDS, BYTES = 20.0, 2 << 30
"""of a processor, and of memory, that a command on a damaged file may take"""
TWIN = "twin"
"""a file from another of its kind; beside the ways of `campaign.broken`"""
_CODES = (2, 3, 4, 5, 6)

Words = tuple[str, ...]
CACHE = ("--task.cache", "cache")
SCALE = ("--temperature", "0", "--max-new-tokens", "6")


def _here(words: Sequence[str]) -> Words:
    """Where inputs are not in a folder beside, but here."""
    return tuple(word.removeprefix("in/") for word in words)


def _trained(name: str, *more: str) -> Words:
    """A training in this folder, whose inputs are beside it."""
    return ("train", "--out", "run", *TINY, *PACE, *_here(TRAININGS[name]), *works.DRAWN.get(name, ()), *more)


@dataclass(frozen=True)
class Subject:
    """Files that commands read.

    sealed: regard wrote them with checksums, so that other content must be named; otherwise it may be read as what it
    is. prepare: commands that make them. commands: those that read them. leaves: files beside what is printed that
    belong to the result. make: what else makes them.
    """

    sealed: bool
    prepare: tuple[Words, ...]
    commands: tuple[Words, ...]
    files: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    make: Callable[[Path], None] = lambda folder: None


def _hugging_face(folder: Path) -> None:
    from regard.integrations import pretrained
    from regard.models import LanguageModel, presets
    from tests.integrations.test_pretrained import TINY as SMALL
    from tests.integrations.test_pretrained import words

    model = LanguageModel(presets.build("llama", **{**SMALL, "vocab_size": 10}))
    pretrained.export(model, folder / "published", tokenizer=words())
    pretrained.save(pretrained.load(folder / "published"), folder / "saved")
    (folder / "question.txt").write_text("to be or not to be that is the question\n" * 30)


def _gguf(folder: Path) -> None:
    from tests.integrations.test_pretrained import llama_file

    llama_file(folder / "weights.gguf")
    (folder / "letters.txt").write_text("ab c a b c " * 60)


def _tables(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [f"{at} is followed by {at + 1}" for at in range(60)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (folder / "rows.csv").write_text("text\n" + "\n".join(rows) + "\n")
    parquet.write_table(pyarrow.table({"text": rows}), folder / "rows.parquet")


def said(text: str) -> Words:
    """A command, word by word."""
    return tuple(text.split())


EVALUATED = said("evaluate run --json --batch-size 8")
GENERATED: Words = ("generate", "run", "1 is", *SCALE)
RESUMED = said("train --resume run --steps 14 --json")
LOOKED = said("evaluate decoder --json --corpus more.txt --token-files cache --datastore store --knn.k 4 --limit 8")
READ = said(
    "train --steps 1 --warmup 0 --batch-size 4 --threads 1 --out new --json "
    "--model.dim 16 --model.heads 2 --model.layers 1"
)
FROM = said("train --from decoder --out run --batch-size 4 --warmup 2 --threads 1")
ROWS = ("rows.jsonl", "rows.csv", "rows.parquet", "words.txt")
RUN = ("run/**/*",)


def _of_others(name: str, text: str, prompt: str) -> tuple[Words, ...]:
    """What is done with published weights."""
    return ("generate", name, prompt, *SCALE), ("evaluate", name, "--corpus", text, "--json")


SUBJECTS: dict[str, Subject] = {
    "run on text": Subject(
        True,
        (_trained("byte pairs"),),
        (
            *(EVALUATED, GENERATED, RESUMED, said("checkpoint verify run"), said("info run")),
            said("checkpoint export run --out weights.safetensors"),
        ),
        RUN,
        ("weights.safetensors",),
    ),
    "run on classes": Subject(
        True, (_trained("classes of texts"),), (EVALUATED, ("generate", "run", "3 is odd"), RESUMED), RUN
    ),
    "run on pixels": Subject(
        True, (_trained("pixels"),), (EVALUATED, RESUMED, said("generate run --out drawn.png")), RUN, ("drawn.png",)
    ),
    "run with memories": Subject(True, (_trained("compressive memory"),), (EVALUATED, RESUMED), RUN),
    "run from weights": Subject(
        True, ((*DECODER, *CACHE), (*FROM, *PACE, *_here(TEXT))), (EVALUATED, GENERATED, RESUMED), RUN
    ),
    "calibration": Subject(
        True,
        (tuple(word.replace("decoder", "run") for word in EXITS), ("calibrate", "run", *_here(CALIBRATED[4:]))),
        ((*EVALUATED, "--exits", "calibrated"), (*GENERATED, "--exits", "calibrated"), said("info run")),
        ("run/exits/*",),
    ),
    "datastore": Subject(
        True,
        ((*DECODER, *CACHE), (*STORE, "--index", "flat", "ivf", "hnsw")),
        (
            LOOKED,
            *((*LOOKED, "--knn.index", kind) for kind in ("ivf", "hnsw", "flat")),
            said("knn verify store"),
            said("knn stats store --json"),
            ("knn", "search", "store", "1 is", "--model", "decoder", "--knn.k", "3", "--json"),
        ),
        ("store/*",),
    ),
    "token files": Subject(True, (_trained("text"),), (EVALUATED, RESUMED), ("cache/**/*",)),
    "saved network": Subject(
        True, (), _of_others("saved", "question.txt", "to be"), ("saved/*",), make=_hugging_face
    ),
    "Hugging Face folder": Subject(
        False, (), _of_others("published", "question.txt", "to be"), ("published/*",), make=_hugging_face
    ),
    "GGUF": Subject(False, (), _of_others("weights.gguf", "letters.txt", "ab c"), ("weights.gguf",), make=_gguf),
    "texts": Subject(
        False, (), tuple((*READ, "--task.length", "16", *CACHE, "--task.corpus", name) for name in ROWS), ROWS,
        make=_tables,
    ),
    "tables and images": Subject(
        False,
        (),
        (
            (*READ, *said("--task classification --task.data labels.csv --task.length 16")),
            (*READ, *said("--task classification --task.data pictures.npz")),
            (*READ, *said("--task images --task.data pictures.npz")),
            (*READ, *said("--task translation --task.corpus pairs.tsv --task.tokenizer bytes")),
        ),
        ("labels.csv", "pictures.npz", "pairs.tsv"),
    ),
}  # fmt: skip
KINDS = {kind: 600 if kind in ("run on text", "datastore") else 300 for kind in SUBJECTS}
JUDGED: dict[str, int] = {}
SHORT = {"run on text": 8, "GGUF": 6}


def cases(kind: str, folder: Path) -> Callable[[int], Outcome]:
    """The cases of a kind."""
    subject = SUBJECTS[kind]
    base, twin = folder / "base", folder / TWIN
    _prepare(subject, base)
    found = {path.relative_to(base) for pattern in subject.files for path in base.glob(pattern) if path.is_file()}
    files = sorted(path for path in found if path.name != ".lock")
    wanted: dict[Words, tuple[str, children.Ended]] = {}
    for words in subject.commands:
        done, result = _done(subject, base, folder / "whole", words)
        wanted[words] = result, done
        if done.code:
            raise RuntimeError(f"{kind}: regard {' '.join(words)} gives no result: {done.said}")
    return partial(_case, subject, base, twin, files, wanted, folder)


def _prepare(subject: Subject, base: Path, more: Words = ()) -> None:
    """Its files in a new folder; `more` is said to trainings."""
    works.write_inputs(base)
    subject.make(base)
    for words in subject.prepare:
        done = children.command((*words, *(more if words[0] == "train" and "--from" not in words else ())), base)
        if done.code:
            raise RuntimeError(f"regard {' '.join(words)} cannot be prepared: {done.said}")


def _done(subject: Subject, base: Path, place: Path, words: Words) -> tuple[children.Ended, str]:
    """A command in a copy of the base, and what came of it."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place)
    return _run(subject, place, words)


def _run(subject: Subject, place: Path, words: Words) -> tuple[children.Ended, str]:
    done = children.command(words, place, memory=2 * BYTES, seconds=60.0)
    digest = hashlib.sha256(done.out.encode())
    for name in subject.leaves:
        digest.update((place / name).read_bytes() if (place / name).is_file() else b"")
    return done, digest.hexdigest()


def _case(
    subject: Subject,
    base: Path,
    twin: Path,
    files: list[Path],
    wanted: dict[Words, tuple[str, children.Ended]],
    folder: Path,
    seed: int,
) -> Outcome:
    draw = random.Random(f"damage {seed}")
    name = files[seed % len(files)]
    ways = [*broken.WAYS, TWIN]
    way = ways[seed // len(files) % len(ways)]
    words = draw.choice(subject.commands)
    if way == TWIN and not twin.exists():
        _prepare(subject, twin, ("--seed", "1", "--model.seed", "1"))
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place)
    (broken.twin_of(twin / name) if way == TWIN else broken.WAYS[way])(place / name, draw)
    done, result = _run(subject, place, words)
    what = f"{way} of {name}, regard {' '.join(words[:2])}"
    whole, usual = wanted[words]
    said, wrong = _judged(done, usual, name, same=result == whole, sealed=subject.sealed)
    if wrong:
        return Outcome(f"{what}: {said}", True, seconds=done.seconds, peak=done.peak)
    return Outcome(said, seconds=done.seconds, peak=done.peak)


def _judged(done: children.Ended, usual: children.Ended, name: Path, *, same: bool, sealed: bool) -> tuple[str, bool]:
    """What came of it, and whether that is a defect.

    Args:
        done: how the command ended on the damaged file.
        usual: how it ends on the whole one: a name that it says there too, as often and to the same stream, says
            nothing about damage.
        name: of that file.
        same: it gave what it gives on the whole one.
        sealed: another result must be told.
    """
    told = f"exit code {done.code}: {done.said}"
    if done.hung or done.seconds > SECONDS:
        return f"took {done.seconds:.1f} s", True
    if done.peak > BYTES:
        return f"took {done.peak >> 20} MiB; {told}", True
    if done.traceback or done.code not in (0, *_CODES):
        return told, True
    names = [name.name, str(name.parent)] if len(name.parts) > 1 else [name.name]
    if done.code:
        return ("named", False) if any(each in done.err + done.out for each in names) else (f"not named, {told}", True)
    if same:
        return "same bits", False
    streams = (done.err, usual.err), (done.out, usual.out)
    if any(now.count(each) > then.count(each) for now, then in streams for each in names):
        return "goes on without it, and says so", False
    return ("another result, and nothing is said", True) if sealed else ("read as what it now is", False)
