"""Build, search, index, verify, merge or cut datastores of what a model saw, which evaluate and generate take."""

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import tyro

from regard.cli import leaving
from regard.core.errors import ConfigError, InputError, nearest
from regard_lab.cli._datastore import KnnOptions, as_options, searched
from regard_lab.cli._options import Device, Ignore, Json, Trust, own_names
from regard_lab.cli._output import console, emit, given, table, tell, will_write
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.ticking import Ticking

if TYPE_CHECKING:
    from regard.models import LanguageModel
    from regard.text.reader import Reader

_WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_NEIGHBOURS = (1, 4, 16, 64, 256, 1024)
_TEMPERATURES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_CONTEXT = 24
"""tokens before a neighbour that search shows"""


@dataclass(frozen=True)
class Options:
    """An action on a datastore."""

    action: tyro.conf.Positional[Literal["build", "index", "search", "verify", "stats", "sweep", "merge", "delete"]]
    """build: of a corpus; a build that was interrupted goes on when it is given again. index: indices of one that is
    there, made anew where it has them. search: what is near the end of a text. verify: every file against its SHA-256,
    exit 4 if one is damaged. stats: what is in it. sweep: nats per token of a corpus by weight, neighbours and
    temperature, best first. merge: a new one of several; one that was interrupted goes on when it is given again.
    delete: documents of one that is there"""
    what: tyro.conf.Positional[str]
    """build: a bundled corpus, a file of text, one with a text in every row, or a folder of such files; the others: the
    folder of the datastore"""
    more: tyro.conf.Positional[tuple[str, ...]] = ()
    """search: the text, of which the end is looked up, - reads it from standard input; sweep: the corpus; merge: the
    other datastores"""
    model: str | None = None
    """build, search and sweep: directory of a run; or published weights: a .gguf file, a Hugging Face folder, what
    `pretrained.save` wrote, or package:NAME"""
    out: str | None = None
    """build and merge: the new folder"""
    add: bool = False
    """build: --out is a whole datastore, which the corpus is added to"""
    index: tuple[Literal["flat", "ivf", "hnsw"], ...] = ()
    """build and index: make these indices of FAISS, for --knn.index"""
    document: tuple[str, ...] = ()
    """build and sweep: only these documents, by the names of their files or the years of state_of_the_union; delete:
    those that go, or files, all of whose documents go; regard knn stats --json lists them"""
    field: str | None = None
    """build and sweep: column of a file with a text in every row that holds the text"""
    separator: str | None = None
    """build and sweep: text that separates the documents of a file of text"""
    suffixes: tuple[str, ...] = ()
    """build and sweep: of a folder, read the files with these endings"""
    length: int | None = None
    """build and sweep: tokens in a window; None: as the run was trained on, or for published weights 1024, or as many
    as the network has positions for"""
    limit: int = 0
    """sweep: as many windows, evenly spaced; 0: all"""
    knn: KnnOptions = dataclasses.field(default_factory=KnnOptions)
    device: Device = "auto"
    trust: Trust = False
    ignore: Ignore = ()
    json: Json = False


_TAKEN = {
    "build": ("model", "out", "add", "index", "document", "field", "separator", "suffixes", "length"),
    "index": ("index",),
    "search": ("more", "model"),
    "verify": (),
    "stats": (),
    "sweep": ("more", "model", "document", "field", "separator", "suffixes", "length", "limit"),
    "merge": ("more", "out"),
    "delete": ("document",),
}
_KNN_TAKEN = {"search": ("k", "index", "probes"), "sweep": ("k", "index", "probes", "own")}


def run(options: Options) -> int:
    """Do it."""
    _only(options)
    actions = {
        "build": _build,
        "index": _index,
        "search": _search,
        "verify": _verify,
        "stats": _stats,
        "sweep": _sweep,
        "merge": _merge,
        "delete": _delete,
    }
    with own_names():
        return actions[options.action](options)


def _only(options: Options) -> None:
    """Refuse options of another action: ignored, they would look like they worked."""
    taken = _TAKEN[options.action]
    for name in dict.fromkeys(name for names in _TAKEN.values() for name in names):
        if name not in taken and getattr(options, name) not in (None, (), False, 0):
            raise ConfigError(f"knn {options.action} has no use for {_flag(name)}; leave it out")
    for name, default in vars(KnnOptions()).items():
        if name not in _KNN_TAKEN.get(options.action, ()) and getattr(options.knn, name) != default:
            raise ConfigError(f"knn {options.action} has no use for --knn.{name}; leave it out")
    for name in ("model", "out"):
        if name in taken and getattr(options, name) is None:
            raise ConfigError(f"knn {options.action} needs {_flag(name)}")
    for name, least in (("length", 1), ("limit", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"{_flag(name)} must be at least {least}, got {value}")
    if options.action == "index" and not options.index:
        raise ConfigError("knn index needs --index with the kinds to make, such as --index ivf")
    if options.action == "delete" and not options.document:
        raise ConfigError(
            "knn delete needs --document with the names of those that go; regard knn stats --json lists them"
        )
    if "more" in taken and not options.more:
        wants = {"search": "a text to look up", "sweep": "a corpus to predict", "merge": "another one"}
        raise ConfigError(f"knn {options.action} needs {wants[options.action]} after the datastore")
    if "more" in taken and options.action != "merge" and len(options.more) > 1:
        raise ConfigError(f"knn {options.action} takes one word after the datastore; a text stands in quotes")


def _flag(name: str) -> str:
    return {"more": "a second word"}.get(name, f"--{name}")


def _model(options: Options) -> "tuple[LanguageModel, Reader, int]":
    """A decoder, what it reads with, and the length of its windows."""
    from regard_lab.networks.datastores import decoder

    assert options.model is not None
    model, reader, length = decoder(options.model, device=options.device, trust=options.trust, ignore=options.ignore)
    return model, reader, length if options.length is None else options.length


def _corpus(options: Options, corpus: str) -> list[Any]:
    """The documents that are asked for."""
    from regard_lab.tasks.corpus import open_corpus

    read = TextConfig(corpus=corpus, field=options.field, separator=options.separator, suffixes=options.suffixes)
    found = open_corpus(read)
    if found.left_out:
        tell(f"{corpus}: {len(found.paths)} file(s) are read{found.left_out}")
    documents = list(found.parse())
    if options.document:
        known = {one.name for one in documents}
        for name in options.document:
            if name not in known:
                raise ConfigError(f"{corpus} has no document {name!r}: {nearest(name, known)}")
        documents = [one for one in documents if one.name in options.document]
    return documents


def _build(options: Options) -> int:
    from regard_lab.retrieval import Index, build, origin, texts
    from regard_lab.retrieval.build import begun
    from regard_lab.retrieval.index import faiss

    if options.index:
        faiss()  # missing, it is said before the work
    assert options.out is not None
    will_write(options.out, folder=True)
    there = begun(Path(options.out), add=options.add, checked=False)
    documents = _corpus(options, options.what)
    if there is not None and options.add:
        names = {stored.name for stored in there.manifest.documents[: there.manifest.adding]}
        if twice := next((one.name for one in documents if one.name in names), None):
            raise ConfigError(
                f"{options.out} has a document {twice!r} already: rename the file, or take that document out with "
                f"regard knn delete {quote(options.out)} --document {quote(twice)}"
            )
    model, reader, length = _model(options)
    with leaving(lambda: f"the same command goes on where it stopped, with what is in {options.out}"):
        store = build(
            model,
            texts(documents, reader),
            options.out,
            origin=origin(model, reader),
            length=length,
            add=options.add,
            progress=Ticking("entries"),
        )
    way = (
        f"{options.out} is whole; its indices: regard knn index {quote(options.out)} --index {' '.join(options.index)}"
    )
    with leaving(lambda: way):
        for kind in options.index:
            Index(store, kind).save()
    return _stats(replace(options, what=options.out))


def _index(options: Options) -> int:
    """Make indices of a datastore that is there."""
    from regard_lab.retrieval import Datastore, Index

    will_write(options.what, *(f"{kind}.faiss" for kind in options.index))
    store, screen = Datastore.open(options.what), console(machine=options.json)
    paths = [Index(store, kind).save() for kind in options.index]
    for path in paths:
        screen.print(f"{path}: {path.stat().st_size:,} bytes", markup=False)
    if options.json:
        emit({"datastore": options.what, "indices": [str(path) for path in paths]})
    return 0


def _merge(options: Options) -> int:
    from regard_lab.retrieval import Datastore

    assert options.out is not None
    will_write(options.out, folder=True)
    Datastore.merge(options.out, [Datastore.open(folder) for folder in (options.what, *options.more)])
    return _stats(replace(options, what=options.out))


def _delete(options: Options) -> int:
    from regard_lab.retrieval import Datastore

    Datastore.open(options.what).delete(*options.document)
    return _stats(options)


def _stats(options: Options) -> int:
    from regard_lab.retrieval import Datastore

    stats = Datastore.open(options.what, checked=False).stats()
    if options.json:
        emit({**stats._asdict(), "origin": dict(stats.origin)})
        return 0
    rows = [
        ("entries", f"{stats.entries:,}"),
        ("bytes", f"{stats.nbytes:,}"),
        ("numbers in a key", stats.dim),
        ("documents", f"{len(stats.documents):,}"),
        *([("copies", f"{stats.copies:,} (texts that it has already)")] if stats.copies else []),
        *((name, value[:12] if len(value) == 64 else value) for name, value in stats.origin.items()),
    ]
    console().print(table(options.what, "", rows=rows))
    return 0


def _verify(options: Options) -> int:
    from regard_lab.retrieval import Datastore

    store = Datastore.open(options.what)
    if options.json:
        emit({"datastore": options.what, "entries": len(store), "state": "sound"})
    else:
        console().print(f"{options.what}: {len(store):,} entries, sound", markup=False)
    return 0


def _search(options: Options) -> int:
    import torch

    from regard_lab.retrieval.keys import joined, kept_keys

    model, reader, _ = _model(options)
    found_in = searched(options.what, options.knn, model, reader)
    ids = torch.as_tensor(reader.encode(given(options.more[0])))
    if not len(ids):
        raise InputError("the text has no token; give some text to look up")
    ids = ids if model.limit is None else ids[-model.limit :]
    with torch.inference_mode(), kept_keys(model.eval()) as pieces:
        model.hidden(ids[None].to(model.table.weight.device))
    k = min(10, max(1, len(found_in.store))) if options.knn.k is None else options.knn.k
    with as_options():
        neighbours = found_in.search(joined(pieces)[0, -1:].float(), k)
    store, rows = found_in.store, []
    starts = torch.tensor(store.starts())
    for distance, number in zip(neighbours.distances[0].tolist(), neighbours.ids[0].tolist(), strict=True):
        if number < 0:
            continue
        at = int(torch.searchsorted(starts, number, right=True)) - 1
        first = int(starts[at])
        before = store.values(max(first, number - _CONTEXT), number)
        token = store.values(number, number + 1)
        rows.append(
            {
                "distance": distance,
                "document": store.manifest.documents[at].name,
                "place": number - first + 1,
                "before": reader.decode(before.numpy()),
                "token": reader.continuation(token.numpy(), before.numpy()),
            }
        )
    if options.json:
        emit(rows)
        return 0
    shown = [(f"{row['distance']:.1f}", row["document"], row["before"], row["token"]) for row in rows]
    console().print(table("distance", "document", "after", "came", rows=shown))
    return 0


def _sweep(options: Options) -> int:
    from regard_lab.networks.evaluation import windows
    from regard_lab.retrieval import look, sweep
    from regard_lab.retrieval.documents import other_windows

    documents = _corpus(options, options.more[0])
    model, reader, length = _model(options)
    found_in = searched(options.what, options.knn, model, reader)
    most = min(1024, max(1, len(found_in.store))) if options.knn.k is None else options.knn.k
    tell(other_windows(found_in.store, length))
    examples = windows([one.text for one in documents], reader, length)
    with as_options():
        looked = look(
            model,
            found_in,
            examples,
            k=most,
            own=options.knn.own,
            limit=options.limit,
            progress=Ticking("targets looked up"),
        )
    if looked.own is not None:
        tell(str(looked.own))
    ks = [k for k in _NEIGHBOURS if k < most] + [most]
    tried = sweep(looked, lams=_WEIGHTS, ks=ks, temperatures=_TEMPERATURES)
    alone = float(looked.model.mean())
    if options.json:
        emit({"targets": len(looked.targets), "model_alone": alone, "settings": [one._asdict() for one in tried]})
        return 0
    rows = [(one.lam, one.k, f"{one.temperature:g}", f"{one.nats:.4f}") for one in tried[:10]]
    title = f"{len(looked.targets):,} targets, {alone:.4f} nats per token without the datastore"
    console().print(table("lam", "k", "temperature", "nats per token", rows=rows, title=title))
    return 0
