"""What version 0.1 wrote is still read, and means the same. See fixtures/version_0_1/README.md."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import safetensors.torch
import torch

import regard
from regard.errors import CheckpointError
from regard.testing import assert_close
from regard.training import toml

FILES = Path(__file__).parent / "fixtures" / "version_0_1"
EXPECTED = safetensors.torch.load_file(FILES / "expected.safetensors")
TEXTS = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
SPECS = (FILES / "specs.txt").read_text(encoding="utf-8").splitlines()
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6}
"""relative to the largest logit; in float32 rounding alone is 5e-7 here"""
GATED_RUN = "decoder_gated_rfa"
GATED_SPECS = (FILES / "specs_gated.txt").read_text(encoding="utf-8").splitlines()


def mechanism_of(spec: str) -> str:
    return re.match(r"\w+", spec)[0]


def is_read(spec: str) -> None:
    """A specification builds what it says, in every direction that its facts promise, and attends."""
    serves = regard.describe(spec).supports
    assert serves.causal or serves.bidirectional
    for causal in (causal for causal, served in ((True, serves.causal), (False, serves.bidirectional)) if served):
        heads = regard.Heads(count=2, key_dim=8, causal=causal, max_length=32)
        mechanism = regard.build(spec, heads).eval()
        if "flex" not in spec:  # it has tests of its own
            q, k, v = torch.randn(3, 1, 2, 13, 8, generator=torch.Generator().manual_seed(0))
            q = k if mechanism.info.shares_query_key else q
            with torch.no_grad():
                assert mechanism(q, k, v).values.isfinite().all()


def is_loaded(run: str) -> None:
    """A run loads, computes the logits that it computed, and writes what it wrote."""
    loaded = regard.load(FILES / "trained" / run, device="cpu")
    assert loaded.step == 3
    given = [EXPECTED[f"{run}/{name}"] for name in ("source", "tokens") if f"{run}/{name}" in EXPECTED]
    wanted = EXPECTED[f"{run}/logits"]
    for text, found in said(loaded, TEXTS[run]).items():
        assert found == TEXTS[run][text]
    for dtype, tolerance in TOLERANCES.items():
        with torch.no_grad():
            logits = loaded.model.to(dtype)(*given).logits
        logits = logits if wanted.ndim == 2 else logits[:, -2:]
        assert_close(logits.double(), wanted, tolerance=tolerance, what=f"logits of {run} in {dtype}")


def said(loaded, wanted):
    """What a run makes of the texts that its expectations were made of."""
    calls = {
        "generate": lambda: loaded.generate("The state of", max_new_tokens=8, temperature=0),
        "translate": lambda: loaded.translate(["In the beginning"], beams=2, max_new_tokens=8),
        "classify": lambda: next(iter(loaded.classify("The state of the Union"))),
        "fill": lambda: loaded.fill("The st[MASK]te"),
    }
    return {name: calls[name]() for name in wanted}


@pytest.mark.parametrize("run", sorted(path.name for path in (FILES / "trained").iterdir() if path.name != GATED_RUN))
def test_a_run_loads(run):
    is_loaded(run)


@pytest.mark.parametrize("name", sorted({mechanism_of(spec) for spec in SPECS}))
def test_every_option_is_read(name):
    for spec in SPECS:
        if mechanism_of(spec) == name:
            is_read(spec)


@pytest.mark.parametrize("path", sorted((FILES / "configs").iterdir()), ids=lambda path: path.stem)
def test_a_configuration_is_read(path, tmp_path):
    toml.save(toml.load(path), tmp_path / "again.toml")
    again = tomllib.loads((tmp_path / "again.toml").read_text(encoding="utf-8"))
    for section, values in tomllib.loads(path.read_text(encoding="utf-8")).items():
        assert {name: again[section].get(name) for name in values} == values


# The gate of rfa, which version 0.1 computed from keys: its weights have no place any more.


def test_a_run_with_the_gate_of_rfa_is_refused_by_name():
    with pytest.raises(
        CheckpointError, match=r"gate_weight was written by version 0\.1: .* read its gate from the key"
    ):
        is_loaded(GATED_RUN)


@pytest.mark.parametrize("spec", GATED_SPECS)
def test_a_specification_with_the_gate_of_rfa_builds(spec):
    assert regard.describe(spec).inputs
    mechanism = regard.build(spec, regard.Heads(count=2, key_dim=8, causal=True))
    assert set(mechanism.raw_inputs) == set(mechanism.info.inputs)


def test_nothing_is_left_out():
    assert {path.name for path in (FILES / "trained").iterdir()} == set(TEXTS)
    assert {key.partition("/")[0] for key in EXPECTED} == set(TEXTS)
    assert {mechanism_of(spec) for spec in SPECS} >= {mechanism_of(spec) for spec in GATED_SPECS}
