"""A rare name that was seen is known again.

Claim: What was said once can be said again exactly by softmax attention (an induction head); linear attention blends it
with everything that begins alike.
Source: Olsson et al. 2022, In-context learning and induction heads; Arora et al. 2023, Zoology (recall of rare n-grams
explains the gap in language modelling)
Control: Sharp softmax says what a program says that counts which bytes followed the same four bytes. Equal weights gain
nothing at the second occurrence.
Measured: Capitalised words of State of the Union addresses that occur at most 6 times in all of them, and twice within
the last 512 bytes. The address of a byte is the four before it, as a sum of random directions of the last one, two,
three and four; its value is the byte. Read at the bytes of the name after its fourth: accuracy, and loss in bits with
1/256 of the uniform distribution mixed in, at the second occurrence and at the first. Each mechanism at the best of the
lengths of vectors.
"""

import re
from collections import Counter
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims.code_retrieval import direction
from regard.catalog import build
from regard.core.info import Heads
from regard_lab.tasks import TextConfig
from regard_lab.tasks.corpus import open_corpus

SUFFIX = 4
"""bytes of context that address what follows; a name counts from its fifth byte on"""
FLOOR = 1 / 256
"""share of the uniform distribution in a prediction, so that a loss is finite"""


class Place(NamedTuple):
    """text: bytes that end with the second occurrence. first, second: where the two begin. size: of the name."""

    text: bytes
    first: int
    second: int
    size: int


class RareNames(Claim):
    controls = (
        Control("program", "softmax: answers unlike the program's", 0.0, tolerance=0.05),
        Control("uniform", "equal weights: accuracy, second - first", 0.0, tolerance=0.05),
    )
    findings = (
        Finding("softmax", "softmax: accuracy at the second occurrence", at_least=0.9),
        Finding("accuracy", "second occurrence: accuracy, softmax - linear (relu)", at_least=0.2),
        Finding("signed", "second occurrence: accuracy, softmax - linear (signed)", at_least=0.2),
        Finding("bits", "second occurrence: bits a byte, linear (relu) - softmax", at_least=1.0),
    )
    plots = (Plot("accuracy", "Accuracy", "", "share that is right"), Plot("loss", "Loss", "", "bits a byte"))

    softmax: str = "softmax"
    relu: str = "linear(feature_map=relu)"
    elu: str = "linear"
    signed: str = "linear(feature_map=identity, normalise=False)"
    random: str = "performer(num_features=256)"
    hybrid: str = "local_linear(window=64, feature_map=relu)"
    names: int = setting(40, tiny=6)
    length: int = setting(512, tiny=256)
    dim: int = 64
    sharpness: tuple[float, ...] = (4.0, 64.0)

    def observe(self, seed: int) -> Observation:
        occurrences = places(self.length)
        draw = np.random.default_rng(seed)
        chosen = [occurrences[at] for at in draw.permutation(len(occurrences))[: self.names]]
        specs = {
            "softmax": self.softmax,
            "relu": self.relu,
            "elu + 1": self.elu,
            "signed": self.signed,
            "random": self.random,
            "window and relu": self.hybrid,
            "uniform": "uniform",
        }
        read = {name: self.read(spec, chosen) for name, spec in specs.items()}
        bars = list(read)
        curves: dict[str, dict[str, Curve]] = {
            "accuracy": {f"occurrence {at + 1}": (bars, [read[name].accuracy[at] for name in bars]) for at in (0, 1)},
            "loss": {
                f"occurrence {at + 1}": (
                    [name for name in bars if name != "signed"],  # its weights are no distribution
                    [read[name].bits[at] for name in bars if name != "signed"],
                )
                for at in (0, 1)
            },
        }
        programmed = [answer(place.text, end) for place in chosen for end in ends(place.second, place.size)]
        differ = [a != b for a, b in zip(programmed, read["softmax"].answers, strict=True) if a is not None]
        values = {
            "program": sum(differ) / len(differ),
            "uniform": read["uniform"].accuracy[1] - read["uniform"].accuracy[0],
            "softmax": read["softmax"].accuracy[1],
            "accuracy": read["softmax"].accuracy[1] - read["relu"].accuracy[1],
            "signed": read["softmax"].accuracy[1] - read["signed"].accuracy[1],
            "bits": read["relu"].bits[1] - read["softmax"].bits[1],
        }
        return Observation(values, curves)

    def read(self, spec: str, chosen: list[Place]) -> "Read":
        """The answers of a mechanism at both occurrences, at its best length of the vectors."""
        return max(
            (self._read(spec, chosen, sharpness) for sharpness in self.sharpness), key=lambda one: one.accuracy[1]
        )

    def _read(self, spec: str, chosen: list[Place], sharpness: float) -> "Read":
        heads = Heads(count=1, key_dim=self.dim, value_dim=256, causal=True, max_length=self.length)
        mechanism = build(spec, heads).eval()
        right: tuple[list[bool], list[bool]] = ([], [])
        bits: tuple[list[float], list[float]] = ([], [])
        answers: list[int] = []
        for place in chosen:
            text = torch.tensor(list(place.text))
            context = addresses(place.text, self.dim) * sharpness**0.5 * self.dim**0.25
            # Key j is the context before byte j and its value byte j, so that no query sees the byte that it asks for.
            k, q = context[None, None, :-1], context[None, None, 1:]
            out = mechanism(q, k, one_hot(text, 256).float()[None, None]).values[0, 0]
            for at, begin in enumerate((place.first, place.second)):
                for end in ends(begin, place.size):
                    said = out[end - 1]
                    right[at].append(int(said.argmax()) == place.text[end])
                    probability = (1 - FLOOR) * said[place.text[end]].clamp_min(0) + FLOOR / 256
                    bits[at].append(float(-probability.log2()))
                    if at == 1:
                        answers.append(int(said.argmax()))
        first, second = (sum(x) / len(x) for x in right)
        before, after = (sum(x) / len(x) for x in bits)
        return Read((first, second), (before, after), answers)


class Read(NamedTuple):
    """accuracy, bits: at the first and the second occurrence. answers: at the second."""

    accuracy: tuple[float, float]
    bits: tuple[float, float]
    answers: list[int]


def ends(begin: int, size: int) -> range:
    """Where the bytes are that are asked for: those of a name after its fourth."""
    return range(begin + SUFFIX, begin + size)


def addresses(text: bytes, dim: int) -> Tensor:
    """A unit vector for the context before every byte, and for that after the last one."""
    rows = [
        sum((direction(text[max(0, at - size) : at], dim) for size in range(1, SUFFIX + 1)), np.zeros(dim))
        for at in range(len(text) + 1)
    ]
    return normalize(torch.from_numpy(np.stack(rows)), dim=-1).float()


def answer(text: bytes, at: int) -> int | None:
    """The byte that followed most often on the four bytes before `at`; None for a tie.

    Example:
        >>> chr(answer(b"abcd1 abcd1 abcd2 abcd", 22))
        '1'
    """
    suffix = text[at - SUFFIX : at]
    after = Counter(text[i + SUFFIX] for i in range(at - SUFFIX) if text[i : i + SUFFIX] == suffix).most_common(2)
    return after[0][0] if after and (len(after) == 1 or after[0][1] > after[1][1]) else None


@cache
def places(length: int) -> tuple[Place, ...]:
    """Rare names with the bytes up to their second occurrence."""
    texts = [document.text for document in open_corpus(TextConfig(corpus="state_of_the_union")).parse()]
    word = re.compile(r"\b[A-Z][a-z]{6,}\b")
    counts = Counter(name for text in texts for name in word.findall(text))
    lower = {name for text in texts for name in re.findall(r"\b[a-z]{7,}\b", text)}
    occurrences = []
    for text in texts:
        seen: dict[str, int] = {}
        for match in word.finditer(text):
            name = match.group()
            if counts[name] > 6 or name.lower() in lower:
                continue
            last = seen.get(name)
            seen[name] = match.start()
            if last is None:
                continue
            data = text[max(0, match.end() - length) : match.end()]
            first = last - (match.end() - len(data))
            if first >= SUFFIX and len(data) == length and data.isascii() and data.count(name) == 2:
                occurrences.append(Place(data.encode(), first, length - len(name), len(name)))
    return tuple(occurrences)
