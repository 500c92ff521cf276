"""A calibrated exit keeps its guarantee.

Claim: Exits at a threshold that Learn then Test certifies lose more than the risk allowed in at most 1 - confidence of
the calibrations; the earliest threshold whose measured loss is within the risk has no such guarantee.
Source: Schuster et al. 2022, section 4; Angelopoulos et al. 2021, Theorem 1
Control: Thresholds whose losses are drawn by themselves with a chance just above the risk, so that any choice is a
violation. How often each procedure makes one then follows from the binomial distribution: rarely for the two
corrections, often for p-values without any, and nearly always for the naive choice. All four are measured to be that.
And the exits that are calibrated are not idle: at the largest risk most calibrations certify a threshold.
Measured: A decoder of four blocks of letters of the bundled addresses, all exits trained, whose confidence is the gap
of the two likeliest letters. The loss of a held-out passage is 1 where behind it exits say another letter than all
blocks. Calibration passages are drawn with replacement from the held-out ones, which are therefore the distribution,
and their mean loss is the risk: no sampling of a test adds violations. Shares of 1000 draws, exact binomial p-values,
fixed sequence.
"""

import math
from collections.abc import Sequence

import numpy as np

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from evidence.claims._letters import LETTERS, samples, with_exits
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard_lab.benchmark.exits import Measured, measure
from regard_lab.calibration import Calibrated, binomial, bonferroni, calibrate

DRAWS = 1000
CONFIDENCE = 0.95
ALLOWED = 1 - CONFIDENCE + 1.645 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / DRAWS)
"""violations of so many draws that a guarantee may show: its own, and what chance adds to it in 95 % of cases"""
NOISE = 4.5 * math.sqrt(0.25 / DRAWS)
"""how far a share of the draws may lie from its chance: more than four standard errors, so that no seed does by luck"""


class ExitGuarantee(Claim):
    controls = (
        Control("known corrected", "known risks: Bonferroni - theory", 0.0, tolerance=NOISE),
        Control("known fixed", "known risks: fixed sequence - theory", 0.0, tolerance=NOISE),
        Control("known uncorrected", "known risks: uncorrected - theory", 0.0, tolerance=NOISE),
        Control("known naive", "known risks: naive - theory", 0.0, tolerance=NOISE),
        Control("seen", "1 if uncorrected breaks known risks", 1.0, tolerance=0.0),
        Control("certified", "1 if the largest risk is mostly certified", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("calibrated", "calibrated: violations, most of the risks", at_most=ALLOWED),
        Finding("naive", "naive: violations, mean of the risks", at_least=ALLOWED),
        Finding("blocks", "calibrated: share of the blocks at the largest risk", at_most=0.95),
        Finding("regret", "calibrated - naive: share of the blocks", at_most=0.2, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("violations", "Violations", "risk allowed", "share of the draws"),
        Plot("loss", "Exits of the decoder", "threshold", "mean loss"),
        Plot("blocks", "Exits of the decoder", "threshold", "mean blocks of a token"),
    )

    confidence: str = "softmax"
    dim: int = setting(32, tiny=16)
    layers: int = setting(4, tiny=3)
    steps: int = setting(300, tiny=60)
    batch: int = 16
    learning_rate: float = 1e-2
    length: int = 16
    """letters of a passage"""
    pool: int = setting(800, tiny=200)
    """held-out passages"""
    calibration: int = setting(300, tiny=100)
    """passages of a draw"""
    risks: tuple[float, ...] = setting((0.05, 0.1, 0.15), tiny=(0.1,))
    thresholds: tuple[float, ...] = setting(
        tuple(round(0.96 - 0.03 * at, 2) for at in range(33)), tiny=(0.9, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.0)
    )
    known: int = setting(12, tiny=4)
    """thresholds of known risk"""
    above: float = 1.01
    """their chance of a loss, in units of the risk allowed"""

    def observe(self, seed: int) -> Observation:
        draw = np.random.default_rng([seed, 16])
        values = self.with_known_risks(draw)
        found = self.measured(seed)
        risks, blocks = found.losses.mean(0), found.layers.mean(0) / self.layers
        share: dict[str, list[float]] = {"calibrated": [], "naive": []}
        for risk in self.risks:
            chosen: dict[str, list[int | None]] = {"calibrated": [], "naive": []}
            for _ in range(DRAWS):
                losses = found.losses[draw.integers(self.pool, size=self.calibration)]
                got = calibrate(losses, self.thresholds, risk=risk, confidence=CONFIDENCE, test="binomial")
                chosen["calibrated"].append(self.certified(got))
                chosen["naive"].append(naive(got.risks, risk))
            for name, ats in chosen.items():
                share[name].append(sum(at is not None and bool(risks[at] > risk) for at in ats) / DRAWS)
        used = {name: float(np.mean([1.0 if at is None else blocks[at] for at in ats])) for name, ats in chosen.items()}
        certified = sum(at is not None for at in chosen["calibrated"]) / DRAWS
        values |= {
            "calibrated": max(share["calibrated"]),
            "naive": sum(share["naive"]) / len(self.risks),
            "blocks": used["calibrated"],
            "regret": used["calibrated"] - used["naive"],
            "certified": float(certified >= 0.5),
            **{f"{name}, risk {risk}": x for name, xs in share.items() for risk, x in zip(self.risks, xs, strict=True)},
        }
        curves = {
            "violations": {name: (self.risks, xs) for name, xs in share.items()},
            "loss": {"": (self.thresholds, risks.tolist())},
            "blocks": {"": (self.thresholds, found.layers.mean(0).tolist())},
        }
        return Observation(values, curves)

    def certified(self, got: Calibrated) -> int | None:
        """Which threshold was found; None: not one."""
        return None if got.threshold is None else self.thresholds.index(got.threshold)

    def with_known_risks(self, draw: np.random.Generator) -> dict[str, float]:
        """Violations where every threshold is one, less what the binomial distribution says of them."""
        risk, count = self.risks[-1], self.calibration
        chance, grid = self.above * risk, [1 - at / self.known for at in range(self.known)]
        made = dict.fromkeys(("corrected", "fixed", "uncorrected", "naive"), 0)
        for _ in range(DRAWS):
            losses = (draw.random((count, self.known)) < chance).astype(np.float64)
            got = calibrate(losses, grid, risk=risk, confidence=CONFIDENCE, test="binomial")
            made["fixed"] += got.threshold is not None
            made["corrected"] += bool(bonferroni(got.p_values, 1 - CONFIDENCE))
            made["uncorrected"] += min(got.p_values) <= 1 - CONFIDENCE
            made["naive"] += naive(got.risks, risk) is not None
        one, shared = (most_losses(count, risk, level) for level in (1 - CONFIDENCE, (1 - CONFIDENCE) / self.known))
        alone = {
            "corrected": binomial(shared, count, chance),
            "uncorrected": binomial(one, count, chance),
            "naive": binomial(math.floor(risk * count), count, chance),
        }
        theory = {name: 1 - (1 - p) ** self.known for name, p in alone.items()} | {"fixed": alone["uncorrected"]}
        values = {f"known {name}": times / DRAWS - theory[name] for name, times in made.items()}
        return values | {"seen": float(made["uncorrected"] / DRAWS > ALLOWED)}

    def measured(self, seed: int) -> Measured:
        """Losses of held-out passages at every threshold, of a decoder trained on other addresses."""
        depth = f"early_exit(confidence={self.confidence}, exits=aligned)"
        model, letters = decoder(self, LETTERS, seed, heads=2, depth=depth, max_length=64), generator(seed, "train")
        with_exits(model, letters, batch=self.batch, length=32, steps=self.steps, learning_rate=self.learning_rate)
        passages = samples("valid", self.pool, self.length, generator(seed, "valid")).numpy()
        return measure(model, passages, self.thresholds, loss="last", batch_size=self.pool)


def naive(means: Sequence[float], risk: float) -> int | None:
    """The last threshold of those whose measured loss is within the risk; None: there is none."""
    return max((at for at, mean in enumerate(means) if mean <= risk), default=None)


def most_losses(count: int, risk: float, level: float) -> int:
    """The most losses of so many items whose p-value is the level or less; -1: not even none."""
    return max((losses for losses in range(count) if binomial(losses, count, risk) <= level), default=-1)
