"""Nystrom attention: three matrices by hand, the softmax that it is of few tokens, and its pseudo-inverse."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard import Attention, AttentionLayer, ConfigError, Heads, UnsupportedError, attend, build, describe, weights
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequence(n: int, m: int, *, heads: int = 2, kv_heads: int = 2, batch: int = 2, seed: int = 0) -> list[Tensor]:
    shapes = ((batch, heads, n, 4), (batch, kv_heads, m, 4), (batch, kv_heads, m, 3))
    return [draw(*shape, seed=100 * seed + i) for i, shape in enumerate(shapes)]


def nystrom(count: int = 2, kv_count: int | None = None, **options: object) -> Attention:
    return build("nystrom", Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count), **options).double()


Matrix = list[list[float]]


def product(x: Matrix, y: Matrix) -> Matrix:
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*y, strict=True)] for row in x]


def transposed(x: Matrix) -> Matrix:
    return [list(column) for column in zip(*x, strict=True)]


def softmax_rows(x: Matrix, y: Matrix) -> Matrix:
    odds = [[math.exp(sum(a * b for a, b in zip(row, key, strict=True))) for key in y] for row in x]
    return [[odd / sum(row) for odd in row] for row in odds]


def means_of_runs(x: Matrix, runs: int) -> Matrix:
    """Of n tokens: n // runs each, and the first token of run r is the first whose share of the way reaches r."""
    first = [-(-r * len(x) // runs) for r in range(runs)] + [len(x)]
    parts = [x[a:b] for a, b in pairwise(first)]
    assert {len(part) for part in parts} <= {len(x) // runs, len(x) // runs + 1}
    return [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]


def iterated(a: Matrix, iterations: int, of_columns: float | None = None) -> Matrix:
    """The published iteration from the largest sum of a column, of this matrix unless given, and of a row."""
    of_columns = of_columns or max(sum(abs(x) for x in column) for column in zip(*a, strict=True))
    of_rows = max(sum(abs(x) for x in row) for row in a)
    z = [[x / (of_columns * of_rows) for x in row] for row in transposed(a)]

    def less(scale: float, x: Matrix) -> Matrix:
        return [[scale * (i == j) - y for j, y in enumerate(row)] for i, row in enumerate(x)]

    for _ in range(iterations):
        az = product(a, z)
        z = [[x / 4 for x in row] for row in product(z, less(13, product(az, less(15, product(az, less(7, az))))))]
    return z


def scaled(x: Tensor) -> Matrix:
    return [[y / 4**0.25 for y in row] for row in x.tolist()]


def by_hand(q: Tensor, k: Tensor, v: Tensor, *, landmarks: int, iterations: int) -> Matrix:
    """One head: F A^+ B v."""
    x, y = scaled(q), scaled(k)
    of_queries, of_keys = (means_of_runs(part, min(landmarks, len(part))) for part in (x, y))
    inverse = iterated(softmax_rows(of_queries, of_keys), iterations)
    gathered = product(softmax_rows(of_queries, y), v.tolist())
    return product(softmax_rows(x, of_keys), product(inverse, gathered))


@pytest.mark.parametrize(("landmarks", "iterations"), [(3, 2), (4, None)])
def test_every_sum_written_out(landmarks: int, iterations: int | None) -> None:
    mechanism = nystrom(count=1, num_landmarks=landmarks, iterations=iterations)
    for n in (*range(1, 14), 23, 40):
        for m in (n, 41 - n):
            q, k, v = sequence(n, m, heads=1, kv_heads=1, batch=1, seed=n)
            expected = by_hand(*(x[0, 0] for x in (q, k, v)), landmarks=landmarks, iterations=iterations or 6)
            torch.testing.assert_close(mechanism(q, k, v).values[0, 0].tolist(), expected, rtol=0, atol=1e-11)


def test_golden_values() -> None:
    """One landmark: A = 1, so that every query gets the average that the mean query makes of all keys."""
    mechanism = build("nystrom", Heads(count=1, key_dim=1), num_landmarks=1, pinv="exact").double()
    q = torch.tensor([-5.0, 7.0], dtype=torch.float64)[None, None, :, None]  # their mean is 1
    k = torch.tensor([0.0, math.log(3)], dtype=torch.float64)[None, None, :, None]
    v = torch.tensor([4.0, 8.0], dtype=torch.float64)[None, None, :, None]
    assert mechanism(q, k, v).values.flatten().tolist() == pytest.approx([7.0, 7.0], abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (16, 16), (5, 16), (16, 5)])
def test_with_a_landmark_for_every_token_and_an_exact_inverse_it_is_softmax(n: int, m: int) -> None:
    """F = A = B then, and A A^+ A = A, also where A is not square."""
    q, k, v = sequence(n, m, heads=4)
    exact = nystrom(count=4, kv_count=2, num_landmarks=16, pinv="exact")
    torch.testing.assert_close(exact(q, k, v).values, attend(q, k, v), rtol=0, atol=1e-9)


def test_queries_and_keys_that_are_constant_on_runs_lose_nothing() -> None:
    q, k = (draw(2, 2, 5, 4, seed=seed).repeat_interleave(6, 2) for seed in (1, 2))
    v = draw(2, 2, 30, 3, seed=3)
    got = nystrom(num_landmarks=5, pinv="exact")(q, k, v).values
    torch.testing.assert_close(got, attend(q, k, v), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("iterations", "least", "most"), [(6, 1e-4, 0.3), (12, 0, 1e-2), (30, 0, 1e-9)])
def test_the_iteration_comes_as_near_to_the_inverse_as_is_known_of_it(
    iterations: int, least: float, most: float
) -> None:
    q, k, v = sequence(32, 32, seed=5)
    off = nystrom(num_landmarks=32, iterations=iterations)(q, k, v).values - attend(q, k, v)
    assert least <= off.abs().max().item() <= most


def test_rows_of_an_exact_inverse_sum_to_one_unless_it_is_singular_and_may_be_negative() -> None:
    q, k, _ = sequence(40, 40)
    exact = nystrom(num_landmarks=6, pinv="exact")
    matrix = weights(exact, q, k)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, 40, dtype=torch.float64), rtol=0, atol=1e-10)
    assert matrix.min() < -1e-3
    assert (weights(exact, 100 * q, 100 * k).sum(-1) - 1).abs().max() > 0.5
    assert (weights(nystrom(num_landmarks=6), q, k).sum(-1) - 1).abs().max() > 1e-4


def test_each_matrix_stops_at_the_tolerance_by_itself() -> None:
    """Of two batch rows one needs more iterations; each is what it is with its own number of them."""
    q, k, v = sequence(24, 24, heads=1, kv_heads=1)
    scale = torch.tensor([8.0, 0.3], dtype=torch.float64)[:, None, None, None]
    q, k = q * scale, k * scale
    found = nystrom(count=1, num_landmarks=6, iterations=40, tolerance=1e-3)(q, k, v).values
    needed = []
    for row in range(2):
        a = softmax_rows(*(means_of_runs(scaled(x[row, 0]), 6) for x in (q, k)))

        def residual(iterations: int, a: Matrix = a) -> float:
            left = product(product(a, iterated(a, iterations)), a)
            return max(abs(x - y) for one, other in zip(left, a, strict=True) for x, y in zip(one, other, strict=True))

        needed.append(next(n for n in range(41) if residual(n) <= 1e-3))
        expected = by_hand(*(x[row, 0] for x in (q, k, v)), landmarks=6, iterations=needed[row])
        torch.testing.assert_close(found[row, 0].tolist(), expected, rtol=0, atol=1e-10)
    assert 0 < needed[0] < needed[1] < 40


def test_a_tolerance_saves_the_iterations_that_are_left() -> None:
    q, k, v = sequence(24, 24)

    def work(**options: object) -> float:
        return count(lambda: nystrom(num_landmarks=16, iterations=200, **options)(q, k, v)).work

    assert work(tolerance=1e-3) < 0.3 * work()


@pytest.mark.parametrize("convolution", [None, 3])
def test_landmarks_are_means_of_real_tokens(convolution: int | None) -> None:
    """Masked tokens count neither in the sum nor in the number that it is divided by; the rest is as if alone."""
    mechanism = nystrom(num_landmarks=4, convolution=convolution)
    q, k, v = sequence(11, 11)
    alone = mechanism(q, k, v).values
    for before, behind in ((0, 7), (5, 0), (2, 2)):
        q_, k_, v_ = (
            torch.cat([100 * draw(2, 2, before, x.shape[3]), x, 100 * draw(2, 2, behind, x.shape[3])], 2)
            for x in (q, k, v)
        )
        keep = torch.zeros(2, before + 11 + behind, dtype=torch.bool)
        keep[:, before : before + 11] = True
        got = mechanism(q_, k_, v_, key_mask=keep).values[:, :, before : before + 11]
        torch.testing.assert_close(got, alone, rtol=0, atol=1e-11)


def test_holes_in_a_source() -> None:
    mechanism = nystrom(count=1, num_landmarks=3)
    q, k, v = sequence(9, 14, heads=1, kv_heads=1, batch=1)
    keep = torch.arange(14)[None] % 3 != 1
    got = mechanism(q, k, v, key_mask=keep).values[0, 0]
    real = keep[0].nonzero()[:, 0]
    expected = by_hand(q[0, 0], k[0, 0, real], v[0, 0, real], landmarks=3, iterations=6)
    torch.testing.assert_close(got.tolist(), expected, rtol=0, atol=1e-11)


def test_the_convolution_adds_smoothed_values_of_its_head() -> None:
    mechanism, plain = nystrom(num_landmarks=4, convolution=5), nystrom(num_landmarks=4)
    q, k, v = sequence(9, 9)
    added = (mechanism(q, k, v).values - plain(q, k, v).values).tolist()
    w, values = mechanism.filters.tolist(), v.tolist()
    for row in range(2):
        for head in range(2):
            for i in range(9):
                for c in range(3):
                    taps = [(t, i + t - 2) for t in range(5) if 0 <= i + t - 2 < 9]
                    expected = sum(w[head][t] * values[row][head][j][c] for t, j in taps)
                    assert added[row][head][i][c] == pytest.approx(expected, abs=1e-12)


def test_a_layer_serves_another_sequence() -> None:
    layer = AttentionLayer(16, "nystrom(num_landmarks=3)", heads=2, causal=False, context_dim=12).double().eval()
    x, source = draw(2, 5, 16), draw(2, 9, 12, seed=1)
    assert layer(x, source).hidden.shape == (2, 5, 16)


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({"causal": True}, {}, UnsupportedError, r"nystrom does not support causal=True: its landmarks are means over"),
        ({"dropout": 0.1}, {}, UnsupportedError, "its weights are never made"),
        ({}, {"num_landmarks": 0}, ConfigError, "num_landmarks"),
        ({}, {"pinv": "svd"}, ConfigError, "pinv"),
        ({}, {"convolution": 4}, ConfigError, "it is odd; got convolution=4"),
        ({}, {"pinv": "exact", "iterations": 6}, ConfigError, "iterations belongs to pinv='iterative'"),
        ({}, {"pinv": "exact", "tolerance": 0.1}, ConfigError, "tolerance belongs to pinv='iterative'"),
        ({}, {"tolerance": 0.0}, ConfigError, "tolerance"),
        ({}, {"pinv": "exact", "norm": "heads"}, ConfigError, "norm belongs to pinv='iterative'"),
        ({}, {"num_landmarks": None}, ConfigError, "num_landmarks=None nothing is inverted step by step; set pinv="),
    ],
)
def test_refusals(changes: dict[str, object], options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build("nystrom", Heads(**{"count": 1, "key_dim": 2, **changes}), **options)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_convolution_has_no_other_sequence(impl: str) -> None:
    mechanism = nystrom(num_landmarks=3, convolution=3, impl=impl)
    assert not mechanism.info.supports.cross
    q, k, v = sequence(6, 6)
    with pytest.raises(UnsupportedError, match="its convolution runs over"):
        mechanism(q[:, :, :4], k, v)
    with pytest.raises(UnsupportedError, match="its convolution runs over"):
        mechanism(q, k, v, query_start=3)


def test_what_it_approaches_is_declared_where_it_does() -> None:
    exact = describe("nystrom(pinv=exact)")
    assert (exact.approximates, exact.knob, exact.rows_sum_to_one) == ("softmax", "num_landmarks", False)
    for other in ("nystrom", "nystrom(pinv=exact, convolution=3)"):
        assert describe(other).approximates is None
        assert not describe(other).rows_sum_to_one


def test_the_norm_of_the_heads_is_that_of_the_largest_and_not_of_the_batch() -> None:
    """Each head begins with the largest sum of a column that any head of its batch row has."""
    q, k, v = sequence(12, 12)
    q = q * torch.tensor([1.0, 6.0], dtype=torch.float64)[:, None, None]
    got = nystrom(num_landmarks=4, iterations=3, norm="heads")(q, k, v).values
    for row in range(2):
        sides = [[means_of_runs(scaled(x[row, head]), 4) for x in (q, k)] for head in range(2)]
        matrices = [softmax_rows(*side) for side in sides]
        norm = max(sum(column) for a in matrices for column in zip(*a, strict=True))
        for head, a in enumerate(matrices):
            inverse = iterated(a, 3, of_columns=norm)
            x, y = scaled(q[row, head]), scaled(k[row, head])
            gathered = product(softmax_rows(sides[head][0], y), v[row, head].tolist())
            expected = product(softmax_rows(x, sides[head][1]), product(inverse, gathered))
            torch.testing.assert_close(got[row, head].tolist(), expected, rtol=0, atol=1e-11)
    own = nystrom(num_landmarks=4, iterations=3)(q, k, v).values
    assert (got - own).abs().max() > 1e-3


@pytest.mark.parametrize(("n", "m"), [(1, 1), (40, 40), (5, 16), (16, 5)])
def test_where_every_token_is_a_landmark_it_is_softmax(n: int, m: int) -> None:
    q, k, v = sequence(n, m, heads=4)
    every = nystrom(count=4, kv_count=2, num_landmarks=None, pinv="exact")
    torch.testing.assert_close(every(q, k, v).values, attend(q, k, v), rtol=0, atol=1e-14)
    assert (every.info.time, every.info.rows_sum_to_one, every.info.mixes_queries) == (2, True, False)
    assert not describe("nystrom(num_landmarks=None, pinv=exact, convolution=3)").rows_sum_to_one
