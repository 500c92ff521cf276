"""Presets of linear attention from the command line: trained, evaluated, loaded, and generating as they were saved."""

import json

import numpy as np
import pytest
import torch

import regard as package
from regard.models.generate import generate

SHORT = ["--model.dim", "16", "--model.heads", "2", "--batch-size", "4", "--warmup", "1", "--threads", "1"]
SHORT += ["--steps", "2", "--model.layers", "2"]

DECODERS = [
    "linear_transformer",
    "performer(num_features=16)",
    "rfa(num_features=16)",
    "hybrid_retrieval(layers=2)",
    "hybrid_retrieval(combine=window, window=6)",
]


@pytest.mark.parametrize("preset", DECODERS)
def test_a_decoder(regard, text, tmp_path, preset):
    words = ["--preset", preset, *SHORT, "--task.length", "32", "--task.corpus", text]
    words += ["--task.cache", text.parent / "cache"]
    assert regard("train", *words, "--out", "run").code == 0
    evaluated = json.loads(regard("evaluate", "run", "--limit", "3", "--json").out)
    assert 0 < evaluated["bits_per_byte"] < 10
    loaded = package.load(tmp_path / "run")
    name = preset.partition("(")[0]
    assert loaded.model.config.attention[0].partition("(")[0] in {name, "linear", "local_linear"}
    streamed, whole = (
        generate(loaded.model, ["12 is"], tokenizer=loaded.tokenizer, max_new_tokens=12, temperature=0, use_state=way)
        for way in (True, False)
    )
    assert streamed[0].text == whole[0].text
    assert len(streamed[0].tokens) == 12
    assert (
        regard("generate", "run", "12 is", "--max-new-tokens", "12", "--temperature", "0").out
        == streamed[0].text + "\n"
    )


@pytest.mark.parametrize("preset", ["efficient_attention", "efficient_attention(normaliser=scaling)", "lara"])
def test_an_encoder_of_images(regard, tmp_path, preset):
    pictures, labels = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8), np.arange(12) % 3
    named = {"train_images": pictures, "train_labels": labels, "test_images": pictures[:4], "test_labels": labels[:4]}
    np.savez(tmp_path / "pictures.npz", **named)
    words = ["--preset", preset, "--task.data", "pictures.npz", *SHORT, "--task.holdout", "0.3"]
    assert regard("train", *words, "--out", "run").code == 0
    found = json.loads(regard("evaluate", "run", "--limit", "3", "--json").out)
    assert found["task"] == "classification"
    model = package.load(tmp_path / "run").model
    assert model.encoder.config.attention[0].startswith(preset.partition("(")[0].removesuffix("_attention"))
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


@pytest.mark.parametrize(
    "name", ["linear_transformer", "efficient_attention", "performer", "rfa", "lara", "hybrid_retrieval"]
)
def test_info_of_a_preset_says_where_its_shape_is_from(regard, name):
    answer = regard("info", f"preset:{name}")
    assert answer.code == 0
    assert answer.out.startswith(f"preset {name}")
    assert "Source: " in answer.out
    assert "max_length" in answer.out
