"""Attention against recurrence.

Claim: Self-attention joins any two positions in a constant number of steps, where a recurrent layer needs as many as
their distance: it learns long dependencies more easily, and its steps can run in parallel.
Source: Vaswani et al. 2017, section 4 and table 1
Control: At the shortest distance both must remember everything. The longest chain in a running sum of n numbers is n; a
chain of LSTM cells must give what torch's LSTM gives.
Measured: Share of right answers to a question at the end for the value at the start, over the noise between, of one
causal layer with softmax and of an LSTM with at least as many weights, after as many steps, the LSTM's at the best of
three learning rates. Operations that have to wait for each other from the first input to the last output, counted in
the autograd graph without a clock, at the longest over the shortest length.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._training import decoder, trained
from regard.core.attention import generator
from regard.layer import AttentionLayer
from regard_lab.benchmark.baselines import language_model


class AttentionAgainstRecurrence(Claim):
    controls = (
        Control("near attention", "attention: right at the shortest distance", 1.0, tolerance=0.05),
        Control("near lstm", "LSTM: right at the shortest distance", 1.0, tolerance=0.05),
        Control("sum", "longest chain in a sum of 64 numbers", 64.0, tolerance=0.0),
        Control("cells", "LSTM cells - torch's LSTM, largest difference", 0.0, tolerance=1e-5),
    )
    findings = (
        Finding("gain", "right at the longest distance, attention - LSTM", at_least=0.2, resolution=1 / 1000),
        Finding("far attention", "attention: right at the longest distance", at_least=0.9),
        Finding("chain attention", "attention: chain, 64 positions / 8", at_most=1.0),
        Finding("chain lstm", "LSTM: chain, 64 positions / 8", at_least=4.0),
    )
    plots = (
        Plot("memory", "Memory", "distance", "share that is right", log_x=True),
        Plot("chain", "Operations that wait for each other", "positions", "operations", log_x=True, log_y=True),
    )

    attention: str = "softmax"
    distances: tuple[int, ...] = setting((8, 32, 128), tiny=(4, 16))
    values: int = setting(16, tiny=8)
    noise: int = 4
    """different symbols between"""
    dim: int = setting(64, tiny=32)
    recurrent_dim: int = setting(80, tiny=40)
    """of the LSTM: as many weights as the attention model, or a few more"""
    recurrent_rate: float = 1e-2
    """learning rate of the LSTM: of 0.003, 0.01 and 0.02 the one at which it remembered furthest"""
    steps: int = setting(400, tiny=40)
    batch: int = 32
    questions: int = setting(1000, tiny=300)

    def observe(self, seed: int) -> Observation:
        values: dict[str, float] = {}
        memory: dict[str, Curve] = {}
        for name in ("attention", "lstm"):
            shares = [self.remembered(name, distance, seed) for distance in self.distances]
            values |= {f"near {name}": shares[0], f"far {name}": shares[-1]}
            memory[name] = (self.distances, shares)
        values["gain"] = values["far attention"] - values["far lstm"]
        lengths = (8, 16, 32, 64)
        layer = AttentionLayer(8, self.attention, heads=2, seed=seed, causal=True)
        chains = {"attention": [], "lstm": []}
        for length in lengths:
            x = torch.randn(1, length, 8, generator=generator(seed, "chain"), requires_grad=True)
            chains["attention"].append(chain(layer(x).hidden[:, -1]))
            cells, fused = both_lstms(x, seed)
            chains["lstm"].append(chain(cells[:, -1]))
            values["cells"] = float((cells - fused).detach().abs().max())
        for name, steps in chains.items():
            values[f"chain {name}"] = steps[-1] / steps[0]
        values["sum"] = running_sum(64)
        curves = {"memory": memory, "chain": {name: (lengths, steps) for name, steps in chains.items()}}
        return Observation(values, curves)

    def remembered(self, name: str, distance: int, seed: int) -> float:
        """The share of right answers of a model trained at a distance."""
        size = self.values + self.noise + 1
        if name == "lstm":
            model: nn.Module = language_model("lstm", vocab_size=size, dim=self.recurrent_dim, layers=1, seed=seed)
        else:
            model = decoder(self, size, seed, layers=1, heads=4, attention=self.attention)
        draw = generator(seed, "samples", distance)

        def asked(count: int, draw: torch.Generator) -> Tensor:
            tokens = torch.randint(0, self.noise, (count, distance + 1), generator=draw)
            tokens[:, 0] = self.noise + torch.randint(0, self.values, (count,), generator=draw)
            tokens[:, -1] = size - 1
            return tokens

        def loss() -> Tensor:
            tokens = asked(self.batch, draw)
            return cross_entropy(model(tokens).logits[:, -1], tokens[:, 0])

        rate = self.recurrent_rate if name == "lstm" else 3e-3
        trained(model, loss, steps=self.steps, learning_rate=rate)
        new = asked(self.questions, generator(seed, "new", distance))
        with torch.no_grad():
            return float((model(new).logits[:, -1].argmax(-1) == new[:, 0]).double().mean())


def chain(output: Tensor) -> int:
    """Operations on the longest path from an input that needs a gradient to the output."""
    longest: dict[Any, int] = {}
    stack = [output.grad_fn]
    while stack:
        node = stack[-1]
        inner = [before for before, _ in node.next_functions if before is not None] if node is not None else []
        waiting = [before for before in inner if before not in longest]
        if waiting:
            stack += waiting
            continue
        longest[node] = max((longest[before] + 1 for before in inner), default=0)
        stack.pop()
    return longest[output.grad_fn]


def running_sum(count: int) -> int:
    """The chain of a sum, one number at a time."""
    total = start = torch.zeros((), requires_grad=True)
    for _ in range(count):
        total = total + start
    return chain(total)


def both_lstms(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """One LSTM as a chain of cells, whose operations can be counted, and as torch's fused layer."""
    width = x.shape[-1]
    draw = generator(seed, "cells")
    fused, cell = nn.LSTM(width, width, batch_first=True), nn.LSTMCell(width, width)
    with torch.no_grad():
        for fused_weight, cell_weight in zip(fused.parameters(), cell.parameters(), strict=True):
            fused_weight.copy_(0.3 * torch.randn(fused_weight.shape, generator=draw))
            cell_weight.copy_(fused_weight)
    state = (x.new_zeros(len(x), width), x.new_zeros(len(x), width))
    outputs = []
    for at in range(x.shape[1]):
        state = cell(x[:, at], state)
        outputs.append(state[0])
    return torch.stack(outputs, 1), fused(x)[0]
