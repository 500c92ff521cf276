"""From which length on linear attention is cheaper than softmax."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from evidence.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from evidence.claims._growth import exponent, operations
from evidence.claims._turns import processor_seconds
from regard import Heads, build
from regard.core.attention import generator


@dataclass(frozen=True)
class SoftmaxLinearCrossover(Claim):
    """Counted operations and time over length: where the lines of softmax and of linear attention cross."""

    about = About(
        title="Linear attention is cheaper than softmax as soon as a sequence is longer than its features",
        says="Softmax costs O(length^2 dim), linear attention O(length features dim): their costs cross where the "
        "length is about the number of features, dim for elu + 1 and the number of random features for Performer.",
        source="Katharopoulos et al. 2020, section 3.2; Choromanski et al. 2021, section 2",
        control="Counted operations grow as the length squared for softmax and in proportion to it for linear "
        "attention. Forward, bidirectional: softmax makes 4 length^2 dim, linear 4 length dim features, and random "
        "features cost as much again: the counted lines cross at dim for `linear`, at twice its features for "
        "`performer`.",
        measures="Operations of matrix products, counted; processor time of one core in turns, float32, forward, and "
        "forward with backward. Crossings are interpolated between lengths, logarithms of both.",
    )
    controls = (
        Control(
            value="softmax growth", title="softmax: operations ~ length to the power of", expected=2.0, tolerance=0.05
        ),
        Control(
            value="linear growth", title="linear: operations ~ length to the power of", expected=1.0, tolerance=0.05
        ),
        Control(value="counted linear", title="linear: counted crossing / dim", expected=1.0, tolerance=0.1),
        Control(value="counted performer", title="performer: counted crossing / features", expected=2.0, tolerance=0.1),
    )
    findings = (
        Finding(value="forward linear", title="linear: crossing of forward time / dim", at_least=0.5, at_most=2.0),
        Finding(value="both linear", title="linear: crossing of forward + backward / dim", at_least=0.5, at_most=2.0),
        Finding(
            value="forward performer", title="performer: crossing of forward time / features", at_least=0.5, at_most=2.0
        ),
        Finding(
            value="both performer",
            title="performer: crossing of forward + backward / features",
            at_least=0.5,
            at_most=2.0,
        ),
        Finding(
            value="causal linear",
            title="linear, causal: crossing of forward + backward / dim",
            at_least=0.5,
            at_most=2.0,
        ),
    )
    timed = True
    plots = (
        Plot(name="counted", title="Forward", x="length", y="operations", log_x=True, log_y=True),
        Plot(name="forward", title="Forward", x="length", y="milliseconds", log_x=True, log_y=True),
        Plot(name="both", title="Forward and backward", x="length", y="milliseconds", log_x=True, log_y=True),
        Plot(name="causal", title="Forward and backward, causal", x="length", y="milliseconds", log_x=True, log_y=True),
    )
    tiny: ClassVar[Mapping[str, object]] = {"lengths": (16, 256, 1024), "rounds": 2, "heads": 1}

    softmax: str = "softmax"
    linear: str = "linear"
    performer: str = "performer(num_features={features})"
    features: int = 256
    lengths: tuple[int, ...] = (16, 64, 256, 512, 1024, 2048)
    heads: int = 4
    dim: int = 64
    rounds: int = 9

    def observe(self, seed: int) -> Observation:
        """Count and time all lengths, then find the crossings."""
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
