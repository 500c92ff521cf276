"""States in fewer bits: what a sum and what a slot loses, by a loop of its own."""

import pytest
import torch

from regard.core.errors import ConfigError
from regard_lab.benchmark.rounding import RoundingConfig, measure, rounded
from regard_lab.benchmark.vectors import random_vectors


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


def test_numbers_come_back_by_hand():
    """Steps of int8 are 1/127 of the largest number of a vector; float16 has 10 bits and an end, bfloat16 7."""
    x = torch.tensor([[1.27, 0.123, -0.0449], [-25.4, 0.29, 0.11], [0.0, 0.0, 0.0]], dtype=torch.float64)
    wanted = torch.tensor([[1.27, 0.12, -0.04], [-25.4, 0.2, 0.2], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert rounded(x, "int8").tolist() == [pytest.approx(row, abs=1e-12) for row in wanted.tolist()]
    x = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 2**-7, 70000.0], dtype=torch.float64)
    assert rounded(x, "float16").tolist() == [1 + 2**-10, 1.0, 1 + 2**-7, float("inf")]
    assert rounded(x, "bfloat16").tolist() == [1.0, 1.0, 1 + 2**-7, 70144.0]
    assert rounded(x, "float16").dtype == torch.float64
    assert rounded(x, "") is x
    assert rounded(torch.tensor([300]), "int8").tolist() == [300], "counts are no numbers to round"
    assert rounded(torch.zeros(2, 0), "int8").shape == (2, 0)


def test_a_sum_beside_slots_is_rounded_after_every_token():
    """One entry of constant size is enough."""
    specs = ("length_switch(exact_keys=4)", "vector_quantized", "softmax")
    found = measure(RoundingConfig(specs=specs, roundings=("float16",), lengths=(24,), key_dim=8))["rows"]
    assert [row["piece"] for row in found] == [1, 1, 16]
    chosen = measure(RoundingConfig(specs=specs, roundings=("float16",), lengths=(24,), key_dim=8, piece=3))["rows"]
    assert [row["piece"] for row in chosen] == [3, 3, 3]


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
