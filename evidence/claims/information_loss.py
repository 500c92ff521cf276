"""A state of fixed size forgets.

Claim: Linear attention compresses the past into a matrix of fixed size, so exact retrieval fails as more is stored, and
the size of the state sets how much: reason 1 of the exact-retrieval article.
Source: The exact-retrieval article, reason 1; Arora et al. 2023, Zoology; Katharopoulos et al. 2020, Eq. 10
Control: Softmax keeps every pair and finds all of them; equal weights find one of N.
Measured: Recall of random unit values by random unit keys of width 32, without training. Signed identity features,
whose answers depend on no scale; second-order features of the same vectors, with a state 33 times as large; positive
random features at a logit of 8, with 16 to 256 features; and Linformer's untrained projection of all keys to 16 rows,
at a logit of 64.
"""

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard_lab.benchmark.capacity import decoded, recall

FEATURES = (16, 64, 256)


class InformationLoss(Claim):
    controls = (
        Control("softmax", "softmax, most pairs", 1.0, tolerance=1e-9),
        Control("uniform", "equal weights, pairs x recall", 1.0, tolerance=1e-9),
    )
    findings = (
        Finding("fall", "identity: recall, fewest - most pairs", at_least=0.2),
        Finding("order", "most pairs: second-order - identity features", at_least=0.1),
        Finding("features", "middle pairs: 256 - 16 random features", at_least=0.1),
        Finding("rank", "most pairs: softmax - keys projected to 16 rows", at_least=0.1),
    )
    revised = Revision(
        "The finding on keys projected to 16 rows came with the record. Whether numbers had been seen is not recorded.",
        (0, 1, 2),
    )
    plots = (
        Plot("pairs", "Recall over stored pairs", "pairs", "share found", log_x=True),
        Plot("features", "Recall over random features", "features", "share found", log_x=True),
    )

    softmax: str = "softmax"
    uniform: str = "uniform"
    identity: str = "linear(feature_map=identity, normalise=False)"
    second: str = "linear(feature_map=taylor)"
    random: str = "performer(num_features={features})"
    low_rank: str = "linformer(rank=16)"
    pairs: tuple[int, ...] = setting((8, 32, 128, 256), tiny=(4, 16, 64))
    trials: int = setting(8, tiny=2)

    def observe(self, seed: int) -> Observation:
        named = {"softmax": (self.softmax, 64.0), "identity": (self.identity, 1.0), "second order": (self.second, 8.0)}
        named |= {"rank 16": (self.low_rank, 64.0), "uniform": (self.uniform, 1.0)}
        recalls = {
            name: [self.share(spec, pairs, sharpness, seed) for pairs in self.pairs]
            for name, (spec, sharpness) in named.items()
        }
        middle, most = self.pairs[len(self.pairs) // 2 - 1], self.pairs[-1]
        by_features = [self.share(self.random.format(features=m), middle, 8.0, seed) for m in FEATURES]
        values = {
            "softmax": recalls["softmax"][-1],
            "uniform": recalls["uniform"][-1] * most,
            "fall": recalls["identity"][0] - recalls["identity"][-1],
            "order": recalls["second order"][-1] - recalls["identity"][-1],
            "features": by_features[-1] - by_features[0],
            "rank": recalls["softmax"][-1] - recalls["rank 16"][-1],
        }
        curves: dict[str, Curve] = {name: (self.pairs, shares) for name, shares in recalls.items()}
        return Observation(values, {"pairs": curves, "features": {f"{middle} pairs": (FEATURES, by_features)}})

    def share(self, spec: str, pairs: int, sharpness: float, seed: int) -> float:
        return recall(decoded(spec, pairs, sharpness=sharpness, trials=self.trials, seed=seed))[0]
