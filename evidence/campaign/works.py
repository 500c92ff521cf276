"""What is attacked: commands on small inputs that end with files, and how those are compared."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from evidence.campaign import equal

TINY = ("--model.dim", "16", "--model.heads", "2", "--threads", "1", "--batch-size", "4", "--warmup", "2")
PACE = ("--steps", "12", "--log-every", "5", "--evaluate-every", "6", "--checkpoint-every", "4")
TEXT = ("--task.corpus", "in/words.txt", "--task.length", "16", "--task.holdout", "0.1", "--task.cache", "cache")
CARRIED = (*TEXT, "--carry", "--model.max-length", "8", "--model.layers", "2")
PARTS = ("--accumulation", "2", "--model.dropout", "0.1", "--model.layers", "1")
PICTURES = ("--task.data", "in/pictures.npz")
STORED = ("--task.corpus", "in/tokens", "--task.length", "16")
BESIDE = ("--datastore", "in/store", "--datastore-model", "in/decoder")
CHOOSING = "early_exit(exits=aligned, heads=layer, confidence=classifier)"
LISTED = "memorizing(pairs=40, top=4, recent=6, index=ivf, probes=2)"

TRAININGS: dict[str, Sequence[str]] = {
    "text": ("--task", "text", *TEXT, *PARTS),
    "byte pairs": ("--task", "text", *TEXT, *PARTS, "--task.tokenizer", "bpe", "--task.vocab-size", "270"),
    "recall": ("--task", "recall", *PARTS, "--task.length", "16", "--task.vocab-size", "16", "--task.num-pairs", "2"),
    "copy": ("--task", "copy", *PARTS, "--task.length", "16"),
    "masked": ("--task", "masked", *TEXT, *PARTS),
    "classes of texts": ("--task", "classification", "--task.data", "in/labels.csv", "--task.length", "16", *PARTS),
    "classes of images": ("--task", "classification", *PICTURES, *PARTS),
    "translation": ("--task", "translation", "--task.corpus", "in/pairs.tsv", "--task.tokenizer", "bytes", *PARTS),
    "pixels": ("--task", "images", *PICTURES, "--task.levels", "4", *PARTS),
    "larger pixels": ("--task", "super_resolution", *PICTURES, "--task.levels", "4", "--task.factor", "4", *PARTS),
    "graph": ("--task", "graph", "--task.nodes", "160", *PARTS),
    "redrawn features": ("--task", "text", *TEXT, *PARTS, "--model.attention", "performer(redraw_interval=5)"),
    "codebooks": ("--task", "text", *TEXT, *PARTS, "--model.attention", "vector_quantized(num_codes=8)"),
    "clusters": ("--task", "text", *TEXT, *PARTS, "--model.attention", "routing(num_clusters=2)"),
    "reversible blocks": ("--task", "text", *TEXT, *PARTS, "--model.block", "reversible", "--model.norm", "pre"),
    "recomputed blocks": ("--task", "text", *TEXT, *PARTS, "--model.checkpoint", "block"),
    "ponder steps": ("--task", "text", *TEXT, *PARTS, "--model.depth", "universal"),
    "exits": ("--task", "text", *TEXT, *PARTS, "--model.depth", "early_exit"),
    "exits that are learnt": ("--task", "text", *TEXT, *PARTS, "--model.layers", "2", "--model.depth", CHOOSING),
    "recent memory": (*CARRIED, "--model.memory", "recent(length=12)"),
    "compressive memory": (*CARRIED, "--model.memory", "compressive(length=6, compressed=4, rate=3)"),
    "memorizing memory": (*CARRIED, "--model.memory", "recent(length=6)", "memorizing(pairs=40, top=4, recent=6)"),
    "indexed memory": (*CARRIED, "--model.memory", "recent(length=6)", LISTED),
    "half precision": ("--task", "text", *TEXT, *PARTS, "--dtype", "bfloat16"),
    "neighbours": ("--task", "text", *TEXT, *PARTS, "--model.neighbours", "2", *BESIDE),
    "text of a token store": ("--task", "text", *STORED, *PARTS),
    "two processes": ("--task", "text", *TEXT, *PARTS),
    "two processes with sequences": ("--task", "text", *TEXT, *PARTS),
}
"""name -> words of `regard train`; `task.num_examples` and the like are added where a task draws its own data"""
DRAWN = {
    "recall": ("--task.num-examples", "21", "--task.num-held-out", "6"),
    "copy": ("--task.num-examples", "21", "--task.num-held-out", "6"),
}
SETTINGS = """
[model]
dim = 16
heads = 2
layers = 2
dropout = 0.1
attention = ["local(window=5)"]

[task]
corpus = "in/words.txt"
length = 16
holdout = 0.1
cache = "cache"

[training]
steps = 12
"""


@dataclass(frozen=True)
class Work:
    """A command that ends with files, in a folder of its own whose `in` holds what it reads.

    words: the next command, by what is there already. result: what the command leaves. differences: of that from
    another one. prepare: commands that are run once, in the folder of inputs, by which it gets what it needs.
    whole_again: what is said where it is whole already. processes: that run it together.
    """

    name: str
    words: Callable[[Path], Sequence[str]]
    result: str
    differences: Callable[[Path, Path], list[str]]
    prepare: tuple[tuple[str, ...], ...] = ()
    whole_again: str | None = None
    processes: int = 1


def training(name: str) -> Work:
    """A training, continued where it has begun."""
    words = ("train", "--out", "run", *TINY, *PACE, *TRAININGS[name], *DRAWN.get(name, ()))
    divided = DIVIDED.get(name, ())

    def following(place: Path) -> Sequence[str]:
        there = (place / "run" / "config.toml").exists()
        return (*(("train", "--resume", "run") if there else words), *divided)

    return Work(name, following, "run", equal.runs, PREPARED.get(name, ()), processes=2 if name in DIVIDED else 1)


DECODER = ("train", "--out", "decoder", *TINY, *PACE, "--task.corpus", "words.txt", "--task.length", "16")
EXITS = (*DECODER, "--model.depth", "early_exit", "--model.layers", "3", "--task.cache", "cache")
STORE = ("knn", "build", "--model", "decoder", "words.txt", "--out", "store")
OTHER_STORE = ("knn", "build", "--model", "decoder", "more.txt", "--out", "other")
BUILT = ("knn", "build", "--model", "in/decoder", "in/words.txt", "--out", "store")
TOKENS = ("tokens", "build", "{}texts", "--out", "{}tokens", "--holdout", "0.1", "--shard-size", "1")
TOKENS += ("--tokenizer", "bpe", "--vocab-size", "300", "--sample", "1")
CALIBRATED = ("calibrate", "in/decoder", "--out", "exits", "--risk", "0.9", "--thresholds", "0.9", "0.1")
CALIBRATED += ("--passages", "60", "--length", "8", "--threads", "1", "--corpus", "in/words.txt")
LIGHT = (*CALIBRATED, "--heads", "light", "--head-passages", "60")
_DECODER = ((*DECODER, "--task.cache", "cache"),)


def stored(inside: str, processes: int) -> tuple[str, ...]:
    """A token store of the folder of texts, both in one folder."""
    return (*(word.format(inside) for word in TOKENS), "--processes", str(processes))


PREPARED: dict[str, tuple[tuple[str, ...], ...]] = {
    "neighbours": (*_DECODER, STORE),
    "text of a token store": (stored("", 1),),
}
"""name of a training -> commands that make what it reads"""
DIVIDED = {
    "two processes": (),
    "two processes with sequences": ("--parallel.sequence", "2"),
}
"""name of a training of two processes -> what they share, which every call says"""


def _changed(*words: str) -> Callable[[Path], Sequence[str]]:
    """A command on a datastore that is there already."""

    def following(place: Path) -> Sequence[str]:
        if not (place / "store").exists():
            shutil.copytree(place / "in" / "store", place / "store")
        return words

    return following


_INDEX = _changed("knn", "index", "store", "--index", "ivf", "flat", "hnsw")
_ADDED = _changed("knn", "build", "--model", "in/decoder", "in/more.txt", "--out", "store", "--add")
_DELETED = _changed("knn", "delete", "store", "--document", "valid", "test")
_EXPORTED = ("checkpoint", "export", "in/decoder", "--out", "weights.safetensors")


def _stored(processes: int, place: Path) -> Sequence[str]:
    words = stored("in/", processes)
    return [word.removeprefix("in/") if word == "in/tokens" else word for word in words]


def _added_once(folder: Path, whole: Path) -> list[str]:
    """An addition that was whole before it was given again is there twice, as it was asked for, and otherwise once."""
    ours, theirs = (json.loads((each / "manifest.json").read_text())["documents"] for each in (folder, whole))
    if ours == theirs:
        return equal.folders(folder, whole)
    kept = [path.name for path in whole.iterdir() if path.name != "manifest.json"]
    found = [name for name in sorted(kept) if (folder / name).read_bytes() != (whole / name).read_bytes()]
    more = theirs[len(theirs) // 2 :]  # both texts have as many documents
    while len(ours) > len(theirs) and ours[-len(more) :] == more:
        ours = ours[: -len(more)]
    return found + equal.leftovers(folder) + ([] if ours == theirs else [f"manifest.json has the documents {ours}"])


_STORE, _IS_STORE = (*_DECODER, STORE), "is a token store already"
_MERGED = ("knn", "merge", "in/store", "in/other", "--out", "both")
OTHERS = (
    Work("datastore", lambda place: BUILT, "store", equal.folders, _DECODER, "is a whole datastore"),
    Work("addition", _ADDED, "store", _added_once, _STORE),
    Work("merge", lambda place: _MERGED, "both", equal.folders, (*_STORE, OTHER_STORE), "exists; choose another name"),
    Work("deletion", _DELETED, "store", equal.folders, _STORE, "has no document"),
    Work("indices", _INDEX, "store", equal.folders, _STORE),
    Work("calibration", lambda place: CALIBRATED, "exits", equal.folders, (EXITS,), "exists"),
    Work("heads for exits", lambda place: LIGHT, "exits", equal.folders, _DECODER, "exists"),
    Work("token store", partial(_stored, 1), "tokens", equal.folders, (), _IS_STORE),
    Work("token store by two", partial(_stored, 2), "tokens", equal.folders, (), _IS_STORE),
    Work("export", lambda place: _EXPORTED, "weights.safetensors", equal.folders, _DECODER, "exists"),
)


def names() -> list[str]:
    """Of all works."""
    return [*TRAININGS, *(work.name for work in OTHERS)]


def work(name: str) -> Work:
    """By its name."""
    return training(name) if name in TRAININGS else next(each for each in OTHERS if each.name == name)


def write_inputs(folder: Path) -> None:
    """The files that commands read."""
    folder.mkdir(parents=True)
    words = "".join(f"{at} is followed by {at + 1}\n" for at in range(90))
    (folder / "words.txt").write_text(words)
    (folder / "more.txt").write_text("".join(f"{at} comes before {at + 1}\n" for at in range(40)))
    (folder / "pairs.tsv").write_text("".join(f"number {at}\tnúmero {at}\n" for at in range(40)), encoding="utf-8")
    rows = "".join(f"{at} is {('even', 'odd')[at % 2]},{('even', 'odd')[at % 2]}\n" for at in range(40))
    (folder / "labels.csv").write_text(f"text,label\n{rows}")
    (folder / "texts").mkdir()
    for part in range(3):  # each fills a shard
        rows = (f"{at} and {part} make {at + part}, " * 1200 for at in range(40))
        (folder / "texts" / f"{part}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    draw = np.random.default_rng(0)
    labels = np.arange(32) % 2
    values = draw.integers(0, 90, (32, 8, 8), np.uint8)
    values[labels == 0, :4] += 120
    values[labels == 1, 4:] += 120
    kept = {"train_images": values, "train_labels": labels, "test_images": values[:9], "test_labels": labels[:9]}
    np.savez(folder / "pictures.npz", **kept)
