"""What exits lose, token by token; passages that are drawn apart; a threshold that is put back."""

import math

import numpy as np
import pytest
import torch

from regard.core.errors import DataError, InputError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.testing.inputs import randn
from regard.text.reader import Encoded
from regard_lab.benchmark.exits import drawn, leaving_at, measure, passages

LENGTH = 9
GRID = (1.0, 0.05, 0.0)


def model_of(depth: str) -> LanguageModel:
    """Weights far from where they start, so that tokens leave after different blocks."""
    model = LanguageModel(ModelConfig(dim=16, heads=2, layers=4, vocab_size=20, depth=depth))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return model.eval()


def said_by(model: LanguageModel, start: int) -> list[int]:
    """A text whose every token is the likeliest one behind those before it."""
    ids = [start]
    while len(ids) <= LENGTH:
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


@pytest.fixture(scope="module")
@torch.no_grad()
def items() -> np.ndarray:
    """Passages that the full model guesses, that a model of one block guesses, and that neither does."""
    full, early = model_of("fixed"), model_of("early_exit(threshold=0.0)")
    rows = [said_by(full, 1), said_by(full, 2), said_by(early, 3), said_by(early, 4), list(range(5, 6 + LENGTH))]
    return np.array(rows)


@torch.no_grad()
def read(model: LanguageModel, row: list[int]) -> tuple[list[int], list[bool], list[float], list[int]]:
    """Of a passage alone: likeliest next tokens, whether they are right, nats, blocks of each token."""
    got = model(torch.tensor([row[:-1]]))
    likeliest = [max(range(20), key=logits.__getitem__) for logits in got.logits[0].tolist()]
    nats = []
    for logits, target in zip(got.logits[0].double().tolist(), row[1:], strict=True):
        nats.append(math.log(sum(math.exp(x - logits[target]) for x in logits)))
    right = [said == target for said, target in zip(likeliest, row[1:], strict=True)]
    return likeliest, right, nats, [4] * LENGTH if got.steps is None else got.steps[0].tolist()


def mean(values: list) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("loss", ["disagreement", "last", "accuracy"])
def test_losses_by_hand(items, loss):
    """Every passage alone, by a model that was built with the threshold."""
    got = measure(model_of("early_exit"), items, GRID, loss=loss, batch_size=2)
    full = [read(model_of("fixed"), row) for row in items.tolist()]
    wanted = np.zeros((5, 3))
    for at, threshold in enumerate(GRID):
        model = model_of(f"early_exit(threshold={threshold})")
        early = [read(model, row) for row in items.tolist()]
        for item, ((answers, hits, _, _), (said, right, _, _)) in enumerate(zip(full, early, strict=True)):
            differs = [one != other for one, other in zip(said, answers, strict=True)]
            wanted[item, at] = {
                "disagreement": mean(differs),
                "last": float(differs[-1]),
                "accuracy": max(0.0, mean(hits) - mean(right)),
            }[loss]
        steps = [step for _, _, _, taken in early for step in taken]
        assert got.exits[at].tolist() == [steps.count(count) for count in (1, 2, 3, 4)]
        assert got.layers[:, at].tolist() == pytest.approx([mean(taken) for _, _, _, taken in early])
        assert got.right[:, at].tolist() == pytest.approx([mean(right) for _, right, _, _ in early])
        assert got.nats[:, at].tolist() == pytest.approx([mean(nats) for _, _, nats, _ in early], rel=1e-5)
    assert got.full_right.tolist() == pytest.approx([mean(right) for _, right, _, _ in full])
    assert got.full_nats.tolist() == pytest.approx([mean(nats) for _, _, nats, _ in full], rel=1e-5)
    np.testing.assert_allclose(got.losses, wanted, atol=1e-12)
    assert not got.losses[:, 0].any(), "at 1 no token leaves"
    assert len(set(got.losses[:, 2].tolist())) > 1, "passages lose the same, which shows too little"
    if loss == "accuracy":
        assert got.right[2, 2] == 1 > got.full_right[2], "no passage gains, so that nothing shows what a gain counts"
        assert got.losses[2, 2] == 0 < got.losses[0, 2]


def test_a_last_token_is_not_the_first(items):
    """Some passage differs at one of them alone, so that `last` can be told from the first."""
    full, early = model_of("fixed"), model_of("early_exit(threshold=0.0)")
    pairs = [(read(full, row)[0], read(early, row)[0]) for row in items.tolist()]
    ends = {(one[0] == other[0], one[-1] == other[-1]) for one, other in pairs}
    assert {(True, False), (False, True)} & ends


@pytest.mark.parametrize("depth", ["light_exit(whole=0)", "early_exit(confidence=classifier)"])
def test_a_confidence_that_is_the_threshold_is_enough(items, depth):
    """Heads of zeros are sure by exactly 1/2."""
    model = model_of(depth)
    with torch.no_grad():
        for weight in model.depth.parameters():
            weight.zero_()
    assert measure(model, items, (0.51, 0.5)).layers.tolist() == [[4.0, 1.0]] * len(items)


@pytest.mark.parametrize("depth", ["early_exit(threshold=0.3)", "light_exit(threshold=0.6)"])
def test_a_threshold_is_put_back(items, depth):
    model = model_of(depth)
    before = model.depth.threshold
    measure(model, items, (0.9, 0.1))
    assert model.depth.threshold == before
    with leaving_at(model, 0.0):
        assert model.depth.threshold == 0.0
    assert model.depth.threshold == before
    with pytest.raises(InputError, match="99 is out of range"), leaving_at(model, 0.0):
        model(torch.full((1, 3), 99))
    assert model.depth.threshold == before, "after an error too"
    with pytest.raises(UnsupportedError, match="has no exits"), leaving_at(model_of("fixed"), 0.0):
        pass


def test_passages_stand_side_by_side():
    """None shares a token that is read with another, and none reaches across documents."""
    documents = [
        Encoded(np.arange(start, start + count), np.ones(count)) for start, count in ((0, 11), (50, 10), (90, 3))
    ]
    assert passages(documents, 3).tolist() == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [6, 7, 8, 9],
        [50, 51, 52, 53],
        [53, 54, 55, 56],
        [56, 57, 58, 59],
    ]
    assert passages(documents[2:], 3).shape == (0, 4)


def test_parts_are_disjoint_and_drawn_by_the_seed():
    found = np.arange(40).reshape(20, 2)
    one, other = drawn(found, 7, 9, seed=3)
    assert (len(one), len(other)) == (7, 9)
    rows = [tuple(row) for row in [*one.tolist(), *other.tolist()]]
    assert len(set(rows)) == 16, "a passage is in both parts"
    assert set(rows) <= {tuple(row) for row in found.tolist()}
    again = drawn(found + 100, 7, 9, seed=3)
    assert all((x + 100 == y).all() for x, y in zip((one, other), again, strict=True)), "the number and the seed alone"
    draws = {tuple(drawn(found, 7, seed=seed)[0][:, 0].tolist()) for seed in range(5)}
    assert len(draws) == 5
    (whole,) = drawn(found, 20, seed=0)
    assert sorted(whole[:, 0].tolist()) == found[:, 0].tolist() != whole[:, 0].tolist()
    with pytest.raises(DataError, match="has 20 passages of 1 tokens, and 21 are asked for"):
        drawn(found, 12, 9, seed=0)
