import hashlib

import pytest

from regard.errors import DataError
from regard.training.data_order import DataOrder, permutation


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


def test_permutations_differ_between_epochs_and_seeds():
    orders = {tuple(permutation(seed, epoch, 50).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


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


def test_batches_larger_than_the_split_go_round():
    batch = DataOrder(3, 7, seed=0).batch(0)
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]


def test_an_empty_split_is_refused():
    with pytest.raises(DataError, match="no example"):
        DataOrder(0, 1, 0)
