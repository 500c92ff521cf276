import hashlib

import numpy as np
import pytest

from regard.core.errors import DataError
from regard_lab.training.data_order import DataOrder, Shuffle, permutation


def literal(seed: int, epoch: int, count: int) -> list[int]:
    """SplitMix64 in Python integers, from its published pseudocode."""
    mask = 2**64 - 1
    state = int.from_bytes(hashlib.sha256(repr((seed, epoch)).encode()).digest()[:8], "little")
    keys = []
    for index in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        keys.append((z ^ (z >> 31), index))
    return [index for _, index in sorted(keys)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1000])
@pytest.mark.parametrize("epoch", [0, 5])
def test_permutation_equals_the_literal_one(count, epoch):
    assert permutation(11, epoch, count).tolist() == literal(11, epoch, count)


def test_every_example_once_an_epoch_and_batches_span_its_end():
    order = DataOrder(10, 4, seed=1)
    stream = [example for step in range(5) for example in order.batch(step)]
    assert sorted(stream[:10]) == list(range(10))
    assert sorted(stream[10:]) == list(range(10))
    assert stream == [*permutation(1, 0, 10).tolist(), *permutation(1, 1, 10).tolist()]


def test_a_batch_depends_on_its_step_alone():
    inorder = DataOrder(7, 3, seed=2)
    batches = [inorder.batch(step) for step in range(20)]
    for step in (19, 0, 7, 13):
        assert DataOrder(7, 3, seed=2).batch(step) == batches[step]
        assert inorder.batch(step) == batches[step]


def test_every_example_of_a_batch_has_its_epoch():
    """A batch may end one and begin the next."""
    order = DataOrder(5, 3, seed=0)
    assert [order.epochs(step) for step in range(4)] == [[0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 2, 2]]


def test_an_empty_split_is_refused():
    with pytest.raises(DataError, match="no example"):
        DataOrder(0, 1, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000])
def test_a_computed_order_has_every_example_once(count):
    for seed, epoch in ((0, 0), (1, 0), (0, 1)):
        shuffle = Shuffle(seed, epoch, count)
        assert sorted(shuffle[place] for place in range(count)) == list(range(count))


def test_a_computed_order_never_changes():
    """Written down once: runs that go on need it."""
    assert [Shuffle(3, 2, 10**9)[place] for place in range(3)] == [7064191, 424950322, 551107158]
    assert DataOrder(10**9, 3, 3, streamed=True).batch(2 * 10**9 // 3 + 1)[0] == Shuffle(3, 2, 10**9)[1]


def test_a_computed_order_is_mixed():
    """Places and examples are independent: no correlation, and every sixteenth of the places reaches every sixteenth of
    the examples as often as chance has it (chi-square with 225 degrees of freedom, 5 standard deviations)."""
    count = 20_000
    shuffle = Shuffle(0, 0, count)
    found = np.array([shuffle[place] for place in range(count)])
    places = np.arange(count)
    assert abs(np.corrcoef(places, found)[0, 1]) < 5 / count**0.5
    table = np.histogram2d(places, found, bins=16)[0]
    expected = count / 256
    assert abs(((table - expected) ** 2 / expected).sum() - 225) < 5 * (2 * 225) ** 0.5
    assert (
        len({tuple(Shuffle(seed, epoch, 50)[at] for at in range(50)) for seed in range(3) for epoch in range(3)}) == 9
    )


def test_streamed_examples_are_ordered_without_a_list():
    order = DataOrder(10**12, 4, seed=1, streamed=True)
    assert len(set(order.batch(0) + order.batch(10**9))) == 8
    few = DataOrder(10, 4, seed=1, streamed=True)
    stream = [example for step in range(5) for example in few.batch(step)]
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert DataOrder(10, 4, seed=1, streamed=True).batch(3) == few.batch(3)
