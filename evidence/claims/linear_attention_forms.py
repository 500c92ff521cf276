"""Four ways to the same causal linear attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from evidence.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from evidence.claims._growth import exponent
from evidence.claims._turns import processor_seconds
from regard import Heads, build
from regard.core.attention import Attention, generator
from regard_lab.benchmark.cost import counted


@dataclass(frozen=True)
class LinearAttentionForms(Claim):
    """Time and memory of the quadratic, recurrent, chunked and cumulative forms, forward and backward."""

    about = About(
        title="Of the forms of linear attention the cumulative sum is the fastest, and the largest",
        says="Causal linear attention can be computed from all pairs (quadratic), one state after another (recurrent), "
        "chunk by chunk, or from all states at once by a cumulative sum; the last is the fastest and takes the most "
        "memory, length x features x value numbers.",
        source="The survey article's remarks on implementations of linear attention; chunks: Hua et al. 2022, FLASH, "
        "section 3.2",
        control="The forms give the same output. The cumulative sum holds every product of a key's features with its "
        "value (and 1 for the denominator), and every sum of them: 2 length features (value + 1) numbers per head.",
        measures="Forward and backward in float32 on one core: processor time of calls in turns, and the most numbers "
        "alive at one time, counted in the forward call. The statement about speed is tried at the longest length "
        "against each other form; what it says of a GPU is not measured.",
    )
    controls = (
        Control(value="difference", title="forms: largest difference / largest output", expected=0.0, tolerance=1e-5),
        Control(value="cumsum growth", title="cumsum: numbers ~ length to the power of", expected=1.0, tolerance=0.05),
        Control(
            value="cumsum size",
            title="cumsum: numbers / (2 heads length dim (dim + 1))",
            expected=1.0,
            tolerance=0.1,
        ),
    )
    findings = (
        Finding(value="time recurrent", title="time, recurrent / cumsum", at_least=1.0),
        Finding(value="time quadratic", title="time, quadratic / cumsum", at_least=1.0),
        Finding(value="time chunked", title="time, chunked / cumsum", at_least=1.0),
        Finding(value="numbers recurrent", title="numbers alive, cumsum / recurrent", at_least=2.0),
        Finding(value="numbers quadratic", title="numbers alive, cumsum / quadratic", at_least=2.0),
        Finding(value="numbers chunked", title="numbers alive, cumsum / chunked", at_least=2.0),
    )
    timed = True
    plots = (
        Plot(name="time", title="Forward and backward", x="length", y="milliseconds", log_x=True, log_y=True),
        Plot(name="numbers", title="Forward", x="length", y="most numbers alive", log_x=True, log_y=True),
    )
    tiny: ClassVar[Mapping[str, object]] = {"lengths": (128, 256), "rounds": 2}

    chunked: str = "linear"
    quadratic: str = "linear(impl=quadratic)"
    recurrent: str = "linear(impl=recurrent)"
    cumsum: str = "linear(impl=cumsum)"
    lengths: tuple[int, ...] = (256, 512, 1024)
    heads: int = 2
    dim: int = 64
    rounds: int = 7

    def observe(self, seed: int) -> Observation:
        """Build the forms, compare, count, time."""
        specs = {name: getattr(self, name) for name in ("chunked", "quadratic", "recurrent", "cumsum")}
        forms = {
            name: build(spec, Heads(count=self.heads, key_dim=self.dim, causal=True)) for name, spec in specs.items()
        }
        time: dict[str, list[float]] = {name: [] for name in forms}
        numbers: dict[str, list[float]] = {name: [] for name in forms}
        worst = 0.0
        for length in self.lengths:
            qkv = torch.randn(3, 1, self.heads, length, self.dim, generator=generator(seed, "forms", length))
            with torch.no_grad():
                outputs = [form(*qkv).values for form in forms.values()]
            worst = max(worst, *(float((x - outputs[0]).abs().max() / outputs[0].abs().max()) for x in outputs))
            calls = {name: _Both(form, qkv) for name, form in forms.items()}
            for name, seconds in processor_seconds(calls, rounds=self.rounds, warmup=1).items():
                time[name].append(1e3 * seconds)
                numbers[name].append(float(alive(forms[name], qkv)))
        values = {
            "difference": worst,
            "cumsum growth": exponent(self.lengths, numbers["cumsum"]),
            "cumsum size": numbers["cumsum"][-1] / (2 * self.heads * self.lengths[-1] * self.dim * (self.dim + 1)),
        }
        for name in ("recurrent", "quadratic", "chunked"):
            values[f"time {name}"] = time[name][-1] / time["cumsum"][-1]
            values[f"numbers {name}"] = numbers["cumsum"][-1] / numbers[name][-1]
        curves: dict[str, dict[str, Curve]] = {
            "time": {name: (self.lengths, series) for name, series in time.items()},
            "numbers": {name: (self.lengths, series) for name, series in numbers.items()},
        }
        return Observation(values, curves)


class _Both:
    """Forward and backward, as a call without arguments."""

    def __init__(self, form: Attention, qkv: torch.Tensor) -> None:
        self.form, self.inputs = form, [x.requires_grad_() for x in qkv.clone().unbind()]

    def __call__(self) -> None:
        self.form(*self.inputs).values.sum().backward()


@torch.no_grad()
def alive(form: Attention, qkv: torch.Tensor) -> int:
    """The most numbers alive at one time in memory of the call, inside custom operators too."""
    return counted(lambda: form(*qkv)).peak
