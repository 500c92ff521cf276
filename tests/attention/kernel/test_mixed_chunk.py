"""mixed_chunk: double loops, one chunk as squared ReLU, shifts by a chunk, its state, its normalisers."""

import math

import pytest
import torch
from torch import Tensor

from regard import Attention, ConfigError, Heads, UnsupportedError, build

SIZE = 4
PARAMETERS = ("query_gain", "query_offset", "key_gain", "key_offset")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(mechanism: Attention) -> Attention:
    """With every parameter off its initial value."""
    with torch.no_grad():
        for seed, parameter in enumerate(mechanism.parameters()):
            parameter.copy_(parameter + 0.5 * draw(*parameter.shape, seed=seed))
    return mechanism.double()


def by_hand(
    mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, normaliser: str, *, causal: bool, toeplitz: bool
) -> list[float]:
    """One head with values of width 1, pair by pair."""
    scales = {name: mechanism.get_parameter(name).detach()[:, 0, 0].tolist() for name in PARAMETERS}
    table = mechanism.get_parameter("table").detach()[0].tolist() if toeplitz else []
    n, dim = q.shape

    def scaled(x: list[float], which: str, part: int) -> list[float]:
        gain, offset = scales[f"{which}_gain"][part], scales[f"{which}_offset"][part]
        return [a * b + c for a, b, c in zip(x, gain, offset, strict=True)]

    out = []
    for i in range(n):
        quad, lin, in_quad, in_lin = 0.0, 0.0, 0, 0
        for j in range(n):
            products = [
                sum(
                    a * b
                    for a, b in zip(
                        scaled(q[i].tolist(), "query", part), scaled(k[j].tolist(), "key", part), strict=True
                    )
                )
                for part in (0, 1)
            ]
            value = float(v[j, 0])
            if i // SIZE == j // SIZE and (j <= i or not causal):
                logit = products[0] / (math.sqrt(dim) if normaliser == "visible" else SIZE)
                if toeplitz:
                    logit += table[i - j if causal else i - j + SIZE - 1]
                quad, in_quad = quad + max(logit, 0.0) ** 2 * value, in_quad + 1
            if j // SIZE < i // SIZE or not causal:
                lin, in_lin = lin + products[1] * value, in_lin + 1
        if normaliser == "visible":
            quad = quad / in_quad
        lin = lin / {"const": SIZE, "visible": max(in_lin, 1), "seq_len": n}[normaliser]
        out.append(quad + lin)
    return out


@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize(
    ("causal", "normaliser"),
    [(True, "const"), (True, "visible"), (False, "const"), (False, "visible"), (False, "seq_len")],
)
def test_double_loop(causal: bool, normaliser: str, toeplitz: bool) -> None:
    heads = Heads(count=1, key_dim=2, value_dim=1, causal=causal)
    mechanism = build("mixed_chunk", heads, chunk_size=SIZE, normaliser=normaliser, toeplitz=toeplitz)
    mechanism = moved(mechanism)
    if toeplitz:  # one logit per distance within a chunk
        assert mechanism.get_parameter("table").shape == (1, SIZE if causal else 2 * SIZE - 1)
    for n in range(1, 41) if not toeplitz else (1, 3, 4, 5, 8, 23):
        q, k, v = draw(1, 1, n, 2, seed=n), draw(1, 1, n, 2, seed=100 + n), draw(1, 1, n, 1, seed=200 + n)
        expected = by_hand(mechanism, q[0, 0], k[0, 0], v[0, 0], normaliser, causal=causal, toeplitz=toeplitz)
        found = mechanism(q, k, v).values.flatten()
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_one_chunk_is_squared_relu() -> None:
    """Causal with chunk_size >= n there is no earlier chunk: what is left is GAU's attention."""
    heads = Heads(count=2, key_dim=4, value_dim=3, causal=True)
    x = draw(2, 2, 19, 4), draw(2, 2, 19, 4, seed=1), draw(2, 2, 19, 3, seed=2)
    for size in (19, 64):
        expected = build("relu_squared", heads, constant=float(size)).double()(*x).values
        found = build("mixed_chunk", heads, chunk_size=size).double()(*x).values
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_whole_chunk_in_front_shifts_the_pattern_and_part_of_one_does_not() -> None:
    mechanism = moved(build("mixed_chunk", Heads(count=1, key_dim=4, causal=True), chunk_size=SIZE))
    x = [draw(1, 1, 13, 4, seed=seed) for seed in range(3)]
    plain = mechanism(*x).values
    for front in (SIZE, 3 * SIZE, 1, SIZE + 2):
        silent = [torch.nn.functional.pad(y, (0, 0, front, 0)) for y in x]  # values of 0 in front
        shifted = mechanism(*silent).values[:, :, front:]
        assert torch.allclose(shifted, plain, rtol=0, atol=1e-12) is (front % SIZE == 0)


def test_no_chunk_is_counted_twice() -> None:
    """A value of the query's own chunk acts through squares alone, one of an earlier chunk linearly."""
    mechanism = build("mixed_chunk", Heads(count=1, key_dim=1, causal=True), chunk_size=2).double()
    q = torch.full((1, 1, 4, 1), 3.0, dtype=torch.float64)
    for at, expected in enumerate((3.0 * 3 / 2, 3.0 * 3 / 2, (3 * 3 / 2) ** 2, (3 * 3 / 2) ** 2)):
        v = torch.zeros(1, 1, 4, 1, dtype=torch.float64)
        v[0, 0, at] = 1.0
        assert abs(mechanism(q, q, v).values[0, 0, 3, 0].item() - expected) < 1e-12


@pytest.mark.parametrize("normaliser", ["const", "visible"])
def test_state_is_the_sum_of_whole_chunks_and_the_current_one(normaliser: str) -> None:
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=True)
    mechanism = moved(build("mixed_chunk", heads, chunk_size=SIZE, normaliser=normaliser))
    q, k, v = draw(2, 4, 23, 4), draw(2, 2, 23, 4, seed=1), draw(2, 2, 23, 3, seed=2)
    whole, state, out, at = mechanism(q, k, v).values, mechanism.initial_state(2, dtype=torch.float64), [], 0
    gain, offset = (mechanism.get_parameter(name)[1].detach() for name in ("key_gain", "key_offset"))
    for count in (1, 2, 1, 6, 1, 11, 1):
        answer = mechanism(*(x[:, :, at : at + count] for x in (q, k, v)), state=state)
        assert answer.state is not None
        state, at = answer.state, at + count
        out.append(answer.values)
        done = at - at % SIZE
        kept = state.tensors()
        lin = k[:, :, :done] * gain + offset
        torch.testing.assert_close(kept["sum"], lin.mT @ v[:, :, :done], rtol=0, atol=1e-12)
        torch.testing.assert_close(kept["k"][:, :, : at - done], k[:, :, done:at], rtol=0, atol=0)
        assert state.nbytes == mechanism.state_nbytes(2, at, torch.float64) == mechanism.state_nbytes(2, 0, v.dtype)
    torch.testing.assert_close(torch.cat(out, 2), whole, rtol=0, atol=1e-12)


def test_seq_len_refuses_causal() -> None:
    with pytest.raises(UnsupportedError, match="length of the whole sequence"):
        build("mixed_chunk(normaliser=seq_len)", Heads(count=1, key_dim=4, causal=True))
    with pytest.raises(ConfigError, match="chunk_size=0 is not valid: Input should be greater than or equal to 1"):
        build("mixed_chunk(chunk_size=0)", Heads(count=1, key_dim=4))


def test_the_linear_part_grows_with_the_number_of_chunks_unless_it_counts_keys() -> None:
    ones = torch.ones(1, 1, 64, 1)
    last = {}
    for normaliser in ("const", "visible"):
        mechanism = build("mixed_chunk", Heads(count=1, key_dim=1, causal=True), chunk_size=2, normaliser=normaliser)
        values = mechanism(ones, ones, ones).values[0, 0, 1::2, 0]
        last[normaliser] = (values[-1] - values[0]).item()
    assert abs(last["const"] - 31) < 1e-5
    assert abs(last["visible"] - 1) < 1e-5
