"""The code of the page on concepts runs, and the figures of linear time are those of the mechanisms."""

import math
import re
from pathlib import Path

import pytest
import torch

import regard

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "concepts.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs(block: str) -> None:
    exec(compile(block, "concepts.md", "exec"), {})


@pytest.mark.parametrize("spec", ["linear", "performer(num_features=256)", "linear(feature_map=taylor)"])
def test_sizes_of_states_are_as_written(spec: str) -> None:
    mechanism = regard.build(spec, regard.Heads(count=1, key_dim=64, causal=True))
    numbers = mechanism.state_nbytes(1, 1, torch.float32) // 4
    text = " ".join((DOCS / "comparing.md").read_text(encoding="utf-8").split())
    tokens = f"{math.ceil(numbers / 128):,}"
    assert re.search(rf"{numbers:,}(?: numbers)? with `{re.escape(spec)}`,[^;.]* {tokens} tokens", text)
