"""The code of the pages on concepts and early exit runs, and sizes of states are those of the mechanisms."""

import math
import re
from pathlib import Path

import pytest
import torch

import regard
from regard import memory
from regard.models import blocks, depth

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "concepts.md").read_text(encoding="utf-8")
EARLY_EXIT = (DOCS / "early_exit.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE + EARLY_EXIT, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs(block: str) -> None:
    exec(compile(block, "concepts.md", "exec"), {})


def test_the_options_are_those_of_the_source():
    (shown,) = re.findall(r"```text\n(@final.*?)```", PAGE, re.DOTALL)
    source = (DOCS.parent / "src/regard/attention/dense/cosine.py").read_text(encoding="utf-8")
    options = shown.partition("...)\n")[2].strip("\n")
    assert options.count("\n") == 4
    assert options in source


@pytest.mark.parametrize("package", [memory, blocks, depth], ids=lambda package: package.__name__)
def test_every_memory_block_and_depth_is_named(package):
    section = PAGE.partition("## Memory, blocks, depth")[2].partition("## ")[0]
    assert package.names()
    for name in package.names():
        assert re.search(rf"`{name}(\(.*\))?`", section), name


@pytest.mark.parametrize("spec", ["linear", "performer(num_features=256)", "linear(feature_map=taylor)"])
def test_sizes_of_states_are_as_written(spec: str) -> None:
    mechanism = regard.build(spec, regard.Heads(count=1, key_dim=64, causal=True))
    numbers = mechanism.state_nbytes(1, 1, torch.float32) // 4
    text = " ".join((DOCS / "comparing.md").read_text(encoding="utf-8").split())
    tokens = f"{math.ceil(numbers / 128):,}"
    assert re.search(rf"{numbers:,}(?: numbers)? with `{re.escape(spec)}`,[^;.]* {tokens} tokens", text)
