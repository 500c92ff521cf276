"""Metrics by the libraries that everybody else uses, each beside what needs no learning.

They come with the extra `metrics` and are imported on first use.
"""

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from regard.core.errors import UnsupportedError
from regard_lab.tasks.base import IGNORE, Split
from regard_lab.tasks.classification import ClassificationTask, Texts
from regard_lab.tasks.masked import MaskedTask
from regard_lab.tasks.pixels import Grid, ImagesTask
from regard_lab.tasks.stored_windows import StoredWindows
from regard_lab.tasks.translation import Pair

_MOST_WORDS = 20_000
"""different words that are counted, the most frequent ones"""
_IMAGES_AT_A_TIME = 1024
"""counted at a time: all at once would take eight times their memory and more"""
Rows = dict[str, dict[str, float]]
"""Name of a system -> metric -> value; the first row is the model."""


def library(name: str, what: str) -> Any:
    """A package of the extra `metrics`.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "scikit-learn" if name.startswith("sklearn.") else name
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
    average_words = round(words.total() / len(targets))
    common = " ".join(word for word, _ in words.most_common(average_words))
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
    texts: Sequence[str] | None = None,
) -> Rows:
    """Accuracy, and F1 averaged over the classes, as scikit-learn defines them; beside them: always the class that most
    training examples have; and of texts a linear support vector machine on the frequencies of words in each example,
    trained on all training examples.

    Args:
        probabilities, targets: of the examples.
        task: whose classes they are.
        documents: of which text each example is a piece; texts are then measured too, by the sum of the probabilities
            of their pieces. None: an example is all there is.
        texts: the text of each example; None: they are no texts.

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
    if texts is not None:
        systems["words without their order"] = (_by_words(task, texts), targets)
    return {
        name: {
            "accuracy": float(metrics.accuracy_score(wanted, predicted)),
            "macro_f1": float(metrics.f1_score(wanted, predicted, labels=labels, average="macro", zero_division=0)),
        }
        for name, (predicted, wanted) in systems.items()
    }


def _by_words(task: ClassificationTask, texts: Sequence[str]) -> Int64[np.ndarray, "examples"]:
    """The class of each text by its words alone: sublinear frequencies times inverse document frequencies.

    An ideograph is a word: Chinese has no spaces.

    Source: Joachims 1998, Text categorization with support vector machines.
    """
    train = task.examples("train")
    assert isinstance(train, Texts)
    words = library("sklearn.feature_extraction.text", "the quality of classification").TfidfVectorizer(
        token_pattern=r"[\u4e00-\u9fff]|\w+", sublinear_tf=True, max_features=_MOST_WORDS
    )
    machine = library("sklearn.svm", "the quality of classification").LinearSVC(random_state=0)
    machine.fit(words.fit_transform([train.text(at) for at in range(len(train))]), train.targets)
    return machine.predict(words.transform(texts))


def masked_rows(accuracy: float, nats: float, task: MaskedTask, split: Split, chosen: Sequence[int]) -> Rows:
    """Share of hidden tokens that the model guesses, and nats for each of them; beside them the frequencies of tokens
    in the training text: always the most frequent one, and the code length under (count + 1) / (tokens + vocabulary).
    """
    examples = task.examples(split)
    size = task.tokenizer.vocab_size
    windows = task.examples("train").windows
    if isinstance(windows, StoredWindows):  # counting its tokens would read all of it
        return {"model": {"accuracy": accuracy, "nats": nats}}
    counts = np.bincount(windows.tokens.ids, minlength=size).astype(np.int64)
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


def image_rows(nats: float, task: ImagesTask, split: Split, chosen: Sequence[int]) -> Rows:
    """Bits per dimension, of a model and of counts over all training images.

    Beside the model: the frequencies of levels in each slot, which is the best that any model without a context can do;
    and the frequencies of levels after that of the same channel in the pixel before, in raster order. Both with
    (count + 1/2) / (all + levels / 2).

    Source: the estimate: Krichevsky & Trofimov 1981.
    """
    images = task.examples(split).images[np.asarray(chosen)]
    training = task.examples("train").images
    rows = {"model": {"bits_per_dimension": nats / math.log(2)}}
    for name, contexts in (("levels in each place", _places), ("levels after the pixel before", _before)):
        rows[name] = {"bits_per_dimension": _counted(task.grid, training, images, contexts)}
    return rows


_Contexts = Callable[[Grid, Int64[np.ndarray, "batch height width channels"]], np.ndarray]


def _places(grid: Grid, levels: np.ndarray) -> np.ndarray:
    """The place itself."""
    return np.broadcast_to(np.arange(grid.length).reshape(levels.shape[1:]), levels.shape)


def _before(grid: Grid, levels: np.ndarray) -> np.ndarray:
    """The channel, and its level in the pixel before; the first pixel has a context of its own."""
    pixels = levels.reshape(len(levels), -1, grid.channels)
    before = np.concatenate([np.full_like(pixels[:, :1], grid.levels), pixels[:, :-1]], 1)
    return (before + np.arange(grid.channels) * (grid.levels + 1)).reshape(levels.shape)


def _counted(grid: Grid, training: np.ndarray, images: np.ndarray, contexts: _Contexts) -> float:
    """Bits per dimension of `images` under counts of (context, level) in `training`."""
    context_count = max(grid.length, grid.channels * (grid.levels + 1))
    counts = np.zeros((context_count, grid.levels), np.int64)
    for first in range(0, len(training), _IMAGES_AT_A_TIME):
        codes = _codes(grid, training[first : first + _IMAGES_AT_A_TIME], contexts)
        counts += np.bincount(codes, minlength=counts.size).reshape(counts.shape)
    bits = np.log2(counts.sum(1, keepdims=True) + grid.levels / 2) - np.log2(counts + 0.5)
    total = sum(
        bits.ravel()[_codes(grid, images[first : first + _IMAGES_AT_A_TIME], contexts)].sum()
        for first in range(0, len(images), _IMAGES_AT_A_TIME)
    )
    return float(total / images.size)


def _codes(grid: Grid, images: np.ndarray, contexts: _Contexts) -> np.ndarray:
    levels = images.astype(np.int64) * grid.levels // 256
    return (contexts(grid, levels) * grid.levels + levels).ravel()
