"""Declared inputs where no layer projects them have the slots, heads and widths that a call needs."""

import pytest
import torch

from regard import Heads, build
from regard_lab.benchmark.resting import resting_inputs
from tests.mutants.toys import ToyDecay


@pytest.mark.parametrize("queries", [1, 3, 7])
def test_inputs_of_keys_are_as_many_as_the_keys(queries):
    heads = Heads(count=4, key_dim=8, kv_count=2, causal=True)
    q, k = torch.randn(2, 4, queries, 8), torch.randn(2, 2, 7, 8)
    for spec in ("forgetting", "rfa(num_features=8, gate=True)"):
        mechanism = build(spec, heads)
        inputs = resting_inputs(mechanism, q, k)
        assert inputs["log_gate"].shape[2] == 7
        assert mechanism(q, k, k, inputs=inputs).values.shape == (2, 4, queries, 8)


def test_each_input_has_the_slots_that_it_declares():
    mechanism = ToyDecay(Heads(count=4, key_dim=8, value_dim=6, kv_count=2, causal=True))
    inputs = resting_inputs(mechanism, torch.zeros(3, 4, 5, 8), torch.zeros(3, 2, 7, 8))
    shapes = {name: tuple(x.shape) for name, x in inputs.items()}
    assert shapes == {"log_decay": (3, 2, 7, 1), "strength": (3, 2, 7, 8), "gate": (3, 4, 5, 1)}
