"""Own entries are found however the text was cut, and no others are."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.core.errors import DataError
from regard.text.reader import Encoded
from regard_lab.networks.evaluation import windows
from regard_lab.retrieval import Datastore, Own
from regard_lab.retrieval.documents import digest
from regard_lab.training.batches import collate
from tests.retrieval.conftest import DIM, VOCAB, filled

SEPARATOR = 10


class Separated:
    """A reader for `windows`: every letter is a token, between two separators."""

    def document(self, text: str) -> Encoded:
        ids = np.array([SEPARATOR, *(ord(letter) - ord("a") for letter in text), SEPARATOR])
        return Encoded(ids, np.ones_like(ids))


def letters(seed: int, length: int) -> str:
    return "".join(chr(ord("a") + at) for at in np.random.default_rng(seed).integers(10, size=length))


def unlike(text: str) -> str:
    """Another letter at every place."""
    return text.translate(str.maketrans("abcdefghij", "bcdefghija"))


def stored(folder: Path, texts: Sequence[str]) -> Datastore:
    """A datastore of texts; what its keys are does not matter."""
    documents = {}
    for at, text in enumerate(texts):
        ids = Separated().document(text).ids
        name = digest(ids) if digest(ids) not in documents else f"copy {at}"
        documents[name] = (torch.zeros(len(ids) - 1, DIM), torch.from_numpy(ids[1:]))
    return filled(folder, documents)


def entry(texts: Sequence[str], document: int, letter: int) -> int:
    """Number of the entry of a letter; behind every text there is the separator."""
    return sum(len(text) + 1 for text in texts[:document]) + letter


def own_of(store: Datastore, texts: Sequence[str], length: int = 24) -> tuple[list[set[int]], Own]:
    """Own entries of every target, with the separators."""
    examples, leaving_out, found = windows(list(texts), Separated(), length), Own(store), []
    for at in range(len(examples)):
        batch = collate(examples, [at], VOCAB)
        own = leaving_out(examples, batch)
        count = int((batch.targets[0] >= 0).sum())
        rows = [[]] * count if own is None else own[:count].tolist()
        found += [set(row) - {-1} for row in rows]
    return found, leaving_out


TEXT, OTHER = letters(0, 400), letters(1, 300)


@pytest.mark.parametrize(("begin", "stop"), [(80, 400), (37, 61), (383, 400)])
def test_a_part_of_a_stored_text_finds_its_entries(begin, stop, small_blocks, tmp_path):
    """Whatever blocks the entries are in: these have 10."""
    texts = [OTHER, TEXT]
    found, leaving_out = own_of(stored(tmp_path / "store", texts), [TEXT[begin:stop]])
    assert found[:-1] == [{entry(texts, 1, begin + at)} for at in range(stop - begin)]
    assert found[-1] in (set(), {entry(texts, 1, 400)})  # the separator behind it
    assert leaving_out.tally.own >= stop - begin
    assert leaving_out.tally.shared == 0


@pytest.mark.parametrize("cuts", [(0, 16, 33, 200, 400), (0, 90, 91, 110, 400)])
def test_a_text_finds_the_entries_of_its_stored_parts(cuts, small_blocks, tmp_path):
    parts = [TEXT[begin:stop] for begin, stop in pairwise(cuts)]
    texts = [*parts, OTHER]
    found, _ = own_of(stored(tmp_path / "store", texts), [TEXT])
    wanted = [{entry(texts, at, letter)} for at, part in enumerate(parts) for letter in range(len(part))]
    long = [len(part) >= 16 for part in parts for _ in part]
    assert [own for own, known in zip(found, long, strict=False) if known] == [
        own for own, known in zip(wanted, long, strict=True) if known
    ]


def test_two_cuts_that_overlap_find_what_they_have_in_common(tmp_path):
    texts = [TEXT[:250], OTHER]
    found, _ = own_of(stored(tmp_path / "store", texts), [TEXT[200:]])
    assert found[:50] == [{entry(texts, 0, 200 + at)} for at in range(50)]
    assert not any(found[51:])


def test_every_copy_and_every_shift_of_a_repetition_is_left_out(tmp_path):
    texts = [TEXT, "abcdefgh" * 10, TEXT]
    store = stored(tmp_path / "store", texts)
    found, _ = own_of(store, [TEXT[40:100]])
    assert found[:60] == [{entry(texts, at, 40 + letter) for at in (0, 2)} for letter in range(60)]
    found, _ = own_of(store, ["abcdefgh" * 4])
    assert found[0] == {entry(texts, 1, 8 * at) for at in range(9)}  # all that have 16 tokens in common
    found, _ = own_of(store, ["abcdefgh" * 10])
    assert found[0] == {entry(texts, 1, 0)}  # the very document: its place is known


def test_passages_of_other_documents_are_found_and_said(tmp_path):
    texts = [TEXT, OTHER]
    store = stored(tmp_path / "store", texts)
    quoted = letters(2, 60) + TEXT[100:200] + letters(3, 60)
    edited = TEXT[:150] + "aaaaaaaaaaaa" + TEXT[162:]
    new = letters(4, 300)
    for text, least in ((quoted, 64), (edited, 300), (new, 0)):
        found, leaving_out = own_of(store, [text])
        assert not any(found)
        assert (leaving_out.tally.targets, leaving_out.tally.own) == (len(text) + 1, 0)
        assert least <= leaving_out.tally.shared <= (2 * least and len(text))
        assert ("others are in passages of 32 tokens" in str(leaving_out.tally)) == bool(least)


def test_a_word_that_was_cut_has_other_tokens_and_the_rest_is_known(tmp_path):
    texts = [TEXT]
    store = stored(tmp_path / "store", texts)
    found, _ = own_of(store, ["aaaaaaaa" + TEXT[108:300] + "bbbbbbb"])
    assert found[8:200] == [{entry(texts, 0, 108 + at)} for at in range(192)]
    wrong = [at for at in range(8) if TEXT[100 + at] != "a"]
    assert len(wrong) > 1
    assert not any(found[: wrong[-1] + 1]), "behind the last that differs"


@pytest.mark.parametrize("others", [8, 9])
def test_eight_at_either_end_may_be_others_and_no_more(others, tmp_path):
    """At the end the separator is one of them."""
    store = stored(tmp_path / "store", [TEXT])
    ends, _ = own_of(store, [TEXT[108:300] + unlike(TEXT[300 : 299 + others])])
    begins, _ = own_of(store, [unlike(TEXT[108 - others : 108]) + TEXT[108:300]])
    known = [{entry([TEXT], 0, 108 + at)} for at in range(192)] if others == 8 else [set()] * 192
    assert (ends[:192], begins[others : others + 192]) == (known, known)


@pytest.mark.parametrize("left", [14, 15])
def test_behind_what_differs_there_are_16_or_nothing_is_known(left, tmp_path):
    """With the separator at the end."""
    found, _ = own_of(stored(tmp_path / "store", [TEXT]), [unlike(TEXT[-left - 8 : -left]) + TEXT[-left:]])
    known = [{entry([TEXT], 0, 400 - left + at)} for at in range(left + 1)]
    assert found[8:] == (known if left == 15 else [set()] * (left + 1))


def test_a_stored_text_of_16_entries_is_known(tmp_path):
    found, _ = own_of(stored(tmp_path / "store", [OTHER, TEXT[-15:]]), [TEXT])
    assert found[-16:] == [{entry([OTHER], 1, at)} for at in range(16)]


def test_in_a_batch_every_example_has_its_own(tmp_path):
    store = stored(tmp_path / "store", [TEXT])
    for texts in ([TEXT[:23], OTHER[:23]], [OTHER[:23], TEXT[:23]]):
        own = Own(store)(examples := windows(texts, Separated(), 24), collate(examples, [0, 1], VOCAB))
        assert own is not None
        rows = {text: own.unflatten(0, (2, 24))[at, :23, 0].tolist() for at, text in enumerate(texts)}
        assert rows == {TEXT[:23]: list(range(23)), OTHER[:23]: [-1] * 23}


def test_endless_repetitions_are_refused_and_end(tmp_path):
    store = stored(tmp_path / "store", ["a" * 200_000])
    with pytest.raises(DataError, match="repeats itself so often"):
        own_of(store, ["a" * 3000])
