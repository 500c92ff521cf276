import numpy as np
import pytest

from regard.text.tokenizer import ByteTokenizer, build_tokenizer
from regard_lab.tasks.sentences import in_front, sentence_numbers

TEXT = 'He said "No." Then?\n\nNothing! At 3.14 it ended...  "好。" 不！完'


def pieces(tokens: np.ndarray, numbers: np.ndarray, tokenizer) -> list[str]:
    return [tokenizer.decode(tokens[numbers == at]) for at in range(1, numbers.max() + 1)]


def test_sentences_end_where_a_reader_would_end_them():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(TEXT)
    numbers = sentence_numbers(ids, tokenizer, 99)
    assert pieces(ids, numbers, tokenizer) == [
        'He said "No."',
        " Then?",
        "\n\n",
        "Nothing!",
        " At 3.14 it ended...",
        '  "好。',
        '" 不！',
        "完",
    ]
    few = sentence_numbers(ids, tokenizer, 3)
    assert pieces(ids, few, tokenizer)[:2] == ['He said "No."', " Then?"]
    assert (few == np.minimum(numbers, 3)).all()
    assert sentence_numbers(tokenizer.encode("Yes."), tokenizer, 5).tolist() == [1, 1, 1, 1]
    assert sentence_numbers(ids[:0], tokenizer, 5).size == 0


@pytest.mark.parametrize("most", [2, 50])
def test_a_longer_token_belongs_to_where_it_begins(most):
    """By double loop over tokens and bytes."""
    tokenizer = build_tokenizer("bpe", 290, [TEXT * 20])
    ids = tokenizer.encode(TEXT)
    assert len(ids) < len(TEXT.encode())
    raw = sentence_numbers(ByteTokenizer().encode(TEXT), ByteTokenizer(), most)
    expected, at = [], 0
    for token in ids:
        expected.append(int(raw[at]))
        at += len(tokenizer.to_bytes([token]))
    assert sentence_numbers(ids, tokenizer, most).tolist() == expected


def test_a_token_in_front_for_every_sentence():
    found = in_front(np.array([7, 8, 9, 5]), np.array([1, 1, 2, 3]), 256)
    assert found.inputs.tolist() == [256, 256, 256, 7, 8, 9, 5]
    assert found.marks.tolist() == [-1, -2, -3, 1, 1, 2, 3]
