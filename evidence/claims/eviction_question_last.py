"""Most eviction policies fail where the question comes last.

Claim: What a cache may drop is chosen by what has been read so far. Where the question comes after the text, or another
one does, most policies have dropped what it asks for, though there was room for all answers.
Source: Li et al. 2024, SCBench, section 4; Kim et al. 2025, KVzip, section 1
Control: The whole cache recalls every pair. Eight bits for every number lose nothing, and neither does any policy whose
budget holds all. SnapKV told the question before it chooses, which is what it was made for, loses next to nothing at
the same budget: a policy can win.
Measured: A decoder of one layer with a short convolution, trained to say the value of a key that stood among fillers.
The budget is twice the slots of all pairs, a third of the text. Accuracy lost when the question comes behind the text,
and another time when it is repeated, both answers asked; policies of a common seed read the same new rows. A policy
fails if it loses 0.2 or more. No published network is measured here.
"""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims._training import decoder, trained
from regard.core.attention import generator
from regard.memory.caches import compressing
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages

LOSES = 0.2
"""of the accuracy: a policy that loses less does not fail"""


class EvictionQuestionLast(Claim):
    controls = (
        Control("exact", "whole cache: accuracy", 1.0, tolerance=0.05),
        Control("8 bits", "8 bits: accuracy lost", 0.0, tolerance=0.01),
        Control("all held", "budget that holds all: accuracy lost, most", 0.0, tolerance=0.0),
        Control("snapkv, told", "SnapKV told the question: accuracy lost", 0.0, tolerance=0.1),
        FINISHED,
    )
    findings = (
        Finding("failing", "policies of four that lose 0.2 or more", at_least=2.5),
        Finding("streaming", "streaming: accuracy lost", at_least=LOSES, resolution=1 / 512, states=False),
        Finding("h2o", "H2O: accuracy lost", at_least=LOSES, resolution=1 / 512, states=False),
        Finding("snapkv", "SnapKV, not told: accuracy lost", at_least=LOSES, resolution=1 / 512, states=False),
        Finding("key_norm", "key norm: accuracy lost", at_least=LOSES, resolution=1 / 512, states=False),
        Finding("best - random", "best of the four - random: accuracy", at_least=0.0, resolution=1 / 512, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("accuracy", "Question last", "slots kept", "share that is right", log_x=True),
        Plot("loss", "Training", "step", "nats"),
    )

    streaming: str = "streaming(budget={budget})"
    h2o: str = "h2o(budget={budget})"
    snapkv: str = "snapkv(budget={budget}, window={window})"
    key_norm: str = "key_norm(budget={budget})"
    chance: str = "random(budget={budget})"
    bits: str = "quantized(bits=8, group=4, recent=4)"
    keys: int = setting(8, tiny=4)
    values: int = setting(4, tiny=2)
    pairs: int = setting(6, tiny=2)
    front: int = setting(48, tiny=12)
    """tokens that pairs stand among"""
    gap: int = setting(16, tiny=6)
    """fillers behind them"""
    fillers: int = setting(8, tiny=4)
    budgets: tuple[int, ...] = setting((12, 24, 48), tiny=(6, 8))
    """slots kept; the findings are those of the middle one"""
    window: int = setting(8, tiny=2)
    """last rows by which SnapKV chooses"""
    dim: int = setting(32, tiny=16)
    heads: int = 4
    steps: int = setting(600, tiny=250)
    batch: int = 32
    samples: int = setting(512, tiny=200)
    learning_rate: float = 1e-2

    def observe(self, seed: int) -> Observation:
        model, nats = self.trained(seed)
        tokens, answers = self.rows(self.samples, generator(seed, "new"))
        exact = self.accuracy(model, None, tokens, answers)
        policies = {
            "streaming": self.streaming,
            "h2o": self.h2o,
            "snapkv": self.snapkv,
            "key_norm": self.key_norm,
            "random": self.chance,
        }
        right = {
            name: [
                self.accuracy(model, spec.format(budget=b, window=self.window), tokens, answers) for b in self.budgets
            ]
            for name, spec in policies.items()
        }
        middle = (len(self.budgets) - 1) // 2
        whole = tokens.shape[1]
        held = [
            self.accuracy(model, spec.format(budget=whole, window=self.window), tokens, answers)
            for spec in policies.values()
        ]
        told = self.snapkv.format(budget=self.budgets[middle], window=self.window)
        lost = {name: exact - right[name][middle] for name in policies}
        four = [lost[name] for name in policies if name != "random"]
        values = {
            "exact": exact,
            "8 bits": exact - self.accuracy(model, self.bits, tokens, answers),
            "all held": max(abs(exact - each) for each in held),
            "snapkv, told": exact - self.accuracy(model, told, tokens, answers, told=True),
            "failing": float(sum(each >= LOSES for each in four)),
            "best - random": lost["random"] - min(four),
            **lost,
            "unfinished": change(nats),
        }
        curves: dict[str, Curve] = {name: (self.budgets, found) for name, found in right.items()}
        curves["whole cache"] = self.budgets, [exact] * len(self.budgets)
        return Observation(values, {"accuracy": curves, "loss": {"training": averages(nats)}})

    @property
    def again(self) -> int:
        """The token that asks once more."""
        return self.keys + self.values + self.fillers

    def trained(self, seed: int) -> tuple[LanguageModel, list[float]]:
        """A decoder that answers twice, and the nats of its training."""
        model = decoder(self, self.again + 1, seed, layers=1, short_convolution=2, max_length=self.front + self.gap + 2)
        draw = generator(seed, "rows")

        def loss() -> Tensor:
            tokens, answers = self.rows(self.batch, draw)
            logits = model(tokens).logits[:, -2:]
            return cross_entropy(logits.mT, answers[:, None].expand(-1, 2) + self.keys)

        return model, trained(model, loss, steps=self.steps, learning_rate=self.learning_rate)

    def rows(self, count: int, draw: torch.Generator) -> tuple[Int[Tensor, "count length"], Int[Tensor, " count"]]:
        """Pairs among fillers, a gap, a key and the token that asks again; and the key's value.

        Keys come first, then values, then fillers. A key stands right before its value.
        """
        key = torch.rand(count, self.keys, generator=draw).argsort(1)[:, : self.pairs]
        value = torch.randint(self.values, (count, self.pairs), generator=draw)
        place = 2 * torch.rand(count, self.front // 2, generator=draw).argsort(1)[:, : self.pairs]
        text = self.keys + self.values + torch.randint(self.fillers, (count, self.front + self.gap), generator=draw)
        text = text.scatter(1, place, key).scatter(1, place + 1, self.keys + value)
        asked = torch.randint(self.pairs, (count, 1), generator=draw)
        last = torch.full_like(asked, self.again)
        return torch.cat([text, key.gather(1, asked), last], 1), value.gather(1, asked)[:, 0]

    @torch.no_grad()
    def accuracy(
        self, model: LanguageModel, policy: str | None, tokens: Tensor, answers: Tensor, *, told: bool = False
    ) -> float:
        """The share of right answers to the token that asks again, under a policy.

        Args:
            model: the decoder.
            policy: of its cache; None: the whole cache.
            tokens, answers: as `rows`.
            told: a policy that chooses once does so behind the key, not before it.
        """
        model.reduce_cache(policy)
        cut = tokens.shape[1] - (1 if told else 2)
        with compressing(model):
            state = model(tokens[:, :cut], state=model.initial_state(len(tokens))).state
        found = model(tokens[:, cut:], state=state).logits[:, -1, self.keys : self.keys + self.values].argmax(-1)
        model.reduce_cache(None)
        return float((found == answers).double().mean())
