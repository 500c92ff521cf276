"""Metrics against their definitions, written out."""

import math
from collections import Counter

import numpy as np
import pytest

from regard.core.errors import UnsupportedError
from regard_lab.tasks import MaskedConfig, build_task
from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.scoring import classification_rows, library, masked_rows, translation_rows
from regard_lab.tasks.translation import Pair


def chrf(hypotheses: list[str], references: list[str]) -> float:
    """chrF2 of a corpus: F with beta 2 of precision and recall, each the mean over n-grams of 1 to 6 characters without
    blanks (Popović 2015).
    """
    precision, recall = [], []
    for n in range(1, 7):
        matched = ours = theirs = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            a, b = (x.replace(" ", "") for x in (hypothesis, reference))
            grams = [Counter(x[at : at + n] for at in range(len(x) - n + 1)) for x in (a, b)]
            matched += (grams[0] & grams[1]).total()
            ours, theirs = ours + grams[0].total(), theirs + grams[1].total()
        if ours and theirs:  # n-grams longer than every sentence do not count
            precision.append(matched / ours)
            recall.append(matched / theirs)
    p, r = np.mean(precision), np.mean(recall)
    return float(100 * 5 * p * r / (4 * p + r))


PAIRS = [
    Pair("the light of men", "la luz de los hombres", "a"),
    Pair("in the word was life", "en ella estaba la vida", "b"),
]
TRAINING = [
    Pair("x", "la vida era la luz", "c"),
    Pair("y", "de la luz", "c"),
    Pair("z", "amén", "d"),
    Pair("w", "amén", "d"),
]


def test_translations():
    written = ["la luz de hombres", "en la palabra estaba la vida"]
    references = [pair.target for pair in PAIRS]
    rows = translation_rows(written, PAIRS, TRAINING)
    assert rows["model"]["chrf"] == pytest.approx(chrf(written, references), abs=1e-9)
    assert rows["the source as it is"]["chrf"] == pytest.approx(chrf([p.source for p in PAIRS], references), abs=1e-9)
    # Ten words in four translations: two or three a sentence; "la" comes three times, "luz" and "amén" twice.
    assert rows["most frequent words"]["chrf"] == pytest.approx(chrf(["la luz"] * 2, references), abs=1e-9)
    usual = rows["most frequent translation"]
    assert usual["bleu"] == 0
    assert 0 < usual["chrf"] < rows["model"]["chrf"]
    assert translation_rows(references, PAIRS, TRAINING)["model"] == pytest.approx({"chrf": 100, "bleu": 100}, abs=1e-9)


class Classes:
    """As much of a task as the metric needs: class 2 is the most frequent in training."""

    classes = ("a", "b", "c")

    def examples(self, split: str) -> "Classes":
        assert split == "train"
        return self

    targets = np.array([2, 2, 1])


def test_classes():
    targets, predicted = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    rows = classification_rows(np.eye(3)[predicted], targets, Classes())
    # Of a: precision 1/2, recall 1/2; of b: 1/2, 1; of c: 1, 2/3.
    assert list(rows) == ["model", "always c"]
    assert rows["model"] == pytest.approx({"accuracy": 4 / 6, "macro_f1": (1 / 2 + 2 / 3 + 4 / 5) / 3}, abs=1e-12)
    assert rows["always c"] == pytest.approx({"accuracy": 3 / 6, "macro_f1": (2 / 3) / 3}, abs=1e-12)


def test_texts_in_pieces():
    """Text 7 is an a by two of three pieces but for one that is sure of b; text 3 is a b."""
    probabilities = np.array([[0.6, 0.4, 0], [0.1, 0.9, 0], [0, 1, 0], [0.6, 0.4, 0]])
    rows = classification_rows(probabilities, np.array([1, 1, 1, 1]), Classes(), documents=np.array([7, 7, 3, 7]))
    assert rows["model"]["accuracy"] == 0.5
    assert rows["model, whole texts"] == pytest.approx({"accuracy": 1.0, "macro_f1": 1 / 3}, abs=1e-12)


def test_hidden_tokens(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{at} is followed by {at + 1}\n" for at in range(200)))
    config = MaskedConfig(corpus=str(tmp_path / "a.txt"), length=16, cache=str(tmp_path / "cache"))
    task = build_task(config)
    counts = Counter()
    for example in task.text.examples("train"):
        counts.update(example.targets[(example.targets != IGNORE) & (example.targets != 0)].tolist())
    chosen = [0, 3, 4]
    hidden = [x for at in chosen for x in task.examples("valid")[at].targets.tolist() if x != IGNORE]
    usual = counts.most_common(1)[0][0]
    total = sum(counts.values()) + 256
    rows = masked_rows(0.5, 1.25, task, "valid", chosen)
    assert rows["model"] == {"accuracy": 0.5, "nats": 1.25}
    assert rows["frequencies of tokens"] == pytest.approx(
        {
            "accuracy": np.mean([x == usual for x in hidden]),
            "nats": np.mean([-math.log((counts[x] + 1) / total) for x in hidden]),
        },
        rel=1e-12,
    )


def test_a_library_that_is_absent():
    with pytest.raises(
        UnsupportedError, match=r"this needs the nowhere_to_be package: pip install 'regard\[metrics\]'"
    ):
        library("nowhere_to_be", "this")
