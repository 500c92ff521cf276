"""States in fewer bits: what a sum and what a slot loses, by a loop of its own."""

import pytest
import torch

from regard.benchmark.rounding import RoundingConfig, measure
from regard.benchmark.vectors import random_vectors
from regard.errors import ConfigError


def test_a_sum_of_the_last_token_is_rounded_and_no_slot_twice():
    """linear: sums of elu + 1, rounded after every token, in plain loops."""
    x = random_vectors(2.0, length=40, causal=True, heads=2, key_dim=8)
    config = RoundingConfig(specs=("linear", "softmax"), roundings=("bfloat16",), lengths=(40,), key_dim=8)
    found = {row["spec"]: row for row in measure(config)["rows"]}
    q, k = (torch.nn.functional.elu(each[0]) + 1 for each in (x.q, x.k))
    outputs = []
    for narrow in (True, False):
        sums, norms, rows = torch.zeros(2, 8, 8).double(), torch.zeros(2, 8).double(), []
        for at in range(40):
            sums = sums + k[:, at, :, None] * x.v[0, :, at, None]
            norms = norms + k[:, at]
            rows.append((q[:, at, None] @ sums)[:, 0] / (q[:, at] * norms).sum(-1, keepdim=True))
            if narrow:
                sums, norms = sums.bfloat16().double(), norms.bfloat16().double()
        outputs.append(torch.stack(rows[8:]))
    error = float((outputs[0] - outputs[1]).norm() / outputs[1].norm())
    assert found["linear"]["errors"][0] == pytest.approx(error, rel=0.05)
    assert (found["linear"]["piece"], found["softmax"]["piece"]) == (1, 16)


def test_sums_grow_worse_and_slots_do_not():
    config = RoundingConfig(specs=("linear", "softmax"), roundings=("bfloat16",), lengths=(64, 512), key_dim=16)
    linear, softmax = (row["errors"] for row in measure(config)["rows"])
    assert linear[1] > 5 * linear[0]
    assert softmax[1] < 2 * softmax[0]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="rounded to bfloat16, float16, int8, not int3"):
        RoundingConfig(roundings=("int3",))
    with pytest.raises(ConfigError, match="lengths must be at least 1, got 0"):
        RoundingConfig(lengths=(0,))
    with pytest.raises(ConfigError, match="no causal form with a state"):
        measure(RoundingConfig(specs=("linformer",), lengths=(8,)))
