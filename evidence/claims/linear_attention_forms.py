"""Of the forms of linear attention the cumulative sum is the fastest, and the largest.

Claim: Causal linear attention can be computed from all pairs (quadratic), one state after another (recurrent), chunk by
chunk, or from all states at once by a cumulative sum; the last is the fastest and takes the most memory, length x
features x value numbers.
Source: The survey article's remarks on implementations of linear attention; chunks: Hua et al. 2022, FLASH, section 3.2
Control: The forms give the same output. The cumulative sum holds every product of a key's features with its value (and
1 for the denominator), and every sum of them: 2 length features (value + 1) numbers per head.
Measured: Forward and backward in float32 on one core: processor time of calls in turns, and the most numbers alive at
one time, counted in the forward call. The statement about speed is tried at the longest length against each other form;
what it says of a GPU is not measured.
"""

import torch

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._growth import exponent
from evidence.claims._turns import processor_seconds
from regard import Heads, build
from regard.core.attention import Attention, generator
from regard_lab.benchmark.cost import counted


class LinearAttentionForms(Claim):
    controls = (
        Control("difference", "forms: largest difference / largest output", 0.0, tolerance=1e-5),
        Control("cumsum growth", "cumsum: numbers ~ length to the power of", 1.0, tolerance=0.05),
        Control("cumsum size", "cumsum: numbers / (2 heads length dim (dim + 1))", 1.0, tolerance=0.1),
    )
    findings = (
        Finding("time recurrent", "time, recurrent / cumsum", at_least=1.0),
        Finding("time quadratic", "time, quadratic / cumsum", at_least=1.0),
        Finding("time chunked", "time, chunked / cumsum", at_least=1.0),
        Finding("numbers recurrent", "numbers alive, cumsum / recurrent", at_least=2.0),
        Finding("numbers quadratic", "numbers alive, cumsum / quadratic", at_least=2.0),
        Finding("numbers chunked", "numbers alive, cumsum / chunked", at_least=2.0),
    )
    timed = True
    plots = (
        Plot("time", "Forward and backward", "length", "milliseconds", log_x=True, log_y=True),
        Plot("numbers", "Forward", "length", "most numbers alive", log_x=True, log_y=True),
    )

    chunked: str = "linear"
    quadratic: str = "linear(impl=quadratic)"
    recurrent: str = "linear(impl=recurrent)"
    cumsum: str = "linear(impl=cumsum)"
    lengths: tuple[int, ...] = setting((256, 512, 1024), tiny=(128, 256))
    heads: int = 2
    dim: int = 64
    rounds: int = setting(7, tiny=2)

    def observe(self, seed: int) -> Observation:
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
