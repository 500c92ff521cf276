"""Claims on gated units: with a wrong thing in the place of the right one."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from evidence import claims
from evidence.claims._letters import learned as letters_learned
from evidence.claims._letters import nats, samples
from evidence.claims._units import OVER, finished, learned, opened
from regard.core.attention import generator
from regard.models import LanguageModel

pytestmark = pytest.mark.study


def test_gains_near_zero_leave_squared_weights_where_they_are():
    """Why the claims open their units: the largest gradient inside a unit is what Adam adds to its size, or less."""
    claim = claims.build("flash_against_gau")
    config = claim.config(claim.quadratic, 32, 0)
    text, largest = samples("train", 4, 64, generator(0, "text")), []
    for begin in (lambda model: None, opened):
        model = LanguageModel(config)
        begin(model)
        nats(model, text).backward()
        largest.append(max(float(w.grad.abs().max()) for n, w in model.named_parameters() if "value.weight" in n))
    assert largest[0] < 1e-6
    assert largest[1] > 1e-3


def test_a_training_ends_where_nothing_changes():
    """The learning rate ends at 0, and what is watched is asked in evaluation mode after nine tenths and at the end."""
    model, modes, asked = torch.nn.Linear(1, 1), [], []

    def loss() -> torch.Tensor:
        modes.append(model.training)
        return (model(torch.ones(1)) - 3).square().sum()

    def held_out() -> float:
        asked.append((len(modes), model.training))
        return float(model.weight.detach())

    course = finished(model, loss, held_out, steps=200, learning_rate=0.1)
    assert all(modes)
    assert asked == [(180, False), (200, False)]
    assert not model.training
    assert 0 < course.change < 1e-2
    assert course.bits == float(model.weight.detach())
    assert OVER.tolerance < 0.02, "what the claims on gated units tell apart"


def test_bits_of_letters_are_those_of_the_text_that_is_held_out():
    claim = claims.build("gated_unit_half", tiny=True)
    new = samples("valid", 20, 16, generator(0, "valid"))
    model, course = learned(claim.of_blocks(0), new, steps=20, batch=4, learning_rate=1e-2)
    logits = model(new[:, :-1]).logits
    assert course.bits == pytest.approx(float(cross_entropy(logits.mT, new[:, 1:]).detach()) / math.log(2), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "missed"),
    [
        ({"mlp_dim": 64}, ["weights, twice the units / blocks", "weights, as many units / blocks"]),
        ({"mlp_dim": 160}, ["weights, twice the units / blocks"]),
    ],
)
def test_blocks_of_other_sizes_are_no_comparison(verdicts, settings, missed):
    assert verdicts("gated_unit_half", **settings)[::2] == ("inconclusive", missed)


def test_flash_that_is_not_linear_and_a_square_that_is_not_one(verdicts):
    _, found, missed = verdicts("flash_against_gau", flash="relu_squared(normaliser=visible)")
    assert missed == []
    assert found["FLASH: operations ~ length to the power of"] == "does not hold"
    _, _, missed = verdicts("flash_against_gau", quadratic="mixed_chunk(chunk_size={chunk_size}, normaliser=visible)")
    assert missed == ["quadratic: operations ~ length to the power of"]
    _, _, missed = verdicts("flash_against_gau", quadratic="softmax")
    assert missed == ["one chunk: FLASH - quadratic, largest difference"]


def test_the_last_chunk_alone_is_asked_for_the_same_letters():
    """A model that knows the letter behind the one that it reads, better where it is given more."""
    claim = claims.build("flash_against_gau", settings={"length": 8, "chunk_size": 4})
    new, given = torch.tensor([[1, 5, 2, 7, 3, 9, 4, 8, 6], [20, 11, 13, 12, 17, 14, 19, 15, 16]]), []
    behind = dict(zip(new[:, :-1].flatten().tolist(), new[:, 1:].flatten().tolist(), strict=True))

    class Known(torch.nn.Module):
        def forward(self, tokens):
            given.append(tokens.tolist())
            logits = torch.zeros(*tokens.shape, 27)
            for row, letters in enumerate(tokens.tolist()):
                for at, letter in enumerate(letters):
                    logits[row, at, behind[letter]] = at + 1.0  # 5 to 8 behind the others, 1 to 4 alone
            return type("Output", (), {"logits": logits})

    def bits(sure: float) -> float:
        return math.log2(math.exp(sure) + 26) - sure / math.log(2)

    lost = claim.across(Known(), new)
    assert given == [[row[:8] for row in new.tolist()], [row[4:8] for row in new.tolist()]]
    wanted = sum(bits(sure) for sure in (1, 2, 3, 4)) / 4 - sum(bits(sure) for sure in (5, 6, 7, 8)) / 4
    assert lost == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("learn", [learned, letters_learned], ids=["units", "letters"])
def test_models_are_trained_on_letters_that_are_not_held_out(learn, monkeypatch):
    """Training text that goes round one way, held-out text that goes the other way: what is learned is the former."""
    texts = {"train": torch.arange(3000) % 3 + 1, "valid": 3 - torch.arange(3000) % 3}
    monkeypatch.setattr("evidence.claims._letters.text", texts.__getitem__)
    claim, bits = claims.build("gated_unit_half", tiny=True), {}
    for split in texts:
        new = samples(split, 20, 16, generator(0, "new"))
        found = learn(claim.of_blocks(0), new, steps=60, batch=4, learning_rate=1e-2)
        bits[split] = found[1].bits if learn is learned else found[0]
    assert bits["train"] < 0.5
    assert bits["valid"] > 3


@pytest.mark.parametrize(
    ("settings", "missed"),
    [
        ({"scaled": "entropy_scaled(base_length=8)"}, "trained length: same weights, largest difference"),
        (
            {"summed": "relu_squared(normaliser=const, constant=1.0)"},
            "trained length: same weights, largest difference",
        ),
        ({"window": "local(window=24)"}, "window of 8: growth at the longest"),
    ],
)
def test_units_that_are_not_what_the_controls_say(verdicts, settings, missed):
    verdict, _, found = verdicts("entropy_scaled_gau_transfer", **settings)
    assert (verdict, found) == ("inconclusive", [missed])


def test_the_same_letters_are_asked_at_every_length():
    claim, seen = claims.build("entropy_scaled_gau_transfer", tiny=True), []

    class Reader(torch.nn.Module):
        def forward(self, tokens):
            seen.append(tokens)
            return type("Output", (), {"logits": torch.zeros(*tokens.shape, 28)})

    assert len({round(bits, 5) for bits in claim.bits(Reader(), 0)}) == 1
    assert [tokens.shape[1] for tokens in seen] == list(claim.lengths)
    middles = [tokens[:, (tokens.shape[1] - 8) // 2 :][:, :8] for tokens in seen]
    assert all(torch.equal(middle, middles[0]) for middle in middles)
