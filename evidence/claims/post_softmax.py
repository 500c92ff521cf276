"""A softmax after linear attention, and one over a shortlist."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evidence.claims._base import About, Claim, Control, Finding, Observation, Plot, Revision
from regard.core.attention import generator
from regard_lab.benchmark.capacity import asked, memory


@dataclass(frozen=True)
class PostSoftmax(Claim):
    """A softmax over the channels of an output: what it keeps and what it destroys."""

    about = About(
        title="A softmax after linear attention restores exactness",
        says="Post-processing the output of linear attention with a softmax brings back the precision of softmax "
        "attention: a remedy of the exact-retrieval article.",
        source="The exact-retrieval article, its remedy of post-processing",
        control="A softmax over channels is monotone: where values are one-hot codes, the largest channel is the same, "
        "so exactly as many are found. A shortlist of all keys is softmax itself: it finds everything.",
        measures="Random unit keys of width 32, untrained; values that are one-hot codes, then random unit vectors. "
        "Recall, and the squared error of the output against the stored value over that of plain linear attention. "
        "Beside it the useful reading: exact softmax over the 8 keys of the largest linear score.",
    )
    controls = (
        Control(value="codes", title="one-hot values: recall, with - without", expected=0.0, tolerance=1e-9),
        Control(value="whole list", title="shortlist of every key: recall", expected=1.0, tolerance=1e-9),
    )
    findings = (
        Finding(value="gain", title="random values: recall, with - without", at_least=0.05, resolution=1e-3),
        Finding(value="error", title="squared error, with / without", at_most=0.9),
        Finding(value="list gain", title="shortlist of 8: recall - linear attention's", at_least=0.1, states=False),
    )
    revised = Revision(
        what="Findings beside the claim decided about it too; without them the verdict is the same.",
        seen=(0, 1, 2),
    )
    plots = (Plot(name="recall", title="Recall", x="", y="share found"),)
    tiny: ClassVar[Mapping[str, object]] = {"trials": 2}

    plain: str = "linear(feature_map=relu)"
    post: str = "linear(feature_map=relu, post=softmax)"
    shortlist: str = "shortlist(num_keys=8, feature_map=relu)"
    everything: str = "shortlist(num_keys=32, feature_map=relu)"
    trials: int = 8
    pairs: int = 32
    sharpness: float = 64.0

    def observe(self, seed: int) -> Observation:
        """Ask both kinds of values."""
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
