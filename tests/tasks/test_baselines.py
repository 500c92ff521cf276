"""Baselines: the n-gram model against its definition and against known answers; xz against known answers."""

import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from regard.core.errors import ConfigError, UnsupportedError
from regard_lab.tasks import CopyConfig, Task, TextConfig, build_task, ngram_bits_per_byte, xz_bits_per_byte
from regard_lab.tasks.baselines import ByteNGram


def codes(data: bytes, order: int) -> np.ndarray:
    """The n-gram that ends at each byte, zeros before the start."""
    padded = bytes(order - 1) + data
    return np.array([int.from_bytes(padded[at : at + order], "big") for at in range(len(data))], np.int64)


def kneser_ney(documents: list[bytes], order: int) -> dict[int, tuple[Counter, float]]:
    """Counts and discount of every order, by loops."""
    counts = Counter()
    for document in documents:
        padded = bytes(order - 1) + document
        counts.update(padded[at : at + order] for at in range(len(document)))
    tables = {}
    for k in range(order, 0, -1):
        once, twice = list(counts.values()).count(1), list(counts.values()).count(2)
        tables[k] = (counts, (once + 0.5) / (once + 2 * twice + 1.5))
        before = defaultdict(set)
        for gram in counts:
            before[gram[1:]].add(gram[0])
        counts = Counter({gram: len(first) for gram, first in before.items()})
    return tables


def probability(tables: dict[int, tuple[Counter, float]], gram: bytes) -> float:
    if not gram:
        return 1 / 256
    counts, discount = tables[len(gram)]
    after = [count for other, count in counts.items() if other[:-1] == gram[:-1]]
    lower = probability(tables, gram[1:])
    if not after:
        return lower
    return (max(counts[gram] - discount, 0) + discount * len(after) * lower) / sum(after)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_ngram_is_interpolated_kneser_ney(order: int) -> None:
    training, other = b"the union of the states, the state of the union", "the états, 天".encode()
    model, tables = (
        ByteNGram([codes(training[:9], order), codes(training, order)[9:]], order),
        kneser_ney([training], order),
    )
    grams = codes(other, order)
    wanted = [probability(tables, int(gram).to_bytes(order, "big")) for gram in grams]
    np.testing.assert_allclose(model.probability(grams), wanted, rtol=1e-12)


def test_contexts_stop_at_the_start_of_a_document_and_cross_windows(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"the {number} moons, the moon {'o' * number}{number}")
    task = build_task(TextConfig(corpus=str(tmp_path), length=4, holdout=0.2, cache=str(tmp_path / "cache")))
    documents: dict[str, list[bytes]] = {}
    for split in ("train", "valid"):
        rows = [b""] * task.examples(split).num_documents
        for example in task.examples(split):
            rows[example.document] += bytes(example.targets[example.targets >= 0].tolist())
        documents[split] = rows
    tables = kneser_ney(documents["train"], 4)
    for bits, document in zip(ngram_bits_per_byte(task, order=4).bits, documents["valid"], strict=True):
        padded = bytes(3) + document
        wanted = -sum(np.log2(probability(tables, padded[at : at + 4])) for at in range(len(document)))
        assert abs(bits - wanted) < 1e-9 * wanted


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Sixty documents of letters drawn evenly from sixteen: 4 bits a byte, and no model does better."""
    folder = tmp_path_factory.mktemp("letters")
    rng = random.Random(0)
    for number in range(60):
        (folder / f"{number}.txt").write_text("".join(rng.choices("abcdefghijklmnop", k=2000)))
    return build_task(TextConfig(corpus=str(folder), length=128, holdout=0.1, cache=str(folder / "cache")))


def test_known_entropy(letters: Task) -> None:
    ends = 1 / 2001  # the end mark costs a few bits more
    for order in (1, 2):
        bits = ngram_bits_per_byte(letters, order=order).bits_per_byte
        assert 4 - 0.02 < bits < 4 + 0.05 + 16 * ends
    assert 4 < xz_bits_per_byte(letters).bits_per_byte < 4.6
    assert ngram_bits_per_byte(letters, split="train", order=7).bits_per_byte < 3.5  # what it has seen costs less
    assert xz_bits_per_byte(letters, split="train").bits_per_byte < 0.05


def test_the_same_bytes_as_the_models_see(letters: Task) -> None:
    valid = letters.examples("valid")
    whole = ngram_bits_per_byte(letters, order=3)
    nbytes = np.bincount([example.document for example in valid], [example.nbytes for example in valid])
    assert whole.nbytes.tolist() == nbytes.tolist()
    assert xz_bits_per_byte(letters).nbytes.tolist() == [nbytes.sum()]
    half = range(0, len(valid), 2)
    parts = [ngram_bits_per_byte(letters, order=3, windows=some) for some in (half, range(1, len(valid), 2))]
    assert (parts[0].nbytes + parts[1].nbytes).tolist() == whole.nbytes.tolist()
    np.testing.assert_allclose(parts[0].bits + parts[1].bits, whole.bits, rtol=1e-12)
    chosen = xz_bits_per_byte(letters, windows=half)
    assert chosen.nbytes.tolist() == [sum(valid[index].nbytes for index in half)]


def test_less_training_text_is_worse_and_the_tokenizer_does_not_matter(tmp_path: Path) -> None:
    for number in range(30):
        rng = random.Random(number)
        words = rng.choices(["the", "state", "of", "union", "is", "strong", "free", "people", "work", "day"], k=300)
        (tmp_path / f"{number}.txt").write_text(" ".join(words))
    config = {"corpus": str(tmp_path), "length": 32, "cache": str(tmp_path / "cache")}
    one, other = build_task(TextConfig(**config)), build_task(TextConfig(tokenizer="bpe", vocab_size=280, **config))
    whole = ngram_bits_per_byte(one)
    np.testing.assert_allclose(ngram_bits_per_byte(other).bits, whole.bits, rtol=1e-12)
    assert whole.bits_per_byte < 1.2
    assert ngram_bits_per_byte(one, train_windows=range(8)).bits_per_byte > whole.bits_per_byte + 0.2
    assert xz_bits_per_byte(one, train_windows=range(8)).bits_per_byte > xz_bits_per_byte(one).bits_per_byte
    again = ngram_bits_per_byte(one, train_windows=[*range(8), *range(8)])
    assert again.bits.tolist() == ngram_bits_per_byte(one, train_windows=range(8)).bits.tolist()


def test_refused(letters: Task) -> None:
    for baseline in (ngram_bits_per_byte, xz_bits_per_byte):
        with pytest.raises(UnsupportedError, match="the task copy has none"):
            baseline(build_task(CopyConfig()))
        for windows in ([], [-1], [10_000_000]):
            with pytest.raises(ConfigError, match="windows must be some of"):
                baseline(letters, windows=windows)
    for order in (0, 8):
        with pytest.raises(ConfigError, match="from 1 to 7"):
            ngram_bits_per_byte(letters, order=order)
