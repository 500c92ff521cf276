"""Without global normalisation retrieval is inexact.

Claim: Linear attention lacks the global normalisation of softmax, and therefore retrieves inexactly: reason 2 of the
exact-retrieval article. (The denominator of Katharopoulos et al. is that normalisation; the article's code leaves it
out.)
Source: The exact-retrieval article, reason 2; Katharopoulos et al. 2020, Eqs. 4 and 12
Control: The measure sees a factor that matters: outputs times -1 turn the nearest value into the furthest, so every
answer changes. The denominator is there: with it, a constant value comes back unchanged.
Measured: Random unit keys and values of width 32, untrained, four positive feature maps: the share of pairs that are
found with the denominator less the share without it, and beside it what the denominator does to the output itself (the
error of |out| against 1, on constant values of length 1).
"""

import torch
from torch.nn.functional import normalize

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard.core.attention import generator
from regard_lab.benchmark.capacity import asked, memory

MAPS = ("relu", "elu_plus_one", "sigmoid", "taylor")


class NormalisationAndRecall(Claim):
    controls = (
        Control("turned", "answers changed by a factor of -1", 1.0, tolerance=1e-9),
        Control("constant", "normalised output of a constant value", 1.0, tolerance=1e-5),
    )
    findings = (
        Finding("gain", "recall, with - without the denominator", at_least=0.01, resolution=1e-3),
        Finding("size", "constant value: relative error without it", at_least=0.1, states=False),
    )
    revised = Revision(
        "Findings beside the claim decided about it too; without them the verdict is the same.", (0, 1, 2)
    )
    plots = (Plot("recall", "Recall", "", "share found"),)

    plain: str = "linear(feature_map={map}, normalise=False)"
    normalised: str = "linear(feature_map={map})"
    pairs: int = setting(32, tiny=8)
    trials: int = setting(8, tiny=2)
    dim: int = 32
    sharpness: float = 4.0

    def observe(self, seed: int) -> Observation:
        shares: dict[str, list[float]] = {"with": [], "without": []}
        turned, errors, kept = [], [], []
        for name in MAPS:
            right = {"with": 0, "without": 0}
            for trial in range(self.trials):
                draw = generator(seed, "normalisation", trial)
                keys, values = (normalize(torch.randn(self.pairs, self.dim, generator=draw), dim=-1) for _ in "kv")
                x = keys * self.sharpness**0.5 * self.dim**0.25
                one = values[:1].expand_as(values)
                for kind, spec in (("with", self.normalised), ("without", self.plain)):
                    mechanism = memory(spec.format(map=name), self.pairs, self.dim, trial)
                    scores = asked(mechanism, x, values) @ values.mT
                    answers = scores.argmax(-1)
                    right[kind] += int((answers == torch.arange(self.pairs)).sum())
                    size = asked(mechanism, x, one).norm(dim=-1)
                    if kind == "with":
                        kept.append(float(size.mean()))
                        turned.append(float((answers != (-scores).argmax(-1)).double().mean()))
                    else:
                        errors.append(float((size - 1).abs().mean()))
            for kind, count in right.items():
                shares[kind].append(count / (self.trials * self.pairs))
        gains = [one - other for one, other in zip(shares["with"], shares["without"], strict=True)]
        values_ = {"gain": max(gains), "size": sum(errors) / len(errors)}
        values_ |= {"turned": min(turned), "constant": sum(kept) / len(kept)}
        curves: dict[str, Curve] = {kind: (MAPS, recalls) for kind, recalls in shares.items()}
        return Observation(values_, {"recall": curves})
