"""MQAR and copying against their definitions: SPEC entry K1, written out here a second time."""

import numpy as np
import pytest

from regard_lab.tasks import IGNORE, CopyConfig, RecallConfig, build_task, minimal_length

GOLDEN = RecallConfig(vocab_size=12, length=16, num_pairs=2, num_examples=3000, num_held_out=500)
SLOTS = (16 - 2 * 2) // 2


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    examples = build_task(GOLDEN, seed=0).examples("train")
    rows = [examples[index] for index in range(len(examples))]
    return np.stack([row.inputs for row in rows]), np.stack([row.targets for row in rows])


def slot_of(inputs: np.ndarray, targets: np.ndarray, pair: int) -> int:
    """The slot, from 1, of the question about a pair."""
    asked = [position for position in range(16) if targets[position] == inputs[2 * pair + 1]]
    assert len(asked) == 1
    assert (asked[0] - 4) % 2 == 0
    return (asked[0] - 4) // 2 + 1


def test_layout_of_vocabulary_12_pairs_2_length_16(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    for inputs, targets in zip(*drawn, strict=True):
        keys, values = inputs[[0, 2]], inputs[[1, 3]]
        assert len(set(keys)) == 2
        assert set(keys) <= {1, 2, 3, 4, 5}
        assert len(set(values)) == 2
        assert set(values) <= {6, 7, 8, 9, 10, 11}
        counted = [position for position in range(16) if targets[position] != IGNORE]
        assert len(counted) == 2  # one a pair
        for position in counted:
            assert position >= 4
            assert position % 2 == 0
            at = [0, 2][list(keys).index(inputs[position])]
            assert targets[position] == inputs[at + 1]  # the value stored right after that key
    assert {1, 2, 3, 4, 5} == set(drawn[0][:, [0, 2]].flat)
    assert {6, 7, 8, 9, 10, 11} == set(drawn[0][:, [1, 3]].flat)


def test_every_key_is_asked_once_and_filler_is_what_was_asked_for() -> None:
    zeros = build_task(RecallConfig(vocab_size=12, length=16, num_pairs=2, filler="zeros")).examples("train")
    for index in range(200):
        inputs, targets = zeros[index].inputs, zeros[index].targets
        questions = np.flatnonzero(inputs[4:]) + 4
        assert sorted(inputs[questions]) == sorted(inputs[[0, 2]])
        assert set(np.flatnonzero(targets != IGNORE)) == set(questions)


def test_random_filler_covers_the_vocabulary(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, targets = drawn
    filler = inputs[:, 4:][targets[:, 4:] == IGNORE]
    counts = np.bincount(filler, minlength=12)
    expected = filler.size / 12
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_slots_follow_the_power_law(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    """The first pair's slot has p_g ~ g^(.01 - 1); both slots are drawn one after the other without replacement."""
    weights = [g ** (0.01 - 1.0) for g in range(1, SLOTS + 1)]
    p = [weight / sum(weights) for weight in weights]
    slots = np.array([[slot_of(i, t, pair) for pair in (0, 1)] for i, t in zip(*drawn, strict=True)])
    n = len(slots)
    for g in range(1, SLOTS + 1):
        for got, want in (
            ((slots[:, 0] == g).mean(), p[g - 1]),
            ((slots[:, 1] == g).mean(), sum(p[h] * p[g - 1] / (1 - p[h]) for h in range(SLOTS) if h != g - 1)),
        ):
            assert abs(got - want) < 5 * np.sqrt(want * (1 - want) / n)
    # The test can tell: five standard errors are far less than what an exponent or index off by one would change.
    off_by_one = 2**-0.99 / sum(g**-0.99 for g in range(2, SLOTS + 2))
    assert abs(p[0] - off_by_one) > 10 * np.sqrt(p[0] * (1 - p[0]) / n)


@pytest.mark.parametrize("config", [GOLDEN, RecallConfig(), CopyConfig(length=12, vocab_size=5)])
def test_the_rule_solves_the_task_and_a_constant_does_not(config: RecallConfig | CopyConfig) -> None:
    task = build_task(config, seed=3)
    examples, right, constant, counted = task.examples("valid"), 0, 0, 0
    for index in range(300):
        _, targets, document, nbytes, *_ = examples[index]
        keep = targets != IGNORE
        right += (task.solve(examples[index].inputs) == targets)[keep].sum()
        constant += (targets[keep] == task.vocab_size - 1).sum()
        counted += keep.sum()
        assert (document, nbytes) == (index, 0)
    assert right == counted
    values = config.vocab_size - config.vocab_size // 2 if isinstance(config, RecallConfig) else config.vocab_size - 1
    chance = 1 / values
    assert abs(constant / counted - chance) < 5 * np.sqrt(chance * (1 - chance) / counted)


def test_copy_layout() -> None:
    examples = build_task(CopyConfig(length=8, vocab_size=6)).examples("train")
    copied = set()
    for index in range(100):
        inputs, targets, *_ = examples[index]
        first = list(inputs[:4])
        assert list(inputs) == [*first, 0, *first[:3]]
        assert list(targets) == [IGNORE] * 4 + first
        copied |= set(first)
    assert copied == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("config", [RecallConfig(num_held_out=400), CopyConfig(num_held_out=400)])
def test_splits_and_seeds_are_disjoint_and_access_is_pure(config: RecallConfig | CopyConfig) -> None:
    seen: set[bytes] = set()
    for seed in (0, 1):
        task = build_task(config, seed=seed)
        for split in ("train", "valid", "test"):
            seen |= {task.examples(split)[index].inputs.tobytes() for index in range(400)}
    assert len(seen) == 2 * 3 * 400
    one, other = (build_task(config, seed=1) for _ in range(2))
    assert one.fingerprint == other.fingerprint != build_task(config, seed=2).fingerprint
    backwards = [other.examples("valid")[index] for index in reversed(range(50))]
    for example, again in zip(one.examples("valid"), reversed(backwards), strict=False):
        assert np.array_equal(example.inputs, again.inputs)
        assert np.array_equal(example.targets, again.targets)
        assert example.inputs.dtype == example.targets.dtype == np.int64
    assert len(one.examples("train")) == 100_000
    for index in (-1, 400):
        with pytest.raises(IndexError):
            one.examples("valid")[index]


@pytest.mark.parametrize("window", [1, 7, 32, 100])
@pytest.mark.parametrize("pairs", [1, 4, 16])
def test_minimal_length(window: int, pairs: int) -> None:
    length = minimal_length(window, pairs)
    assert length >= 4 * window
    RecallConfig(length=length, num_pairs=pairs)
    CopyConfig(length=length)
