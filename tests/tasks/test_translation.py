import numpy as np
import pytest

from regard.core.errors import ConfigError, DataError
from regard_lab.tasks import TranslationConfig, build_task
from regard_lab.tasks.translation import BOOKS, HELD_OUT, TranslationTask

BYTES = TranslationConfig(tokenizer="bytes", length=400)
OPENINGS = {
    "Matthew": "The book of the genealogy of Jesus Christ",
    "Mark": "The beginning of the Good News of Jesus Christ",
    "Luke": "Since many have undertaken",
    "John": "In the beginning was the Word",
    "Acts": "The first book I wrote, Theophilus",
    "Romans": "Paul, a servant of Jesus Christ",
    "1 Corinthians": "Paul, called to be an apostle",
    "Hebrews": "God, having in the past spoken",
    "James": "James, a servant of God",
    "1 Peter": "Peter, an apostle of Jesus Christ",
    "2 Peter": "Simon Peter, a servant",
    "1 John": "That which was from the beginning",
    "2 John": "The elder, to the chosen lady",
    "3 John": "The elder to Gaius",
    "Jude": "Jude, a servant of Jesus Christ",
    "Revelation": "This is the Revelation",
}


@pytest.fixture(scope="module")
def verses() -> TranslationTask:
    return TranslationTask(BYTES)


def test_books_begin_where_their_first_verse_is(verses):
    first = {}
    for split in ("train", "valid", "test"):
        for pair in verses.examples(split).pairs:
            first.setdefault(pair.document, pair.source)
    for book, opening in OPENINGS.items():
        assert first[book].startswith(opening), book
    letters = [book for book, _ in BOOKS[5:18]]
    assert all(first[book].startswith("Paul") for book in letters)


def test_whole_books_are_held_out_and_nothing_leaks(verses):
    pairs = {split: verses.examples(split).pairs for split in ("train", "valid", "test")}
    books = {split: {pair.document for pair in found} for split, found in pairs.items()}
    assert books["valid"] == {"Hebrews", "James"}
    assert books["test"] == {"Acts"}
    assert books["train"] == {book for book, _ in BOOKS} - HELD_OUT.keys()
    held = [*pairs["valid"], *pairs["test"]]
    assert not {pair.source for pair in pairs["train"]} & {pair.source for pair in held}
    assert not {pair.target for pair in pairs["train"]} & {pair.target for pair in held}
    # Three sources are longer than 400 bytes, one of them 17,521 (a note of the English text).
    assert sum(len(found) for found in pairs.values()) + sum(verses.left_out.values()) == 7948
    assert 1 <= sum(verses.left_out.values()) <= 3


def test_an_example_shifts_the_target_by_one(verses):
    examples = verses.examples("test")
    example, pair = examples[5], examples.pairs[5]
    assert bytes(example.source.astype(np.uint8)) == pair.source.encode() + b"\0"
    assert bytes(example.inputs.astype(np.uint8)) == b"\0" + pair.target.encode()
    assert bytes(example.targets.astype(np.uint8)) == pair.target.encode() + b"\0"
    assert example.nbytes == len(pair.target.encode()) + 1


def lines(count: int, suffix: str = "") -> str:
    return "".join(f"sentence {at}\tfrase {at}{suffix.format(at // 10)}\n" for at in range(count))


def test_a_file_without_documents_holds_out_its_end(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text(lines(100), encoding="utf-8")
    task = build_task(TranslationConfig(corpus=str(path), tokenizer="bytes", holdout=0.1))
    sources = {split: [pair.source for pair in task.examples(split).pairs] for split in ("train", "valid", "test")}
    assert sources["train"] == [f"sentence {at}" for at in range(80)]
    assert sources["valid"] == [f"sentence {at}" for at in range(80, 90)]
    assert sources["test"] == [f"sentence {at}" for at in range(90, 100)]


def test_a_file_with_documents_holds_out_whole_ones(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text(lines(100, "\tchapter {}"), encoding="utf-8")
    task = build_task(TranslationConfig(corpus=str(path), tokenizer="bytes", holdout=0.2))
    found = {split: {pair.document for pair in task.examples(split).pairs} for split in ("train", "valid", "test")}
    assert [len(found[split]) for split in ("train", "valid", "test")] == [6, 2, 2]
    assert len(set.union(*found.values())) == 10


def test_repeated_sentences_do_not_train_and_long_ones_are_counted(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text("the end\tel otro\n" + lines(97) + "x " * 50 + "\ty\n" + "the end\tel fin\n", encoding="utf-8")
    task = build_task(TranslationConfig(corpus=str(path), tokenizer="bytes", holdout=0.02, length=40))
    assert "the end" not in {pair.source for pair in task.examples("train").pairs}
    assert task.left_out == {"train": 0, "valid": 0, "test": 1}
    assert [pair.target for pair in task.examples("test").pairs] == ["el fin"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\n", "line 2: expected source TAB target"),
        ("a\tb\nc\t \n", "line 2: .*text in it"),
        ("a\tb\tc\nd\te\n", "line 2: expected source TAB target TAB document"),
        ("a\tb\tc\td\n", "line 1: expected source TAB target TAB document"),
        ("a\tb\n" * 9, "every training pair is also held out"),
        ("\n\n", "is empty"),
        ("a\tb\nc\td\n", "2 lines, too few"),
        ("a\tb\tx\nc\td\ty\n", "fewer than three documents"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, content, message):
    path = tmp_path / "own.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        build_task(TranslationConfig(corpus=str(path), tokenizer="bytes"))


def test_lines_end_where_a_file_says_so(tmp_path):
    """And not at the other separators that Python knows."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one\u2028two\x0b {at}\tthree\u0085four {at}\r\n" for at in range(40)), newline="")
    task = build_task(TranslationConfig(corpus=str(path), length=64, tokenizer="bytes", vocab_size=None))
    assert sum(len(task.examples(split)) for split in ("train", "valid", "test")) == 40


def test_other_mistakes_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"did you mean 'new_testament\.en-es'"):
        build_task(TranslationConfig(corpus="new_testament.en-fr"))
    with pytest.raises(ConfigError, match="holds out the same books"):
        build_task(TranslationConfig(holdout=0.1))
    (tmp_path / "latin.tsv").write_bytes("a\tSeñor\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.tsv: no UTF-8: byte 0xf1"):
        build_task(TranslationConfig(corpus=str(tmp_path / "latin.tsv"), tokenizer="bytes"))
    (tmp_path / "own.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"reads \.tsv files"):
        build_task(TranslationConfig(corpus=str(tmp_path / "own.csv")))
    with pytest.raises(ConfigError, match="vocab_size"):
        TranslationConfig(tokenizer="bytes", vocab_size=300)
    with pytest.raises(DataError, match="none fits 2 tokens"):
        build_task(TranslationConfig(tokenizer="bytes", length=2))


def test_an_earlier_tokenizer_is_kept(verses):
    again = build_task(TranslationConfig(tokenizer="bpe", length=400), tokenizer=verses.tokenizer)
    assert again.vocab_size == 256
    assert again.fingerprint == verses.fingerprint
