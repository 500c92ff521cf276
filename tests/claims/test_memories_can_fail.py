"""Claims on memories and caches: the parts that measure, with models whose answers are known."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from evidence import claims
from evidence.claims import (
    distances_do_not_help,
    eviction_question_last,
    longer_memory,
    memory_against_size,
    published_memory,
)
from evidence.claims._letters import text
from evidence.claims._plateau import lasting
from evidence.claims._segments import Rows, lagged, learned, read
from regard.models import LanguageModel, ModelConfig
from regard_lab.tasks.base import IGNORE
from tests.claims.memory_stand_ins import by_distance

pytestmark = pytest.mark.study

MADE = {
    "memory": {"steps": 200, "segment": 16, "dim": 32, "top": 8, "rows": 3},
    "large": {"steps": 80},
}
"""settings of short trainings on text that is made for one side"""


def test_bits_are_those_of_letters_that_every_memory_could_reach(monkeypatch):
    """Behind the longest memory, the same for all; the nats of a letter are its place here."""
    claim = claims.build("longer_memory", settings={"segment": 4, "rows": 5, "memories": (3, 7), "samples": 6})
    asked: dict[str, list[Tensor]] = {"train": [], "valid": []}

    def known(model: LanguageModel, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        asked["valid"].append(targets)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        return torch.arange(20.0).expand(6, 20), torch.zeros(())

    def trained(model: LanguageModel, rows, **_: object) -> list[float]:
        asked["train"].append(rows()[1])
        return [1.0]

    monkeypatch.setattr(longer_memory, "read", known)
    monkeypatch.setattr(longer_memory, "learned", trained)
    found = [claim.letters(length, 0, 1)[0] for length in (0, 3, 7)]
    assert found == pytest.approx([sum(range(7, 20)) / 13 / math.log(2)] * 3)
    for rows in asked.values():
        assert all(torch.equal(rows[0], other) for other in rows), "each memory has letters of its own"


@pytest.mark.parametrize("length", [0, 3, 40])
def test_a_memory_is_as_long_as_it_is_called(length):
    claim = claims.build("longer_memory", tiny=True)
    model = claim.model(length, 5, 8, 1, 0).eval()
    assert model.config.remembers == bool(length)
    tokens = torch.zeros(60, 72, dtype=torch.long)
    tokens[torch.arange(1, 60), 64 - torch.arange(1, 60)] = 3  # in row n, n letters before the segment of 64 to 71
    with torch.no_grad():
        nats = read(model, tokens, torch.zeros_like(tokens))[0][:, 64]
    reached = set(((nats - nats[0]).abs() > 1e-6).nonzero()[:, 0].tolist())
    assert reached == set(range(1, length + 1))


def test_a_lag_counts_what_can_be_known():
    inputs, targets = lagged(3, 24, 10, 5, torch.Generator().manual_seed(0))
    assert (targets[:, :9] == IGNORE).all()
    assert torch.equal(inputs[:, 1:][:, 9:], targets[:, 9:-1])
    assert torch.equal(targets[:, 9:], inputs[:, :15]), "ten letters later the same comes again"


@pytest.mark.parametrize(("told", "behind"), [(False, 2), (True, 1)])
def test_a_cache_is_reduced_before_the_question_unless_it_is_told(monkeypatch, told, behind):
    """Behind the text, and with the question in view behind the key; what asks again is never in the prompt."""
    claim = claims.build("eviction_question_last", tiny=True)
    tiny = dataclasses.replace(claim, steps=1)
    model, _ = tiny.trained(0)
    tokens, answers = claim.rows(4, torch.Generator().manual_seed(0))
    pieces, reading = [], []
    called = LanguageModel.forward

    def watched(self, tokens, **given):
        pieces.append(tokens)
        return called(self, tokens, **given)

    compressing = eviction_question_last.compressing

    def watching(model):
        reading.append(len(pieces))
        return compressing(model)

    monkeypatch.setattr(LanguageModel, "forward", watched)
    monkeypatch.setattr(eviction_question_last, "compressing", watching)
    claim.accuracy(model, "snapkv(budget=6, window=2)", tokens, answers, told=told)
    assert reading == [0]
    assert [piece.shape[1] for piece in pieces] == [tokens.shape[1] - behind, behind]
    assert torch.equal(torch.cat(pieces, 1), tokens)
    assert (tokens[:, -1] == claim.again).all()
    assert model.layers[0].cache is None, "the next measurement has the whole cache"


def test_answers_are_the_values_behind_the_keys_that_are_asked():
    claim = claims.build("eviction_question_last", tiny=True)
    tokens, answers = claim.rows(50, torch.Generator().manual_seed(1))
    for row, answer in zip(tokens.tolist(), answers.tolist(), strict=True):
        text, key = row[:-2], row[-2]
        assert text.count(key) == 1
        assert text[text.index(key) + 1] == claim.keys + answer
        assert sum(token < claim.keys for token in text) == claim.pairs
        assert all(token >= claim.keys + claim.values for token in text[claim.front :])


def test_distances_that_tell_do_help_and_neighbours_of_other_letters_do_not(monkeypatch):
    """Which of the neighbours is right is said by the distance alone; a control wants the neighbours to be read."""
    monkeypatch.setattr(distances_do_not_help.DistancesDoNotHelp, "near", by_distance(far=1e4))
    claim = claims.build("distances_do_not_help", tiny=True, settings={"steps": 80})
    values = claim.observe(0).values
    assert values["distances"] > distances_do_not_help.EFFECT
    assert values["reads"] == 1


def test_a_difference_that_more_steps_change_says_nothing_of_distances(monkeypatch):
    monkeypatch.setattr(distances_do_not_help, "change_with_steps", lambda difference, steps: 0.021)
    found = claims.measure(claims.build("distances_do_not_help", tiny=True), range(1))
    assert found["verdict"] == "inconclusive"
    assert lasting(distances_do_not_help.EFFECT).title in {
        one["title"] for one in found["controls"] if not one["reached"]
    }


def test_windows_are_apart_and_their_letters_are_the_entries_in_order(tmp_path):
    claim = claims.build("distances_do_not_help", tiny=True)
    windows = claim.drawn("train", 24, 0)
    whole = "".join(chr(96 + letter) for letter in text("train").tolist())
    begins = [whole.index("".join(chr(96 + letter) for letter in row.tolist())) for row in windows]
    assert min(after - before for before, after in itertools.pairwise(sorted(begins))) >= claim.length + 1
    model = claim.model(27, 0, 1, 0, None)
    store = claim.store(model, windows, tmp_path / "store")
    entries = torch.arange(windows[:, 1:].numel()).view(-1, 1)
    itself = claim.looked(model, store, windows, 2)
    apart_from_all = torch.arange(len(entries)) % claim.length >= claim.skipped  # contexts of few letters are equal
    assert torch.equal(itself.neighbours.ids[apart_from_all, :1], entries[apart_from_all])
    apart = claim.looked(model, store, windows, 2, own=entries)
    assert not (apart.neighbours.ids == entries).any()
    near = claim.near(claim.looked(model, store, windows, claim.k))
    assert near.tokens.shape == (24, claim.length, claim.k)
    assert torch.equal(near.tokens[:, claim.skipped :, 0], windows[:, 1 + claim.skipped :])
    part = claim.part(itself, slice(3, 5))
    assert torch.equal(part.targets, windows[3:5, 1 + claim.skipped :].flatten())
    assert torch.equal(part.model, itself.model.view(24, -1)[3:5, claim.skipped :].flatten())


def test_far_names_are_those_of_earlier_segments_alone():
    shape = {"segment": 6, "segments": 3, "names": 3, "symbols": 5}
    tokens, targets, far = memory_against_size.bound(40, **shape, draw=torch.Generator().manual_seed(0))
    asked = 0
    for row, wanted, marked in zip(tokens.tolist(), targets.tolist(), far.tolist(), strict=True):
        values: dict[int, int] = {}
        for at in range(0, len(row), 2):
            name, value = row[at : at + 2]
            here = row[max(at - at % 12 - 4, 0) : at : 2]  # the convolution brings two pairs into the segment
            assert wanted[at : at + 2] == [values.get(name, IGNORE), IGNORE]
            assert marked[at : at + 2] == [name in values and name not in here, False]
            assert values.setdefault(name, value) == value
            asked += marked[at]
        assert set(values) <= set(range(5))
        assert set(values.values()) <= set(range(5, 10))
    assert asked > 40


def test_facts_are_the_same_in_every_row_and_their_value_counts_alone():
    table = torch.randint(7, (4, 4), generator=torch.Generator().manual_seed(0))
    tokens, targets = memory_against_size.facts(30, 5, table, torch.Generator().manual_seed(1))
    a, b, value = tokens.unflatten(1, (5, 3)).unbind(2)
    assert torch.equal(value - 8, table[a, b - 4])
    asked = targets.unflatten(1, (5, 3))
    assert torch.equal(asked[..., 1], value)
    assert (asked[..., 0::2] == IGNORE).all()


def test_rows_are_of_one_document_and_held_out_ones_are_others(monkeypatch):
    """Documents are runs of numbers here, of which no two share any."""
    known = {"train": [torch.arange(0, 30), torch.arange(100, 109)], "valid": [torch.arange(200, 212)]}
    monkeypatch.setattr(memory_against_size, "documents", lambda corpus: known)
    claim = claims.build("memory_against_size", tiny=True)
    for split, begin, end in (("train", 0, 30), ("valid", 200, 212)):
        inputs, targets = claim.drawn(split, 50, 9, torch.Generator().manual_seed(0))
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert inputs.min() == begin
        assert targets.max() == end - 1


def test_a_tenth_of_the_documents_is_held_out():
    split = memory_against_size.documents("state_of_the_union")
    sizes = {name: len(texts) for name, texts in split.items()}
    assert sizes["valid"] == pytest.approx(0.1 * sum(sizes.values()), abs=2)
    assert not {bytes(text[:500].tolist()) for text in split["train"]} & {
        bytes(text[:500].tolist()) for text in split["valid"]
    }


@pytest.mark.parametrize("kind", ["small", "memory", "large"])
def test_one_of_three_sees_earlier_segments_beyond_the_convolution(kind):
    claim = claims.build("memory_against_size", tiny=True)
    model, first = claim.model(kind, 0).eval(), claim.segment - memory_against_size.SHORT + 1
    tokens = torch.randint(256, (4, 2 * claim.segment), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, :first] = 1
    with torch.no_grad():
        differ = (model(tokens).logits - model(other).logits)[:, claim.segment :].abs().max()
    assert (float(differ) > 1e-4) == (kind == "memory")


def test_bits_are_counted_in_the_later_half_of_the_segments(monkeypatch):
    """The nats of a token are the number of its segment here."""
    claim = claims.build("memory_against_size", tiny=True, settings={"segment": 4, "read_rows": 6, "windows": 3})
    kept = torch.arange(40)
    monkeypatch.setattr(memory_against_size, "documents", lambda corpus: {"train": [kept], "valid": [kept]})

    def known(model: LanguageModel, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        assert inputs.shape == (3, 24)
        return torch.arange(6.0).repeat_interleave(4).expand(3, -1), torch.zeros(())

    monkeypatch.setattr(memory_against_size, "read", known)
    monkeypatch.setattr(memory_against_size, "learned", lambda *_, **__: [1.0])
    each, _ = claim.text("memory", 0, 1)
    assert each == pytest.approx([at / math.log(2) for at in range(6)])
    assert memory_against_size.counted(each) == pytest.approx(4 / math.log(2))


@pytest.mark.parametrize("won_by", ["memory", "large"])
def test_text_made_for_a_memory_is_won_by_it_and_text_made_for_size_by_size(won_by, monkeypatch):
    """Names that are bound anew in every row, and facts that are the same in all rows, in the place of text."""
    table = torch.randint(16, (12, 12), generator=torch.Generator().manual_seed(0))

    def made(self, split, count: int, length: int, draw: torch.Generator) -> Rows:
        if won_by == "memory":
            shape = {"segment": self.segment // 2, "segments": length // self.segment + 1, "names": 4, "symbols": 6}
            tokens, *_ = memory_against_size.bound(count, **shape, draw=draw)
        else:
            tokens, _ = memory_against_size.facts(count, length // 3 + 1, table, draw)
        return tokens[:, :length], tokens[:, 1 : length + 1]

    monkeypatch.setattr(memory_against_size.MemoryAgainstSize, "drawn", made)
    same = {"batch": 16, "learning_rate": 2e-2, "large_rate": 2e-2}
    claim = claims.build("memory_against_size", tiny=True, settings={**MADE[won_by], **same})
    memory, large = (memory_against_size.counted(claim.text(kind, 0, claim.steps)[0]) for kind in ("memory", "large"))
    assert (large - memory if won_by == "memory" else memory - large) > 0.1


NAMES = {"names": 4, "symbols": 6}


@pytest.fixture(scope="module")
def reader() -> LanguageModel:
    """A decoder without a memory that has learnt to find what was bound in its segment."""
    shape = ModelConfig(
        vocab_size=12, dim=32, layers=1, heads=2, attention=("cosine",), max_length=32, short_convolution=4
    )
    model, draw = LanguageModel(shape), torch.Generator().manual_seed(0)

    def rows() -> Rows:
        return memory_against_size.bound(32, segment=16, segments=1, **NAMES, draw=draw)[:2]

    learned(model, rows, steps=120, learning_rate=2e-2)
    return model


@pytest.mark.parametrize("telling", [True, False])
def test_a_published_decoder_gains_what_its_memories_hold_of_the_same_row(telling, reader, monkeypatch):
    """Texts whose names keep their values, and texts of which nothing can be known."""
    draw = torch.Generator().manual_seed(1)

    def text() -> Tensor:
        names, _, _ = memory_against_size.bound(1, segment=32, segments=1, **NAMES, draw=draw)
        return names[0] if telling else torch.randint(12, (64,), generator=draw)

    texts = [(str(1979 + at % 2), text()) for at in range(40)]
    monkeypatch.setattr(published_memory, "opened", lambda network: (reader, texts))
    same = {"layers": (0,), "segment": 8, "segments": 4, "steps": 20, "rows": 40}
    claim = claims.build("published_memory", tiny=True, settings=same)
    found, _ = claim.measured("on", 0, claim.steps)
    gained, own = (sum(found[name][2:]) - sum(found["with"][2:]) for name in ("without", "other"))
    for bits in (gained, own):  # of the two segments behind a whole one
        assert bits > 4 if telling else abs(bits) < 1


def test_rows_of_a_published_decoder_are_of_their_time_and_go_on_or_repeat_themselves(monkeypatch):
    old, new = torch.arange(40), torch.arange(100, 150)
    texts = [("1979", old), ("1980", new), ("1981", new[:6])]
    monkeypatch.setattr(published_memory, "opened", lambda network: (None, texts))
    claim = claims.build("published_memory", tiny=True, settings={"segment": 4, "segments": 4})
    draw = torch.Generator().manual_seed(0)
    for later, first in ((False, 0), (True, 100)):
        begun = set()
        for _ in range(30):
            inputs, targets = claim.row("on", draw, later=later)
            assert torch.equal(inputs + 1, targets)
            assert inputs.shape == (1, 16)
            begun.add(int(inputs[0, 0]) - first)
            assert 0 <= min(begun) <= max(begun) < 40
            inputs, targets = claim.row("twice", draw, later=later)
            assert torch.equal(inputs[:, :8], inputs[:, 8:])
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            assert targets[0, -1] == inputs[0, 0]
        assert len(begun) > 5
