"""Linear attention is cheaper than softmax as soon as a sequence is longer than its features.

Claim: Softmax costs O(length^2 dim), linear attention O(length features dim): their costs cross where the length is
about the number of features, dim for elu + 1 and the number of random features for Performer.
Source: Katharopoulos et al. 2020, section 3.2; Choromanski et al. 2021, section 2
Control: Counted operations grow as the length squared for softmax and in proportion to it for linear attention.
Forward, bidirectional: softmax makes 4 length^2 dim, linear 4 length dim features, and random features cost as much
again: the counted lines cross at dim for `linear`, at twice its features for `performer`.
Measured: Operations of matrix products, counted; processor time of one core in turns, float32, forward, and forward
with backward. Crossings are interpolated between lengths, logarithms of both.
"""

import math
from collections.abc import Callable

import torch

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._growth import exponent, operations
from evidence.claims._turns import processor_seconds
from regard import Heads, build
from regard.core.attention import generator


class SoftmaxLinearCrossover(Claim):
    controls = (
        Control("softmax growth", "softmax: operations ~ length to the power of", 2.0, tolerance=0.05),
        Control("linear growth", "linear: operations ~ length to the power of", 1.0, tolerance=0.05),
        Control("counted linear", "linear: counted crossing / dim", 1.0, tolerance=0.1),
        Control("counted performer", "performer: counted crossing / features", 2.0, tolerance=0.1),
    )
    findings = (
        Finding("forward linear", "linear: crossing of forward time / dim", at_least=0.5, at_most=2.0),
        Finding("both linear", "linear: crossing of forward + backward / dim", at_least=0.5, at_most=2.0),
        Finding("forward performer", "performer: crossing of forward time / features", at_least=0.5, at_most=2.0),
        Finding("both performer", "performer: crossing of forward + backward / features", at_least=0.5, at_most=2.0),
        Finding("causal linear", "linear, causal: crossing of forward + backward / dim", at_least=0.5, at_most=2.0),
    )
    timed = True
    plots = (
        Plot("counted", "Forward", "length", "operations", log_x=True, log_y=True),
        Plot("forward", "Forward", "length", "milliseconds", log_x=True, log_y=True),
        Plot("both", "Forward and backward", "length", "milliseconds", log_x=True, log_y=True),
        Plot("causal", "Forward and backward, causal", "length", "milliseconds", log_x=True, log_y=True),
    )

    softmax: str = "softmax"
    linear: str = "linear"
    performer: str = "performer(num_features={features})"
    features: int = 256
    lengths: tuple[int, ...] = setting((16, 64, 256, 512, 1024, 2048), tiny=(16, 256, 1024))
    heads: int = setting(4, tiny=1)
    dim: int = 64
    rounds: int = setting(9, tiny=2)

    def observe(self, seed: int) -> Observation:
        curves: dict[str, dict[str, Curve]] = {}
        for name, causal in (("counted", False), ("forward", False), ("both", False), ("causal", True)):
            series: dict[str, list[float]] = {"softmax": [], "linear": [], "performer": []}
            for length in self.lengths:
                calls = self.calls(length, causal=causal, backward=name in ("both", "causal"), seed=seed)
                if name == "counted":
                    taken = {label: float(operations(call)) for label, call in calls.items()}
                else:
                    taken = {x: 1e3 * y for x, y in processor_seconds(calls, rounds=self.rounds).items()}
                for label, cost in taken.items():
                    series[label].append(cost)
            curves[name] = {label: (self.lengths, costs) for label, costs in series.items()}
        counted = curves["counted"]
        values = {f"{label} growth": exponent(self.lengths, list(counted[label][1])) for label in ("softmax", "linear")}
        for name, lines in curves.items():
            for label, features in (("linear", self.dim), ("performer", self.features)):
                values[f"{name} {label}"] = crossing(lines["softmax"], lines[label]) / features
        return Observation(values, curves)

    def calls(self, length: int, *, causal: bool, backward: bool, seed: int) -> dict[str, Callable[[], object]]:
        """Of all three on the same input."""
        shape = (3, 1, self.heads, length, self.dim)
        inputs = torch.randn(shape, generator=generator(seed, "crossover", length)).unbind()
        specs = {"softmax": self.softmax, "linear": self.linear}
        specs["performer"] = self.performer.format(features=self.features)
        heads = Heads(count=self.heads, key_dim=self.dim, causal=causal, seed=seed)
        mechanisms = {label: build(spec, heads).eval() for label, spec in specs.items()}

        def call(label: str) -> Callable[[], object]:
            if not backward:
                return torch.no_grad()(lambda: mechanisms[label](*inputs))
            leaves = [x.clone().requires_grad_() for x in inputs]
            return lambda: mechanisms[label](*leaves).values.sum().backward()

        return {label: call(label) for label in mechanisms}


def crossing(one: Curve, other: Curve) -> float:
    """The length after which `one` costs more, to stay; 0 if it always does, infinite if it never does.

    Example:
        >>> crossing(([1.0, 100.0], [1.0, 100.0]), ([1.0, 100.0], [10.0, 10.0]))
        10.0
    """
    at = [math.log(float(x)) for x in one[0]]
    ahead = [math.log(a / b) for a, b in zip(one[1], other[1], strict=True)]
    if ahead[-1] <= 0:
        return math.inf
    last = next((i for i in reversed(range(len(at))) if ahead[i] <= 0), None)
    if last is None:
        return 0.0
    share = -ahead[last] / (ahead[last + 1] - ahead[last])
    return round(math.exp(at[last] + share * (at[last + 1] - at[last])), 9)
