"""Copying: repeat a random sequence after a separator."""

from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.config import CopyConfig
from regard_lab.tasks.synthetic import SyntheticTask


class CopyTask(SyntheticTask):
    """Copying x_1 .. x_m after a separator, with m = length / 2.

    Inputs x_1 .. x_m 0 x_1 .. x_{m-1}; targets IGNORE m times, then x_1 .. x_m: position m + i predicts the token m
    positions back. x is uniform over 1 .. vocab_size - 1, so that only looking back beats 1 / (vocab_size - 1).

    Args:
        config: sizes.
        seed: of all sequences.

    Example:
        >>> example = CopyTask(CopyConfig(vocab_size=8, length=6)).examples("valid")[0]
        >>> bool((example.targets[3:] == example.inputs[:3]).all())
        True

    Source: Graves, Wayne & Danihelka 2014, "Neural Turing machines", section 4.1.
    """

    name: ClassVar[str] = "copy"

    def __init__(self, config: CopyConfig, *, seed: int = 0):
        super().__init__(config, seed=seed)

    def draw(self, generator: np.random.Generator) -> tuple[Int64[np.ndarray, "length"], Int64[np.ndarray, "length"]]:
        half = self.length // 2
        tokens = generator.integers(1, self.vocab_size, size=half)
        inputs = np.concatenate([tokens, [0], tokens[:-1]])
        targets = np.concatenate([np.full(half, IGNORE, np.int64), tokens])
        return inputs, targets

    def solve(self, inputs: Int64[np.ndarray, "length"]) -> Int64[np.ndarray, "length"]:
        """The token half a sequence back; 0 in the first half."""
        half = self.length // 2
        return np.concatenate([np.zeros(half, np.int64), inputs[:half]])
