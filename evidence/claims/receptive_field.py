"""The receptive field of a stack is layers x window.

Claim: Local attention costs little and gives up globality: after L layers of window w a position depends on L w
positions on either side and on nothing further. Atrous attention alone never leaves its residue class. Local and atrous
pairs together reach every position in two layers.
Source: Su 2019, kexue.fm 6853 (atrous, local, sparse); Child et al. 2019, section 4; Beltagy et al. 2020, section 3.1
Control: A stack of depthwise convolutions of width 2 w + 1: its receptive field is known to be L w positions on either
side. One layer of full attention: it depends on every pair.
Measured: Stacks of residual layers with random weights in float64. A pair is reached if the gradient of the output at
one position for the input at the other is not exactly 0; every pair is looked at. Nothing is trained, and the numbers
are whole: an error of one position would be seen.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from regard.core.attention import generator
from regard.layer import AttentionLayer


class ReceptiveField(Claim):
    controls = (
        Control("wrong convolution", "convolutions: pairs unlike |i - j| <= L w", 0, tolerance=0),
        Control("share full", "full attention, 1 layer: share reached", 1, tolerance=0),
    )
    findings = (
        Finding("beyond", "window: furthest pair - L w, worst depth, positions", at_least=-0.5, at_most=0.5),
        Finding("wrong window", "window: pairs unlike |i - j| <= L w, all depths", at_most=0.5),
        Finding("wrong causal", "causal window: pairs unlike 0 <= i - j <= L w", at_most=0.5),
        Finding("wrong classes", "atrous, every depth: pairs unlike i = j mod dilation", at_most=0.5),
        Finding("share one", "local and atrous, 1 layer: share reached", at_most=0.9),
        Finding("share two", "local and atrous, 2 layers: share reached", at_least=1.0),
    )
    plots = (
        Plot("furthest", "Furthest position reached", "layers", "positions away"),
        Plot("share", "Pairs reached", "layers", "share of all pairs"),
    )

    length: int = setting(96, tiny=24)
    window: int = setting(8, tiny=3)
    """and dilation, as in Su's figure"""
    depth: int = setting(5, tiny=3)
    """layers of the deepest stack"""
    local: str = "local(window={window})"
    atrous: str = "atrous(dilation={window})"
    both: str = "local_atrous(window={window}, dilation={window})"
    full: str = "softmax"

    def observe(self, seed: int) -> Observation:
        distance = torch.arange(self.length)[:, None] - torch.arange(self.length)
        depths = range(1, self.depth + 1)
        counted = ("beyond", "wrong window", "wrong causal", "wrong classes", "wrong convolution")
        counts: dict[str, float] = dict.fromkeys(counted, 0.0)
        furthest: dict[str, list[float]] = {"window": [], "atrous": [], "local and atrous": [], "L w": []}
        shares: dict[str, list[float]] = {"window": [], "atrous": [], "local and atrous": []}
        for layers in depths:
            radius = layers * self.window
            band = distance.abs() <= radius
            window, causal = (self.reached(self.local, layers, seed, causal=causal) for causal in (False, True))
            beyond = float((distance.abs() * window).max()) - min(radius, self.length - 1)
            counts["beyond"] = max(counts["beyond"], beyond, key=abs)
            counts["wrong window"] += unlike(window, band)
            counts["wrong causal"] += unlike(causal, band & (distance >= 0))
            counts["wrong convolution"] += unlike(self.convolved(layers, seed), band)
            atrous = self.reached(self.atrous, layers, seed)
            counts["wrong classes"] += unlike(atrous, distance % self.window == 0)
            both = self.reached(self.both, layers, seed)
            for name, seen in (("window", window), ("atrous", atrous), ("local and atrous", both)):
                furthest[name].append(float((distance.abs() * seen).max()))
                shares[name].append(float(seen.double().mean()))
            furthest["L w"].append(float(radius))
        counts["share one"], counts["share two"] = shares["local and atrous"][:2]
        counts["share full"] = float(self.reached(self.full, 1, seed).double().mean())
        curves: dict[str, dict[str, Curve]] = {
            "furthest": {name: (tuple(depths), values) for name, values in furthest.items()},
            "share": {name: (tuple(depths), values) for name, values in shares.items()},
        }
        return Observation(counts, curves)

    def reached(self, spec: str, layers: int, seed: int, *, causal: bool = False) -> Bool[Tensor, "outputs inputs"]:
        """The pairs of a stack of one mechanism."""
        spec = spec.format(window=self.window)
        stack = [
            AttentionLayer(
                8, spec, heads=2, causal=causal, max_length=self.length, seed=seed * self.depth + at
            ).double()
            for at in range(layers)
        ]
        return depends(self.inputs(seed), [lambda x, layer=layer: layer(x).hidden for layer in stack])

    def convolved(self, layers: int, seed: int) -> Bool[Tensor, "outputs inputs"]:
        """The pairs of a stack of convolutions."""
        draw = generator(seed, "convolutions")
        stack = [
            nn.Conv1d(8, 8, 2 * self.window + 1, padding=self.window, groups=8, bias=False).double()
            for _ in range(layers)
        ]
        with torch.no_grad():
            for layer in stack:
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=draw))
        return depends(self.inputs(seed), [lambda x, layer=layer: layer(x.mT).mT for layer in stack])

    def inputs(self, seed: int) -> Tensor:
        """(length, 8), random."""
        return torch.randn(self.length, 8, generator=generator(seed, "inputs"), dtype=torch.float64)


def depends(x: Tensor, layers: Sequence[Callable[[Tensor], Tensor]]) -> Bool[Tensor, "outputs inputs"]:
    """Whether the gradient of output i for input j is not 0, for x + f(x) stacked.

    Row i of a batch of copies is asked for output i, so that one backward pass gives every pair.
    """
    copies = x.expand(len(x), -1, -1).clone().requires_grad_()
    hidden = copies
    for layer in layers:
        hidden = hidden + layer(hidden)
    rows = torch.arange(len(x))
    (gradient,) = torch.autograd.grad(hidden[rows, rows].sum(), copies)
    return (gradient != 0).any(-1)


def unlike(a: Tensor, b: Tensor) -> float:
    """Pairs on which they differ."""
    return float((a != b).sum())
