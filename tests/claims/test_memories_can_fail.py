"""Claims on memories and caches: the parts that measure, with models whose answers are known."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from regard import claims
from regard.claims import distances_do_not_help, eviction_question_last, longer_memory
from regard.claims._letters import text
from regard.claims._plateau import lasting
from regard.claims._segments import lagged, read
from regard.models import LanguageModel
from regard.tasks.base import IGNORE
from tests.claims.memory_stand_ins import by_distance

pytestmark = pytest.mark.study


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
