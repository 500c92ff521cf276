"""A softmax after linear attention restores exactness.

Claim: Post-processing the output of linear attention with a softmax brings back the precision of softmax attention: a
remedy of the exact-retrieval article.
Source: The exact-retrieval article, its remedy of post-processing
Control: A softmax over channels is monotone: where values are one-hot codes, the largest channel is the same, so
exactly as many are found. A shortlist of all keys is softmax itself: it finds everything.
Measured: Random unit keys of width 32, untrained; values that are one-hot codes, then random unit vectors. Recall, and
the squared error of the output against the stored value over that of plain linear attention. Beside it the useful
reading: exact softmax over the 8 keys of the largest linear score.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from regard.core.attention import generator
from regard_lab.benchmark.capacity import asked, memory


class PostSoftmax(Claim):
    controls = (
        Control("codes", "one-hot values: recall, with - without", 0.0, tolerance=1e-9),
        Control("whole list", "shortlist of every key: recall", 1.0, tolerance=1e-9),
    )
    findings = (
        Finding("gain", "random values: recall, with - without", at_least=0.05, resolution=1e-3),
        Finding("error", "squared error, with / without", at_most=0.9),
        Finding("list gain", "shortlist of 8: recall - linear attention's", at_least=0.1, states=False),
    )
    revised = Revision(
        "Findings beside the claim decided about it too; without them the verdict is the same.", (0, 1, 2)
    )
    plots = (Plot("recall", "Recall", "", "share found"),)

    plain: str = "linear(feature_map=relu)"
    post: str = "linear(feature_map=relu, post=softmax)"
    shortlist: str = "shortlist(num_keys=8, feature_map=relu)"
    everything: str = "shortlist(num_keys=32, feature_map=relu)"
    trials: int = setting(8, tiny=2)
    pairs: int = 32
    sharpness: float = 64.0

    def observe(self, seed: int) -> Observation:
        specs = {"linear": self.plain, "and softmax": self.post, "shortlist": self.shortlist, "all": self.everything}
        shares = {kind: dict.fromkeys(specs, 0.0) for kind in ("codes", "random")}
        errors = dict.fromkeys(specs, 0.0)
        for trial in range(self.trials):
            draw = generator(seed, "post", trial)
            keys, random = (normalize(torch.randn(self.pairs, self.pairs, generator=draw), dim=-1) for _ in range(2))
            x = keys * self.sharpness**0.5 * self.pairs**0.25
            for kind, values in (("codes", torch.eye(self.pairs)), ("random", random)):
                for name, spec in specs.items():
                    out = asked(memory(spec, self.pairs, self.pairs, trial), x, values)
                    shares[kind][name] += right(out, values) / self.trials
                    errors[name] += float((out - values).square().sum()) if kind == "random" else 0.0
        values = {
            "codes": shares["codes"]["and softmax"] - shares["codes"]["linear"],
            "whole list": shares["random"]["all"],
            "gain": shares["random"]["and softmax"] - shares["random"]["linear"],
            "error": errors["and softmax"] / errors["linear"],
            "list gain": shares["random"]["shortlist"] - shares["random"]["linear"],
        }
        curves = {f"{kind} values": (list(recalls), list(recalls.values())) for kind, recalls in shares.items()}
        return Observation(values, {"recall": curves})


def right(out: Tensor, values: Tensor) -> float:
    """The share of outputs whose nearest value is their own.

    Example:
        >>> right(torch.tensor([[1.0, 0.0], [0.9, 0.1]]), torch.eye(2))
        0.5
    """
    return float(((out @ values.mT).argmax(-1) == torch.arange(len(values))).double().mean())
