"""Exits from the command line: trained as flags, a file or a preset say, evaluated, loaded, and generating."""

import json

import pytest
import torch

import regard as package
from regard.models.generate import generate

SHORT = ["--model.dim", "16", "--model.heads", "2", "--model.layers", "3", "--batch-size", "4", "--warmup", "1"]
SHORT += ["--steps", "2", "--log-every", "1", "--threads", "1"]


def lines(run) -> list[dict]:
    return [line for text in (run / "metrics.jsonl").read_text().splitlines() if (line := json.loads(text))]


@pytest.mark.parametrize(
    ("words", "losses"),
    [
        (["--preset", "depth_adaptive"], {"depth.exits": 2.0, "depth.choice": 0.3}),
        (["--preset", "calm(confidence=classifier)"], {"depth.exits": 1.0, "depth.choice": 0.2}),
        (["--model.depth", "early_exit(exits=mixed, heads=layer, threshold=0.01)"], {}),
    ],
    ids=str,
)
def test_text(regard, text, tmp_path, words, losses):
    words = [*words, *SHORT, "--task.length", "32", "--task.corpus", text, "--task.cache", text.parent / "cache"]
    if "calm" in str(words):
        words += ["--model.head-dim", "8"]
    assert regard("train", *words, "--out", "run").code == 0
    trained = [line for line in lines(tmp_path / "run") if line["kind"] == "train"]
    for line in trained:
        assert line["losses"].keys() == losses.keys()
        added = sum(weight * line["losses"][name] for name, weight in losses.items())
        assert line["objective"] == pytest.approx(line["loss"] + added, rel=1e-5)
    assert 0 < json.loads(regard("evaluate", "run", "--limit", "3", "--json").out)["bits_per_byte"] < 10
    loaded = package.load(tmp_path / "run")
    assert {name: pytest.approx(weight) for name, weight in loaded.model.loss_weights.items()} == losses
    streamed, whole = (
        generate(loaded.model, ["12 is"], tokenizer=loaded.tokenizer, max_new_tokens=8, temperature=0, use_state=way)
        for way in (True, False)
    )
    assert streamed[0].text == whole[0].text


def test_a_file_and_a_task_whose_targets_are_not_the_next_tokens(regard, tmp_path):
    depth = "early_exit(exits=aligned, confidence=multinomial, oracle=correctness)"
    (tmp_path / "config.toml").write_text(f'[model]\ndepth = "{depth}"\n[task]\nname = "recall"\n')
    assert regard("train", "--config", "config.toml", *SHORT, "--out", "run").code == 0
    assert 'depth = "early_exit' in (tmp_path / "run" / "config.toml").read_text()
    (line, *_) = [line for line in lines(tmp_path / "run") if line["kind"] == "train"]
    assert line["losses"]["depth.choice"] == pytest.approx(torch.tensor(3.0).log().item(), rel=1e-5), "q is uniform"
    assert abs(line["losses"]["depth.exits"] - line["loss"]) < 0.5, "of the same targets"
    assert regard("evaluate", "run", "--limit", "3").code == 0


def test_a_mixed_training_goes_on_with_the_depths_it_would_have_drawn(regard, text, tmp_path):
    words = [*SHORT, "--model.depth", "early_exit(exits=mixed)", "--task.length", "32", "--task.corpus", text]
    words += ["--task.cache", text.parent / "cache", "--checkpoint-every", "1", "--keep", "9"]
    assert regard("train", *words, "--out", "whole").code == 0
    assert regard("train", *words, "--out", "part").code == 0
    for late in (tmp_path / "part" / "checkpoints").glob("step-*2"):
        for file in late.iterdir():
            file.unlink()
        late.rmdir()
    assert regard("train", "--resume", "part").code == 0
    whole, part = (package.load(tmp_path / run).model.state_dict() for run in ("whole", "part"))
    assert all(torch.equal(part[name], x) for name, x in whole.items())


@pytest.mark.parametrize("depth", ["early_exit(threshold=0.0, whole=3, exits=aligned)", "light_exit(threshold=0.5)"])
def test_training_in_bfloat16_ends_with_an_evaluation(regard, text, tmp_path, depth):
    words = [*SHORT, "--model.depth", depth, "--task.length", "32", "--task.corpus", text, "--dtype", "bfloat16"]
    answer = regard("train", *words, "--task.cache", text.parent / "cache", "--out", "run", "--json")
    assert answer.code == 0, answer.err
    trained = json.loads(answer.out)["evaluation"]["nats_per_token"]
    assert json.loads(regard("evaluate", "run", "--json").out)["nats_per_token"] == pytest.approx(trained, rel=0.05)


def test_halting_tokens_are_shown_by_blocks(regard, text, tmp_path):
    """Two blocks for each of up to five steps; without halting there is nothing to show."""
    words = [*SHORT, "--model.layers", "2", "--task.length", "32", "--task.corpus", text]
    words += ["--task.cache", text.parent / "cache", "--model.depth"]
    assert regard("train", *words, "universal(steps=5)", "--out", "halting").code == 0
    machine = json.loads(regard("generate", "halting", "12 is", "--json", "--max-new-tokens", "4").out)
    found = machine["layers"]
    assert len(found) == 4
    assert all(count % 2 == 0 and 2 <= count <= 10 for count in found)
    assert (machine["mean_layers"], machine["of_layers"]) == (sum(found) / 4, 10)
    assert regard("train", *words, "universal(steps=2, halting=False)", "--out", "tied").code == 0
    assert "layers" not in json.loads(regard("generate", "tied", "12 is", "--json", "--max-new-tokens", "4").out)
