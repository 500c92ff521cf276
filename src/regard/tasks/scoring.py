"""Metrics by the libraries that everybody else uses, each beside what needs no learning.

They come with the extra `metrics` and are imported on first use.
"""

import importlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from regard.errors import UnsupportedError
from regard.tasks.base import IGNORE, Split
from regard.tasks.classification import ClassificationTask
from regard.tasks.masked import MaskedTask
from regard.tasks.translation import Pair

Rows = dict[str, dict[str, float]]
"""What was measured -> metric -> value; the first row is the model."""


def library(name: str, what: str) -> Any:
    """A package of the extra `metrics`.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {"sklearn.metrics": "scikit-learn"}.get(name, name)
        raise UnsupportedError(f"{what} needs the {package} package: pip install 'regard[metrics]'") from error


def translation_rows(translations: Sequence[str], pairs: Sequence[Pair], training: Sequence[Pair]) -> Rows:
    """chrF and BLEU of translations against the references of `pairs`, from 0 to 100, as sacrebleu defines them.

    Beside them: the source left as it is; the translation that the training pairs have most often, for every source;
    and for every source their most frequent words, as many as their translations have on average.

    Raises:
        UnsupportedError: sacrebleu is not installed.

    Source: chrF: Popović 2015; BLEU: Papineni et al. 2002; the implementation: Post 2018.
    """
    sacrebleu = library("sacrebleu", "the quality of translations")
    targets = [pair.target for pair in training]
    words = Counter(word for target in targets for word in target.split())
    many = round(words.total() / len(targets))
    common = " ".join(word for word, _ in words.most_common(many))
    usual = Counter(targets).most_common(1)[0][0]
    systems = {
        "model": list(translations),
        "the source as it is": [pair.source for pair in pairs],
        "most frequent translation": [usual] * len(pairs),
        "most frequent words": [common] * len(pairs),
    }
    references = [[pair.target for pair in pairs]]
    return {
        name: {
            "chrf": sacrebleu.corpus_chrf(system, references).score,
            "bleu": sacrebleu.corpus_bleu(system, references).score,
        }
        for name, system in systems.items()
    }


def classification_rows(
    probabilities: Float[np.ndarray, "examples classes"],
    targets: Int64[np.ndarray, "examples"],
    task: ClassificationTask,
    *,
    documents: Int64[np.ndarray, "examples"] | None = None,
) -> Rows:
    """Accuracy, and F1 averaged over the classes, as scikit-learn defines them; beside them: always the class that most
    training examples have.

    Args:
        probabilities, targets: of the examples.
        task: whose classes they are.
        documents: of which text each example is a piece; texts are then measured too, by the sum of the probabilities
            of their pieces. None: an example is all there is.

    Raises:
        UnsupportedError: scikit-learn is not installed.
    """
    metrics = library("sklearn.metrics", "the quality of classification")
    labels = range(len(task.classes))
    majority = np.bincount(task.examples("train").targets, minlength=len(labels)).argmax()
    systems = {"model": (probabilities.argmax(1), targets)}
    if documents is not None:
        _, first, text = np.unique(documents, return_index=True, return_inverse=True)
        sums = np.zeros((len(first), len(labels)))
        np.add.at(sums, text, probabilities)
        systems["model, whole texts"] = (sums.argmax(1), targets[first])
    systems[f"always {task.classes[majority]}"] = (np.full_like(targets, majority), targets)
    return {
        name: {
            "accuracy": float(metrics.accuracy_score(wanted, found)),
            "macro_f1": float(metrics.f1_score(wanted, found, labels=labels, average="macro", zero_division=0)),
        }
        for name, (found, wanted) in systems.items()
    }


def masked_rows(accuracy: float, nats: float, task: MaskedTask, split: Split, chosen: Sequence[int]) -> Rows:
    """Share of hidden tokens that the model guesses, and nats for each of them; beside them the frequencies of tokens
    in the training text: always the most frequent one, and the code length under (count + 1) / (tokens + vocabulary).
    """
    examples = task.examples(split)
    size = task.tokenizer.vocab_size
    counts = np.bincount(task.examples("train").windows.tokens.ids, minlength=size).astype(np.int64)
    counts[task.tokenizer.separator] = 0  # no text holds it, so it is never chosen where there is text
    hidden = np.concatenate([examples[index].targets for index in chosen])
    hidden = hidden[hidden != IGNORE]
    code = np.log(counts.sum() + size) - np.log(counts + 1)
    return {
        "model": {"accuracy": accuracy, "nats": nats},
        "frequencies of tokens": {
            "accuracy": float((hidden == counts.argmax()).mean()),
            "nats": float(code[hidden].mean()),
        },
    }
