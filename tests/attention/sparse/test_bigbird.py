"""bigbird: literal key sets, its random blocks, what it costs."""

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, LimitError, build
from regard.attention.sparse.bigbird import Bigbird
from regard.engines.tiles.plan import Positions, find_plan


def weights(spec: str, marks: Tensor | None, n: int, *, causal: bool, most: int = 48, seed: int = 0) -> Tensor:
    """The weights (heads, n, n) of zero logits: 1 / count for every key that counts once."""
    zeros = torch.zeros(1, 2, n, 4, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64).expand(1, 2, -1, -1)
    heads = Heads(count=2, key_dim=4, value_dim=n, causal=causal, max_length=most, seed=seed)
    return build(spec, heads)(zeros, zeros, eye, marks=marks).values[0]


def seen(rows: Tensor) -> list[list[set[int]]]:
    for row in rows.flatten(0, 1):
        assert ((row[row > 0] - 1 / int((row > 0).sum())).abs() < 1e-12).all(), "a key counts more than once"
    return [[set(row.nonzero().flatten().tolist()) for row in head] for head in rows]


def certain(n: int, size: int, first: int, last: int, spread: set[int], *, causal: bool) -> list[set[int]]:
    """Neighbouring blocks, global blocks as rows and columns, global tokens; causal: of those, j <= i."""
    found = []
    for i in range(n):
        keys = set()
        for j in range(n):
            rows, columns = i // size, j // size
            near = columns in (rows - 1, rows, rows + 1)
            spanning = rows < first or columns < first or last in (rows, columns)
            if (near or spanning or i in spread or j in spread) and (not causal or j <= i):
                keys.add(j)
        found.append(keys)
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "first", "last_global"), [(4, 1, True), (3, 2, False), (64, 0, True)])
def test_key_sets_without_chance(size: int, first: int, last_global: bool, causal: bool) -> None:
    last = 47 // size if last_global else -1
    for n in range(1, 41):
        marks = (torch.arange(n) * 7 % 11 == 3).long()[None] if n % 2 else None
        spread = set() if marks is None else set(marks[0].nonzero().flatten().tolist())
        spec = f"bigbird(block_size={size}, num_global={first}, num_random=0, last_global={last_global})"
        expected = [certain(n, size, first, last, spread, causal=causal)] * 2
        assert seen(weights(spec, marks, n, causal=causal)) == expected, n
        spec = f"bigbird(form=etc, block_size={size}, num_global={first})"
        expected = [certain(n, size, 0, -1, spread | set(range(first)), causal=causal)] * 2
        assert seen(weights(spec, marks, n, causal=causal)) == expected, n


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 2), (4, 3), (4, 40)])
def test_random_blocks_are_others(size: int, count: int, causal: bool) -> None:
    """Beyond the certain keys each ordinary row sees whole blocks: as many as asked for, or all that there are."""
    for n in (1, 5, 17, 40, 48):
        rows = seen(weights(f"bigbird(block_size={size}, num_random={count})", None, n, causal=causal))
        base, last = certain(n, size, 1, 47 // size, set(), causal=causal), 47 // size
        for head in rows:
            for i, keys in enumerate(head):
                assert base[i] <= keys
                more = {j // size for j in keys - base[i]}
                assert keys - base[i] == {j for j in range(n) if j // size in more} - base[i]
                if i // size in (0, last) or n < 48:
                    assert len(more) <= count
                    continue
                certainly = {j // size for j in base[i]} - ({i // size} if causal else set())
                free = (i // size if causal else 48 // size) - len(certainly)
                assert len(more) == min(count, max(free, 0))
        if size == 1 and n == 48:
            assert rows[0] != rows[1], "heads draw alike"


def test_chance_is_fixed_by_the_seed_alone() -> None:
    spec, options = "bigbird(block_size=2, num_random=2)", {"causal": True}
    longest = weights(spec, None, 48, **options)
    assert torch.equal(longest, weights(spec, None, 48, **options))
    assert not torch.equal(longest, weights(spec, None, 48, **options, seed=1))
    for n in (7, 30):  # a shorter call is its start; so is, without the last block, one built for more
        shorter = weights(spec, None, n, **options)
        assert torch.equal(shorter, longest[:, :n, :n])
        assert torch.equal(weights(spec, None, n, **options, most=400), shorter)


def test_a_loaded_mechanism_has_the_blocks_of_its_weights() -> None:
    one, other = (build("bigbird(block_size=4)", Heads(count=2, key_dim=8, max_length=200, seed=s)) for s in (0, 1))
    q = torch.randn(1, 2, 200, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(one(q, q, q).values, other(q, q, q).values)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q, q, q).values, other(q, q, q).values)


def test_tiles_grow_with_the_length() -> None:
    """Computed scores per query at blocks of 64 stay the same from 4,096 positions to 16,384."""
    per_query = []
    for n in (4096, 16384):
        pattern, places = Bigbird(Heads(count=1, key_dim=8, max_length=n)).pattern, Positions(0, n)
        like = {"device": torch.device("cpu"), "dtype": torch.float32}
        plan = find_plan(pattern.text, places, places, whole=0, biased=False, **like)
        per_query.append(sum(layout.computed for layout in plan.of(0)) / n)
    assert per_query[1] < 1.05 * per_query[0]
    assert per_query[1] < 64 * (3 + 2 + 3 + 2.1)  # neighbours, global columns, random ones, and global rows


@pytest.mark.parametrize(
    "options",
    [
        "block_size=0",
        "num_global=-1",
        "num_random=-1",
        "form=dense",
        "impl=dense",
        "form=etc, num_global=-1",
        "form=etc, num_random=3",
        "form=etc, last_global=True",
    ],
)
def test_options_that_make_no_sense(options: str) -> None:
    with pytest.raises(ConfigError):
        build(f"bigbird({options})", Heads(count=2, key_dim=8, max_length=64))


def test_a_longest_length_is_needed_and_kept() -> None:
    with pytest.raises(ConfigError, match="max_length"):
        build("bigbird", Heads(count=2, key_dim=8))
    q = torch.randn(1, 2, 65, 8)
    with pytest.raises(LimitError):
        build("bigbird", Heads(count=2, key_dim=8, max_length=64))(q, q, q)
    assert build("bigbird(form=etc)", Heads(count=2, key_dim=8))(q, q, q).values.shape == q.shape
