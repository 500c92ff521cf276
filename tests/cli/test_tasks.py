"""train, evaluate and generate on translation, classification and masked tokens, and what they refuse."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

from regard.core.errors import ConfigError
from tests.cli.conftest import SHORT, images


def test_the_file_alone_says_everything(regard, tmp_path):
    images(tmp_path / "pictures.npz")
    (tmp_path / "a.toml").write_text("""
[task]
name = "classification"
data = "pictures.npz"
[model]
dim = 16
heads = 2
layers = 1
[training]
steps = 1
batch_size = 2
warmup = 0
""")
    assert regard("train", "--config", "a.toml", "--out", "run").code == 0
    found = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert found["task"]["data"] == str(tmp_path / "pictures.npz")
    assert (found["model"]["position"], found["model"]["cls_token"], found["model"]["input_dim"]) == (
        "learned",
        True,
        16,
    )
    flags = ["--task", "classification", "--task.data", "pictures.npz", *SHORT, "--model.no-cls-token", "--steps", "1"]
    assert regard("train", *flags, "--out", "flags").code == 0
    found = tomllib.loads((tmp_path / "flags/config.toml").read_text())
    assert (found["model"]["position"], found["model"]["cls_token"]) == ("learned", False)


def test_a_preset_of_another_kind(regard):
    answer = regard("train", "--preset", "gpt", "--task", "masked")
    assert (answer.code, answer.out) == (2, "")
    assert "preset gpt is a model for the tasks text, recall, copy, images, not for masked" in answer.err
    answer = regard("train", "--preset", "fusion")
    assert (answer.code, answer.out) == (2, "")
    assert "preset fusion is a model for Python" in answer.err


@pytest.mark.parametrize(
    ("preset", "task"),
    [
        ("vit", "classification"),
        ("bert", "masked"),
        ("longformer", "masked"),
        ("bigbird", "masked"),
        ("blockbert", "masked"),
        ("etc", "masked"),
        ("transformer", "translation"),
        ("gpt", "text"),
        ("image_transformer", "images"),
    ],
)
def test_a_preset_chooses_the_first_task_that_it_can_do(preset, task):
    from regard_lab.cli._run_options import parse, run_config

    config = run_config(parse(["--preset", preset, "--model.dim", "48", "--model.layers", "1"], "train"))
    heads = {"translation": 8, "images": 4}.get(task, 12)
    assert (config.task.name, config.model.dim, config.model.heads) == (task, 48, heads)


def test_a_preset_takes_its_own_options():
    from regard_lab.cli._run_options import parse, run_config

    words = ["--preset", "sparse_transformer(pattern=strided, combine=heads, stride=16)", "--model.layers", "2"]
    config = run_config(parse(words, "train")).model
    assert (config.attention, config.layers) == (("strided(stride=16, part='heads')",), 2)
    with pytest.raises(ConfigError, match="preset sparse_transformer has no field 'strid': did you mean 'stride'"):
        parse(["--preset", "sparse_transformer(strid=3)"], "train")


ROWS = {
    "translation": ("chrf", "bleu", "the source as it is", "most frequent words"),
    "masked": ("nats", "frequencies of tokens"),
    "poems": ("macro_f1", "always 水调歌头", "words without their order"),
    "images": ("macro_f1", "always 0"),
}


@pytest.mark.parametrize("name", ROWS)
def test_evaluate_shows_metrics_beside_baselines(regard, made, name):
    answer = regard("evaluate", made[name], "--limit", "5")
    assert answer.code == 0, answer.err
    assert all(word in answer.out for word in ROWS[name])
    found = json.loads(regard("evaluate", made[name], "--limit", "5", "--json").out)
    for row in found["metrics"].values():
        assert all(f"{value:.4f}" in answer.out for value in row.values())


def test_evaluate_searches_as_it_is_told(regard, made, tmp_path):
    words = ["evaluate", made["translation"], "--limit", "4", "--beam", "1", "--length-penalty", "0"]
    assert regard(*words).code == 0
    (tmp_path / "other.tsv").write_text("".join(f"part {at}\tparte {at}\n" for at in range(40)))
    assert regard(*words, "--corpus", "other.tsv").code == 0
    answer = regard("evaluate", made["masked"], "--beam", "2")
    assert (answer.code, answer.out) == (2, "")
    assert "evaluated without beam search" in answer.err
    assert "takes no --corpus" in regard("evaluate", made["poems"], "--corpus", "song_ci").err


def test_generate_translates_line_by_line(regard, made):
    import regard as package

    lines = ["number 3", "number 44", "x"]
    answer = regard("generate", made["translation"], "-", "--beam", "2", stdin="\n".join(lines).encode())
    assert answer.code == 0
    wanted = package.load(made["translation"]).translate(lines, beams=2)
    assert answer.out == "\n".join(wanted) + "\n"
    assert regard("generate", made["translation"], "number 3", "--beam", "2").out == wanted[0] + "\n"


def test_generate_classifies_and_fills(regard, made):
    lines = regard("generate", made["poems"], "明月几时有").out.splitlines()
    assert {line.split("\t")[1] for line in lines} == {"浣溪沙", "水调歌头"}
    assert sum(float(line.split("\t")[0]) for line in lines) == pytest.approx(1, abs=2e-4)
    filled = regard("generate", made["masked"], "12 is follow[MASK]d").out
    assert filled.startswith("12 is follow")
    assert filled.endswith("d\n")
    assert regard("generate", made["masked"], "-", stdin=b"12 is follow[MASK]d\n").out == filled


@pytest.mark.parametrize(
    ("name", "words", "code", "message"),
    [
        ("translation", [""], 3, "line 1 is empty"),
        ("translation", ["a\n\n \nb"], 3, "line 2 is empty"),
        ("translation", ["a" * 24], 6, "lines 1 to 1: sentence 1 takes 25 tokens"),
        ("translation", ["a", "--beam", "0"], 2, "beams must be at least 1, got 24 and 0"),
        ("translation", ["a", "--length-penalty", "-1"], 2, "alpha must be at least 0"),
        ("translation", ["a", "--temperature", "1"], 2, "translates: --temperature has no use for it"),
        ("poems", [" "], 3, "the text is empty"),
        ("poems", ["a", "--beam", "2"], 2, "classifies: --beam has no use for it"),
        ("images", ["a"], 2, "which are no text: use regard evaluate, or in Python regard.load("),
        ("masked", ["a"], 3, "the text has no [MASK]"),
        ("masked", ["[MASK]" + "a" * 32], 6, "the text takes 33 tokens"),
        ("masked", ["[MASK]", "--seed", "2"], 2, "fills in masks: --seed has no use for it"),
    ],
)
def test_generate_refuses(regard, made, name, words, code, message):
    answer = regard("generate", made[name], *words)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_are_commands():
    import tyro

    from regard_lab.cli import compare, evaluate, generate, tokens
    from regard_lab.cli._run_options import TASKS, parse, run_config

    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("regard ")]
    trained = set()
    for line in lines:
        verb, *words = shlex.split(line.partition(" < ")[0])[1:]
        if verb == "train":
            trained.add(run_config(parse(words, "train")).task.name)
        else:
            options = {"compare": compare, "evaluate": evaluate, "generate": generate, "tokens": tokens}[verb].Options
            tyro.cli(options, args=words)
    assert trained == set(TASKS)
    table = PAGE.read_text(encoding="utf-8").partition("| task |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(TASKS)


PAIRS = ["--task.corpus", "pairs.tsv", "--task.tokenizer", "bytes"]
REFUSED = [
    (["translation", "--task.corpus", "narrow.tsv"], 3, "narrow.tsv, line 2: expected source TAB target"),
    (["classification", "--task.data", "floats.npz"], 3, "must be bytes (count, height, width)"),
    (["classification", "--task.data", "absent.npz"], 3, "there is no data 'absent.npz': no such file"),
    (["classification", "--task.data", "song_ci", "--task.num-classes", "1"], 2, "num_classes=1 is not possible"),
    (["masked", "--task.rate", "0"], 2, "rate=0.0 is not possible"),
    (["translation", *PAIRS, "--model.cross-attention", "local"], 2, "local does not support"),
    (["translation", "--model.encoder-layers", "0"], 2, "encoder_layers must be at least 1, got 0"),
    (["masked", "--model.attention", "softmax", "linear", "local"], 2, "one for each of the 2 layers"),
    (["masked", "--model.tied"], 2, "--model.tied"),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_what_cannot_be_trained_is_refused(regard, tmp_path, words, code, message):
    """One of each kind: what is wrong in files is in tests/tasks."""
    (tmp_path / "narrow.tsv").write_text("a\tb\nc\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"number {at}\tnombre {at}\n" for at in range(60)))
    images(tmp_path / "floats.npz", train_images=np.zeros((12, 8, 8), np.float32))
    answer = regard("train", "--task", *words, "--out", "out")
    assert (answer.code, answer.out) == (code, "")
    assert message in " ".join(answer.err.replace("│", " ").split())
    assert not (tmp_path / "out").exists()
