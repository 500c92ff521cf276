"""Bad input gives the named error and its exit code, never a traceback, and nothing is lost."""

import json
import resource
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from regard.files.checksums import Entry
from regard.text.tokenizer import BpeTokenizer
from regard_lab.training import begun

SPECS = [
    ("nope", "unknown mechanism 'nope'"),
    ("linear(feature_mp=relu)", "mechanism linear has no option 'feature_mp': did you mean 'feature_map'?"),
    ("linear(", "cannot read 'linear('"),
    ("__import__('os').system('true')", "cannot read"),
    ("linformer", "linformer does not support causal=True"),
    ("softmax:1 + linear", "must name its heads"),
    ("softmax:1 + linear:2", "serve 1 + 2 = 3 heads, the layer has 2"),
]


OF_VERBS = [("train", *row) for row in SPECS]
OF_VERBS += [(verb, *SPECS[at]) for verb in ("compare", "bench") for at in (1, 2, 4)]


@pytest.mark.parametrize(("verb", "spec", "message"), OF_VERBS)
def test_mechanisms_that_cannot_be(regard, tmp_path, tiny, text, verb, spec, message):
    words = {
        "train": [*tiny, "--task.corpus", text, "--model.attention", spec, "--out", "out"],
        "compare": ["softmax", spec, "--task=lm", "--text.corpus", text, "--shape.heads", 2, "--recall-shape.heads", 2],
        "bench": ["softmax", spec, "--heads", 2, "--lengths", "64"],
    }[verb]
    answer = regard(verb, *words)
    assert (answer.code, answer.out) == (2, "")
    assert f"regard {verb}: " in answer.err
    assert message in answer.err
    assert list(tmp_path.iterdir()) == []


OPTIONS = [
    (["train", "--model.heads", "3"], "heads must divide dim, got dim=16, heads=3; divisors of 16: 1, 2, 4, 8, 16"),
    (["train", "--model.kv-heads", "3"], "kv_heads must divide heads, got heads=2, kv_heads=3"),
    (["train", "--model.dim", "x"], "--model.dim"),
    (["train", "--model.attention", "softmax", "softmax"], "one for each of the 1 layers"),
    (["train", "--model.position", "rotry"], "unknown position 'rotry': did you mean 'rotary'?"),
    (["train", "--model.attention", "uniform", "--model.position", "alibi"], "regard list --supports bias"),
    (["train", "--steps", "0"], "steps must be at least 1, got 0"),
    (["train", "--stps", "3"], "--steps"),
    (["train", "--preset", "lama"], "unknown preset 'lama': did you mean 'llama'?"),
    (["train", "--task", "recal"], "unknown task 'recal': did you mean 'recall'?"),
    (["train", "--task", "recall", "--task.num-pairs", "100"], "num_pairs=100 is not possible"),
    (["train", "--task.field", "body"], "field='body' is for .jsonl, .csv, .parquet files"),
    (["train", "stray"], "stray"),
    (["train", "--only"], "--only names what learns, and without a name everything would"),
    (["compare", "--shape.heads", "3"], "heads must divide dim, got dim=128, heads=3"),
    (["compare", "--recall-shape.heads", "3"], "heads must divide dim, got dim=64, heads=3"),
    (["compare", "softmax", "softmax"], "specs must differ from one another"),
    (["compare", "softmax / linear / uniform"], "names 3 layers, the model has 2"),
    (["compare", "--budget", "soon"], "cannot read the duration 'soon': write 90s, 5m or 2h"),
    (["compare", "--ngram", "9"], "ngram must be from 1 to 7, got 9"),
    (["compare", "--seeds", "0"], "seeds must be at least 1, got 0"),
    (["compare", "--learning-rate", "nan"], "learning_rate must be positive"),
    (["compare", "--evaluate-examples", "-1"], "evaluate_examples must be at least 0"),
    (["compare", "--lengths", "8"], "lengths must be at least 32, got [8]"),
    (["compare", "--shape.layers", "3"], "shape.layers and recall_shape.layers must agree"),
    (["compare", "--recall.length", "16"], "num_pairs=8 is not possible; it must be from 1 to 4"),
    (["bench"], "name what to time"),
    (["bench", "softmax", "--lengths", "many"], "cannot read the lengths 'many'"),
    (["bench", "softmax", "--lengths", "0"], "no lengths in '0'"),
    (["bench", "softmax", "--lengths", "64", "--heads", "0"], "heads must be at least 1, got 0"),
    (["bench", "softmax", "--lengths", "64", "--rounds", "0"], "rounds must be at least 1, got 0"),
    (["bench", "softmax", "--lengths", "64", "--threads", "0"], "threads must be at least 1, got 0"),
    (["bench", "softmax", "--lengths", "64", "--passes"], "passes must not be empty"),
    (["bench", "softmax", "--lengths", "64", "--passes", "backward"], "backward"),
    (["bench", "softmax", "--lengths", "64", "--seconds", "nan"], "seconds must be at least 0"),
]


@pytest.mark.parametrize(("words", "message"), OPTIONS)
def test_options_that_make_no_sense(regard, tmp_path, tiny, words, message):
    verb, *rest = words
    answer = regard(verb, *(tiny if verb == "train" and "recall" not in rest else []), *rest)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.replace("│", " ").split())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


CORPORA = {
    "empty.txt": (b"", "empty.txt is empty: give a file with text in it"),
    "binary.txt": (b"text\0more", "binary.txt: binary, with a zero byte at byte 5"),
    "latin.txt": ("Señor\n".encode("latin-1") * 99, "latin.txt: no UTF-8: byte 0xf1 at byte 3 of line 1"),
    "short.txt": (b"short", "is too small for windows of 32 tokens"),
    "broken.jsonl": (b'{"text": "a"}\n{', "broken.jsonl, line 2: no JSON"),
    "other.jsonl": (b'{"body": "a"}\n', "no field 'text'; fields: 'body'; choose one with --task.field"),
    "empty.jsonl": (b"", "empty.jsonl is empty"),
    "book.pdf": (b"%PDF", "regard reads .txt, .md, .py, .jsonl, .csv, .parquet and folders of such files, not .pdf"),
    "absent.txt": (None, "there is no corpus 'absent.txt': no such file"),
    "song_cii": (None, "did you mean 'song_ci'?"),
}


OF_VERBS = [("train", name) for name in CORPORA]
OF_VERBS += [(verb, name) for verb in ("compare", "evaluate") for name in ("other.jsonl", "absent.txt")]


@pytest.mark.parametrize(("verb", "name"), OF_VERBS)
def test_data_that_cannot_be_read(regard, tmp_path, tiny, trained, verb, name):
    content, message = CORPORA[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    cache = tmp_path / "cache"
    words = {
        "train": [*tiny, "--task.corpus", name, "--task.cache", cache, "--out", "out"],
        "compare": ["softmax", "--text.corpus", name, "--text.length", 32, "--text.cache", cache, "--out", "out"],
        "evaluate": [trained, "--corpus", name],
    }[verb]
    answer = regard(verb, *words)
    assert (answer.code, answer.out) == (3, "")
    prefix = {"train": "--task.", "compare": "--text.", "evaluate": "--"}[verb]
    assert message.replace("--task.", prefix) in answer.err
    assert not (tmp_path / "out").exists()


def test_token_ids_out_of_range(regard, run):
    """A run of 256 tokens that was given a tokenizer with more."""
    BpeTokenizer.train(["is followed by " * 50], 266).save(run / "tokenizer.json")
    answer = regard("generate", "run", "is followed by")
    assert (answer.code, answer.out) == (4, "")
    assert "run: tokenizer.json is damaged" in answer.err
    begun.record(run, begun.id_of(run))
    answer = regard("generate", "run", "is followed by")
    assert (answer.code, answer.out) == (3, "")
    assert "is out of range, ids are 0 to 255" in answer.err
    answer = regard("evaluate", "run")
    assert answer.code in (2, 4)
    assert "256" in answer.err


PLACES = ["file", "file/below", "/proc/below", "/dev/null/below", "a" * 300]


@pytest.mark.parametrize(
    ("verb", "place"), [*(("train", place) for place in PLACES), ("compare", PLACES[1]), ("checkpoint", PLACES[1])]
)
def test_folders_that_cannot_be_written(regard, tmp_path, tiny, text, run, verb, place):
    """Permissions do not stop root, who runs many a container; these places do."""
    (tmp_path / "file").write_text("mine")
    cache = text.parent / "cache"
    words = {
        "train": [*tiny, "--steps", 1, "--task.corpus", text, "--task.cache", cache, "--out", place],
        "compare": ["softmax", "--text.corpus", text, "--text.cache", cache, "--out", place],
        "checkpoint": ["export", "run", "--out", place],
    }[verb]
    answer = regard(verb, *words)
    assert answer.out == ""
    assert answer.code in ((2, 6) if place == "file" else (6,))
    assert place in answer.err
    assert (tmp_path / "file").read_text() == "mine"


WRITERS = (
    "accuracy performer",
    "cache nowhere",
    "calibrate nowhere",
    "capacity softmax",
    "compare softmax --text.corpus nowhere",
    "explore nowhere text",
    "generate nowhere text",
    "knn build nowhere --model nothing",
    "knn merge nowhere nothing",
    "report nowhere",
    "retrieval softmax",
    "rounding softmax",
    "tokens build nowhere",
    "train --from nowhere",
)


@pytest.mark.parametrize("words", WRITERS)
def test_what_cannot_be_written_is_said_before_anything_is_read(regard, tmp_path, words):
    (tmp_path / "file").write_text("mine")
    answer = regard(*words.split(), "--out", "file/below")
    assert (answer.code, answer.out) == (6, "")
    assert "cannot write file/below" in answer.err
    assert "nowhere" not in answer.err


@pytest.mark.parametrize("way", [b"[model]\nlayers 2\n", b"\xff", b"\0" * 50], ids=["no equals", "no UTF-8", "zeros"])
def test_a_configuration_that_became_none_is_named(regard, run, way):
    (run / "config.toml").write_bytes(way)
    answer = regard("checkpoint", "verify", run)
    assert (answer.code, "Traceback" in answer.err) == (4, False)
    assert "config.toml is another one than when the run began, and no TOML" in answer.err


@pytest.mark.parametrize("states", [{"cpu.other": torch.zeros(8)}, {"cpu": torch.zeros(8)}], ids=["kind", "bytes"])
def test_random_states_that_are_none_are_named(regard, run, states):
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    written = checkpoint / "rng.safetensors"
    safetensors.torch.save_file(states, written)
    entry = Entry.at(written)
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    manifest["files"][written.name] = {"sha256": entry.sha256, "bytes": entry.size}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    answer = regard("train", "--resume", run, "--steps", "14")
    assert (answer.code, "Traceback" in answer.err) == (4, False)
    assert str(written) in answer.err


def test_a_limit_of_the_system_on_the_size_of_files(tmp_path, tiny, text, environment):
    """The real thing, in a process of its own: the optimizer's file is larger than the system allows."""
    words = ["--task.corpus", str(text), "--task.cache", str(text.parent / "cache"), "--steps", "1", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "regard.cli.main", "train", *tiny, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert done.returncode == 6
    assert "regard train: cannot write run/checkpoints/step-00000001: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "run/checkpoints").iterdir()) == []
