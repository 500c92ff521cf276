"""Multi-query associative recall (MQAR): remember key-value pairs, answer each key with its value later."""

from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.config import RecallConfig
from regard_lab.tasks.synthetic import SyntheticTask


class RecallTask(SyntheticTask):
    """Multi-query associative recall.

    With V tokens, length T and P pairs: positions 0 .. 2P - 1 hold k_1 v_1 k_2 v_2 .. with P distinct keys of
    1 .. V/2 - 1 and P distinct values of V/2 .. V - 1. The rest is S = (T - 2P) / 2 slots of two positions. P distinct
    slots are drawn one after the other with p_g ~ alpha g^(alpha - 1), g = 1 .. S; key i stands at the first position
    of its slot g_i, 2P + 2 (g_i - 1), and the target there is its value: the next-token convention with the answer
    itself hidden. Everything else is filler and does not count.

    The paper also asks V > T, which nothing here needs. Random filler may repeat a key; only questions count.

    Args:
        config: sizes, the exponent alpha and the filler.
        seed: of all sequences.

    Example:
        >>> task = RecallTask(RecallConfig(vocab_size=12, length=16, num_pairs=2, filler="zeros"))
        >>> int((task.examples("train")[0].targets != IGNORE).sum())
        2

    Source: Arora et al. 2023, "Zoology: measuring and improving recall in efficient language models", and its code.
    """

    name: ClassVar[str] = "recall"

    def __init__(self, config: RecallConfig, *, seed: int = 0):
        super().__init__(config, seed=seed)
        self.num_pairs = config.num_pairs
        self.filler = config.filler
        slots = np.arange(1, (self.length - 2 * self.num_pairs) // 2 + 1)
        weights = config.alpha * slots ** (config.alpha - 1.0)
        self.slot_probabilities = weights / weights.sum()

    def draw(self, generator: np.random.Generator) -> tuple[Int64[np.ndarray, "length"], Int64[np.ndarray, "length"]]:
        pairs, half = self.num_pairs, self.vocab_size // 2
        keys = 1 + generator.choice(half - 1, pairs, replace=False)
        values = half + generator.choice(self.vocab_size - half, pairs, replace=False)
        # Exponential clocks of rate p ring in the order of successive draws without replacement (Efraimidis & Spirakis
        # 2006): the law of np.random.choice(p=p, replace=False), ten times faster.
        clocks = generator.exponential(size=self.slot_probabilities.size) / self.slot_probabilities
        questions = 2 * pairs + 2 * np.argsort(clocks)[:pairs]
        if self.filler == "random":
            inputs = generator.integers(self.vocab_size, size=self.length)
        else:
            inputs = np.zeros(self.length, np.int64)
        inputs[0 : 2 * pairs : 2] = keys
        inputs[1 : 2 * pairs : 2] = values
        inputs[questions] = keys
        targets = np.full(self.length, IGNORE, np.int64)
        targets[questions] = values
        return inputs, targets

    def solve(self, inputs: Int64[np.ndarray, "length"]) -> Int64[np.ndarray, "length"]:
        """Look every token up among the pairs; 0 for what is no key."""
        table = np.zeros(self.vocab_size, np.int64)
        table[inputs[0 : 2 * self.num_pairs : 2]] = inputs[1 : 2 * self.num_pairs : 2]
        return table[inputs]


def minimal_length(window: int, num_pairs: int = 1) -> int:
    """The shortest even length that tests recall beyond a window: 4 windows, and room for 4 tokens a pair.

    Shorter sequences let a windowed mechanism look perfect because every answer is inside its window.

    Example:
        >>> minimal_length(32, num_pairs=8)
        128
    """
    return max(4 * window, 4 * num_pairs, 2)
