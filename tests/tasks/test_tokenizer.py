"""Tokenizers: exact round trips, streams of whole characters, saved and loaded, wrong ids refused."""

import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from regard.core.errors import CheckpointError, ConfigError, DataError, InputError, ResourceError
from regard.text import tokenizer as tokenizing
from regard.text.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer, ends_of_words, load_tokenizer

SAMPLE = "明月几时有？把酒问青天。 不知天上宫阙，今夕是何年。 The state of the union is strong, né? 🙂 \r\n\t"
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return BpeTokenizer.train([SAMPLE, "the union of the states, the states of the union"] * 3, 300)


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest, bpe: BpeTokenizer) -> Tokenizer:
    return bpe if request.param == "bpe" else ByteTokenizer()


@settings(max_examples=60, deadline=None)
@given(text=TEXT | st.just(SAMPLE))
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == text
    assert tokenizer.nbytes(ids) == len(text.encode())
    assert tokenizer.separator not in ids


def test_vocabulary(bpe: BpeTokenizer) -> None:
    assert ByteTokenizer().vocab_size == 256
    assert ByteTokenizer().encode("né!").tolist() == [110, 195, 169, 33]
    assert bpe.vocab_size == 300
    assert len(bpe.encode("the union")) < len("the union")
    for tokenizer in (ByteTokenizer(), bpe):
        assert tokenizer.to_bytes([tokenizer.separator]) == b"\0"
        assert tokenizer.encode("").size == 0


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=40) | TEXT.map(str.encode), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_stream_of_any_bytes_equals_decoding_them_at_once(raw: bytes, cuts: list[int]) -> None:
    stream, edges = ByteTokenizer().stream(), [0, *sorted(cuts), len(raw)]
    pieces = [stream.feed(list(raw[start:stop])) for start, stop in pairwise(edges)]
    assert "".join(pieces) + stream.finish() == raw.decode("utf-8", "replace")


def test_stream_never_emits_half_a_character(tokenizer: Tokenizer) -> None:
    stream, shown = tokenizer.stream(), ""
    for index in tokenizer.encode(SAMPLE):
        shown += stream.feed([int(index)])
        assert SAMPLE.startswith(shown)
    assert shown == SAMPLE
    assert stream.finish() == ""


def test_stream_replaces_what_is_left_unfinished_and_starts_again() -> None:
    stream = ByteTokenizer().stream()
    assert stream.feed(list("天".encode()[:2])) == ""
    assert stream.finish() == "\ufffd"
    assert stream.feed([0x41]) == "A"
    *before, last = "天".encode()
    assert ByteTokenizer().stream(before).feed([last]) == "天"


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = load_tokenizer(path)
    assert type(again) is type(tokenizer)
    assert again.encode(SAMPLE).tolist() == tokenizer.encode(SAMPLE).tolist()
    assert again.to_json() == tokenizer.to_json()
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


def test_training_is_deterministic() -> None:
    texts = [SAMPLE, "the union of the states"] * 3
    assert BpeTokenizer.train(texts, 290).to_json() == BpeTokenizer.train(texts, 290).to_json()


@pytest.mark.parametrize("method", ["decode", "nbytes", "to_bytes"])
def test_wrong_ids(tokenizer: Tokenizer, method: str) -> None:
    for wrong in (-1, tokenizer.vocab_size):
        named = f"outside the vocabulary.* 0 to {tokenizer.vocab_size - 1}; .*:\n  {wrong} at position 2"
        with pytest.raises(InputError, match=named) as error:
            getattr(tokenizer, method)([1, 2, wrong])
        assert error.value.exit_code == 3


def test_text_that_is_no_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"U\+0000 at character 2"):
        tokenizer.encode("ab\0")
    with pytest.raises(InputError, match="surrogate pair at character 1"):
        tokenizer.encode("a\ud800")


def test_too_little_text_for_the_vocabulary() -> None:
    with pytest.raises(DataError, match="vocab_size="):
        BpeTokenizer.train(["abc"], 1000)
    with pytest.raises(ConfigError, match="256"):
        BpeTokenizer.train(["abc"], 100)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"kind": "words"}', '{"kind": "bpe"}', '{"kind": "bpe", "model": {}}', "\x80"]
)
def test_damaged_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match="damaged"):
        load_tokenizer(path)


def test_a_model_that_is_no_byte_level_bpe(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Model
    from tokenizers import models

    for vocabulary in ({"a": 0, "b": 1}, {"a": 0, "天": 1}):
        path = tmp_path / "tokenizer.json"
        model = json.loads(Model(models.BPE(vocabulary, [])).to_str())
        path.write_text(json.dumps({"kind": "bpe", "model": model}))
        with pytest.raises(CheckpointError, match="byte"):
            load_tokenizer(path)


def test_missing_and_unwritable_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot write"):
        ByteTokenizer().save(tmp_path / "file" / "tokenizer.json")


def test_learning_takes_time_by_the_length_of_a_text_without_spaces() -> None:
    """Twice the text takes twice the time: 60,000 characters took more than half a minute before."""
    draw = np.random.default_rng(0)
    text = "".join(map(chr, draw.integers(0x4E00, 0x4E00 + 200, 60_000)))
    began = time.process_time()
    tokenizer = BpeTokenizer.train([text], 500)
    assert time.process_time() - began < 5
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) < 2 * len(text)


WORDS = st.text(st.sampled_from("a'sr1l!。é中😀\t\u3000"), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(words=st.lists(WORDS.filter(lambda word: not word[-1].isspace())), ends=st.lists(st.text(" \n\t", max_size=3)))
def test_what_bpe_learns_from_is_cut_where_its_words_end(words: list[str], ends: list[str]) -> None:
    text = "".join(f"{word} {end}" for word, end in zip(words, ends, strict=False))
    before, tokenizing._LEARNED_CHARACTERS = tokenizing._LEARNED_CHARACTERS, 9
    try:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        parts = list(ends_of_words([text[:7], "", text[7:]]))
        assert "".join(parts) == text
        assert [word for part in parts for word, _ in split(part)] == [word for word, _ in split(text)]
        assert list(ends_of_words(["a" * 20])) == ["a" * 9, "a" * 9, "aa"]
    finally:
        tokenizing._LEARNED_CHARACTERS = before


def test_a_text_in_pieces_is_the_same_document(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "_PIECE_CHARACTERS", 9)
    for text in ("", "a", SAMPLE):
        parts = list(tokenizer.in_pieces([text[:5], text[5:]]))
        for found, wanted in zip(zip(*parts, strict=True), tokenizer.document(text), strict=True):
            assert np.concatenate(found).tolist() == wanted.tolist()
    assert len(parts) > 2


def test_bpe_learns_from_as_many_different_words_as_memory_allows(monkeypatch, caplog) -> None:
    """What is repeated counts once, and bundled text is far below."""
    monkeypatch.setattr(tokenizing, "DEFAULT_VOCAB_SIZE", 1)
    one, two, three = (" ".join(f"{word}{number}" * 2 for number in range(40)) for word in ("moon", "star", "sun"))
    monkeypatch.setattr(tokenizing, "_DIFFERENT_BYTES", 2)
    few = BpeTokenizer.train([one] * 9 + [two, three], 270)
    assert "bpe learns from the first 0.0 MiB of different words only" in caplog.text
    caplog.clear()
    assert BpeTokenizer.train([one] * 9 + [two], 270).to_json() == few.to_json()
    monkeypatch.setattr(tokenizing, "_DIFFERENT_BYTES", 100)
    assert BpeTokenizer.train([one] * 9 + [two, three], 270).to_json() != few.to_json()
    assert not caplog.text
