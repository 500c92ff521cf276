"""Ponder time grows with difficulty.

Claim: A Universal Transformer that halts by itself takes more steps for tokens that are harder.
Source: Dehghani et al. 2019, section 4; Graves 2016, section 3
Control: The tokens do differ in difficulty: a model of a single step answers queries of no look-up, and not those of
two. The one that halts answers all, so that its steps mean something. Where the number of look-ups is a label without a
meaning, since the answer is always the start, the same model takes as many steps for all labels: what grows is due to
difficulty and not to the token. Every training is over.
Measured: Queries (s, h) for f applied h times to s, 0 to 2 at random in one row, behind a table of f in the same row.
Mean steps of new queries by h. Positions are not told, nor is the number of the step.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims._training import decoder, own_losses, trained
from regard.core.attention import generator
from regard_lab.benchmark.fitting import averages
from regard_lab.tasks.base import IGNORE

RIGHT = 0.9
"""share of right answers of a model that has learned"""


Chased = tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"], Int[Tensor, "batch queries"]]
"""tokens, what each should predict, IGNORE where nothing counts, and the hops of each query"""


class Answered(NamedTuple):
    """By the hops of queries: mean steps, and the share of right answers. nats: of every step of the training."""

    steps: list[float]
    right: list[float]
    nats: list[float]


class PonderDifficulty(Claim):
    controls = (
        Control("learned", "1 if every number of look-ups is answered", 1.0, tolerance=0.0, small=False),
        Control("hard", "1 if one step answers none alone, not two", 1.0, tolerance=0.0, small=False),
        Control("label", "steps by a label without a meaning: largest - smallest", 0.0, tolerance=0.1, small=False),
        FINISHED,
    )
    findings = (
        Finding("harder", "steps, two look-ups - none", at_least=0.25),
        Finding("hard or not", "steps, two look-ups - one", at_least=0.25),
        Finding("easy", "steps, one look-up - none", at_least=0.0, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "After 1,200 steps the loss of one training of five still changed by a tenth, so that nothing could be "
        "said; there are 2,000 steps since. Then a model of one step answered two look-ups among 6 symbols, in width "
        "32, which it was to miss; there are 8 symbols and a width of 48 now. Bounds and controls are as they were. "
        "With these the claim held on seeds 300 to 304, at a commit that is not in the history; it is measured again.",
        (100, 101, 102, 103, 104, 200, 201, 202, 203, 204, 300, 301, 302, 303, 304, 900, 901, 902, 910, 911),
    )
    plots = (
        Plot("steps", "Steps of a query", "look-ups", "mean steps"),
        Plot("right", "Answers", "look-ups", "share that is right"),
        Plot("loss", "Training", "step", "nats per query"),
    )

    halting: str = "universal(steps=4, coordinates=none, ponder=0.003)"
    single: str = "universal(steps=1, coordinates=none, halting=False)"
    symbols: int = setting(8, tiny=3)
    hops: int = 2
    queries: int = setting(12, tiny=4)
    dim: int = setting(48, tiny=16)
    train_steps: int = setting(2000, tiny=30)
    batch: int = setting(32, tiny=8)
    learning_rate: float = 6e-3
    rows: int = setting(500, tiny=50)
    """new ones"""

    def observe(self, seed: int) -> Observation:
        found = {
            "halting": self.answered(self.halting, seed),
            "label alone": self.answered(self.halting, seed, matter=False),
            "single step": self.answered(self.single, seed),
        }
        steps, label, single = found["halting"].steps, found["label alone"].steps, found["single step"].right
        values = {
            "harder": steps[-1] - steps[0],
            "hard or not": steps[-1] - steps[-2],
            "easy": steps[1] - steps[0],
            "label": max(label) - min(label),
            "learned": float(min(found["halting"].right + found["label alone"].right) >= RIGHT),
            "hard": float(single[0] >= RIGHT > single[-1]),
            "unfinished": max(change(found[name].nats) for name in ("halting", "label alone")),
            **{f"steps, {hops} look-ups": value for hops, value in enumerate(steps)},
        }
        hops = list(range(self.hops + 1))
        curves = {
            "steps": {name: (hops, one.steps) for name, one in found.items()},
            "right": {name: (hops, one.right) for name, one in found.items()},
            "loss": {name: averages(one.nats) for name, one in found.items()},
        }
        return Observation(values, curves)

    def answered(self, depth: str, seed: int, *, matter: bool = True) -> Answered:
        """Train a model of one block, and look at its steps and answers on new rows."""
        model = decoder(
            self,
            vocabulary(self.symbols, self.hops),
            seed,
            targets=self.symbols,
            tied=False,
            heads=2,
            layers=1,
            depth=depth,
            position="none",
            mlp_dim=2 * self.dim,
            bias=True,
            max_length=self.symbols + self.queries,
        )
        draw = generator(seed, "train")
        sizes = {"symbols": self.symbols, "hops": self.hops, "queries": self.queries, "matter": matter}

        def loss() -> tuple[Tensor, Tensor]:
            tokens, targets, _ = chased(self.batch, **sizes, draw=draw)
            got = model(tokens)
            return cross_entropy(got.logits.mT, targets, ignore_index=IGNORE), own_losses(model, got.losses)

        nats = trained(model, loss, steps=self.train_steps, learning_rate=self.learning_rate, last=0.0)
        tokens, targets, far = chased(self.rows, **sizes, draw=generator(seed, "new"))
        with torch.no_grad():
            got = model(tokens)
        right = (got.logits.argmax(-1) == targets)[:, self.symbols :].double()
        steps = torch.ones_like(right) if got.steps is None else got.steps[:, self.symbols :].double()
        by_hops = [far == hops for hops in range(self.hops + 1)]
        return Answered([float(steps[at].mean()) for at in by_hops], [float(right[at].mean()) for at in by_hops], nats)


def vocabulary(symbols: int, hops: int) -> int:
    """Tokens: an entry (s, f(s)) of the table each, and a query (s, hops) each."""
    return symbols * symbols + (hops + 1) * symbols


def chased(count: int, *, symbols: int, hops: int, queries: int, draw: torch.Generator, matter: bool = True) -> Chased:
    """Rows of a table of a random f over the symbols, and then queries (s, h) whose answer is f applied h times to s.

    Args:
        count: rows.
        symbols: s is one of 0, 1, ...
        hops: h is equally likely 0, 1, ... up to this.
        queries: of a row.
        draw: of everything.
        matter: False: the answer is s whatever h is, so that h is a label without a meaning.
    """
    f = torch.randint(symbols, (count, symbols), generator=draw)
    start = torch.randint(symbols, (count, queries), generator=draw)
    far = torch.randint(hops + 1, (count, queries), generator=draw)
    answer = start
    for hop in range(hops if matter else 0):
        answer = torch.where(far > hop, f.gather(1, answer), answer)
    tokens = torch.cat([torch.arange(symbols) * symbols + f, symbols * symbols + far * symbols + start], 1)
    return tokens, torch.cat([torch.full_like(f, IGNORE), answer], 1), far
