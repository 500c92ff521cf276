"""Additive attention costs more than the dot product.

Claim: Dot-product attention is much faster and more space-efficient in practice than additive attention, whose
complexity is similar in theory; additive attention compares queries and keys of different widths.
Source: Vaswani et al. 2017, section 3.2.1, of Bahdanau et al. 2015
Control: Written out, the additive score makes two tensors of queries x keys x hidden numbers, sums and their tanh, and
both are alive at one time: that is its peak. It can win: a network of width 1 needs fewer multiply-adds than the
product of keys as wide as these.
Measured: One head on random inputs, queries, keys and network of one width: numbers written by all operators and
operations of products, counted; processor time forward, and with the backward pass. And whether each compares queries
and keys of different widths.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._turns import processor_seconds
from regard import Attention, Heads, build
from regard.core.attention import generator
from regard.core.errors import UnsupportedError
from regard_lab.benchmark.cost import Cost, counted


class AdditiveCost(Claim):
    controls = (
        Control("written out", "written out: peak / (2 length^2 width)", 1.0, tolerance=0.05),
        Control("narrow", "1 if a network of width 1 makes fewer operations", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("numbers", "numbers written: additive / dot product", at_least=4.0),
        Finding("space", "published form: peak, additive / dot product", at_least=4.0),
        Finding("time", "forward time: additive / dot product", at_least=2.0),
        Finding("training time", "forward and backward time: additive / dot product", at_least=2.0),
        Finding("widths", "different widths: difference from the definition", at_most=1e-5),
        Finding("refused", "different widths: 1 if the dot product is refused", at_least=1.0),
        Finding("operations", "operations of products: additive / dot product", at_most=1.5, states=False),
        Finding("ours", "ours: peak, additive / its published form", at_most=0.5, states=False),
    )
    timed = True
    plots = (
        Plot("numbers", "Numbers written", "width", "numbers", log_x=True, log_y=True),
        Plot("time", "Forward time", "width", "seconds", log_x=True, log_y=True),
    )

    additive: str = "additive"
    narrow: str = "additive(hidden=1)"
    dot: str = "softmax"
    length: int = setting(512, tiny=96)
    widths: tuple[int, ...] = setting((16, 32, 64), tiny=(16, 32))
    """the last one is that of the findings"""
    rounds: int = setting(15, tiny=3)

    def observe(self, seed: int) -> Observation:
        specs = {"additive": self.additive, "dot": self.dot}
        numbers: dict[str, list[float]] = {name: [] for name in specs}
        seconds: dict[str, list[float]] = {name: [] for name in specs}
        values: dict[str, float] = {}
        for width in self.widths:
            q, k, v = torch.randn(3, 1, 1, self.length, width, generator=generator(seed, "inputs", width))
            made = {name: build(spec, Heads(count=1, key_dim=width, seed=seed)) for name, spec in specs.items()}
            costs = {name: forward(one, q, k, v) for name, one in made.items()}
            taken = processor_seconds(
                {name: lambda one=one, q=q, k=k, v=v: forward_only(one, q, k, v) for name, one in made.items()},
                rounds=self.rounds,
            )
            for name in specs:
                numbers[name].append(costs[name].elements)
                seconds[name].append(taken[name])
            if width == self.widths[-1]:
                both = processor_seconds(
                    {name: lambda one=one, q=q, k=k, v=v: backward(one, q, k, v) for name, one in made.items()},
                    rounds=self.rounds,
                )
                narrow = forward(build(self.narrow, Heads(count=1, key_dim=width, seed=seed)), q, k, v)
                published = {"additive": peak(lambda q=q, k=k: network(q, k)), "dot": peak(lambda q=q, k=k: q @ k.mT)}
                values |= {
                    "written out": published["additive"] / (2 * self.length**2 * width),
                    "narrow": float(narrow.operations < costs["dot"].operations),
                    "numbers": costs["additive"].elements / costs["dot"].elements,
                    "operations": costs["additive"].operations / costs["dot"].operations,
                    "space": published["additive"] / published["dot"],
                    "ours": costs["additive"].peak / published["additive"],
                    "time": taken["additive"] / taken["dot"],
                    "training time": both["additive"] / both["dot"],
                }
        values |= self.different(seed)
        curves: dict[str, dict[str, Curve]] = {
            "numbers": {spec: (self.widths, numbers[name]) for name, spec in specs.items()},
            "time": {spec: (self.widths, seconds[name]) for name, spec in specs.items()},
        }
        return Observation(values, curves)

    def different(self, seed: int) -> dict[str, float]:
        """Queries of another width than the keys: the error of the one, and whether the other is refused."""
        wide, narrow, values = 24, 8, 5
        draw = generator(seed, "widths")
        q, k, v = (torch.randn(1, 1, 12, width, generator=draw) for width in (wide, narrow, values))
        heads = Heads(count=1, key_dim=narrow, query_dim=wide, value_dim=values, seed=seed)
        try:
            build(self.dot, heads)
            refused = 0.0
        except UnsupportedError:
            refused = 1.0
        with torch.no_grad():
            made = build(self.additive, heads)
            off = (made(q, k, v).values - written_out(made, q, k, v)).abs().max()
        return {"widths": float(off), "refused": refused}


def network(q: Tensor, k: Tensor) -> Tensor:
    """The part of the published form that is largest: tanh of the sum of every query with every key."""
    return torch.tanh(q[:, :, :, None] + k[:, :, None])


def written_out(made: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Additive attention pair by pair, of one head: w_v . tanh(W_q q_i + W_k k_j), softmax over j."""
    from_query, from_key, combine = (made.get_parameter(name)[0] for name in ("query", "key", "combine"))
    logits = torch.stack(
        [torch.stack([combine @ torch.tanh(from_query @ a + from_key @ b) for b in k[0, 0]]) for a in q[0, 0]]
    )
    return logits.softmax(-1) @ v


def forward_only(made: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        return made(q, k, v).values


def backward(made: Attention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(made(*inputs).values.sum(), inputs)


def forward(made: Attention, q: Tensor, k: Tensor, v: Tensor) -> Cost:
    return counted(lambda: forward_only(made, q, k, v))


def peak(call: Callable[[], object]) -> float:
    with torch.no_grad():
        return float(counted(call).peak)
