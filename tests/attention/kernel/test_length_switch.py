"""length_switch: double loops, both branches, the switch per query, its state."""

import math

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, build


def draw(n: int, m: int | None = None, *, heads: int = 2, kv_heads: int = 2, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, n, 4), (kv_heads, m or n, 4), (kv_heads, m or n, 3))
    return tuple(torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


def weight(q: list[float], k: list[float], *, exact: bool) -> float:
    if not exact:
        q, k = ([y + 1 if y > 0 else math.exp(y) for y in x] for x in (q, k))
    product = sum(a * b for a, b in zip(q, k, strict=True))
    return math.exp(product / math.sqrt(len(q))) if exact else product


@pytest.mark.parametrize("causal", [True, False])
def test_double_loop(causal: bool) -> None:
    heads = Heads(count=1, key_dim=4, value_dim=3, causal=causal)
    for n in range(1, 41):
        limit = (0, 1, 5, 13, 39)[n % 5]
        q, k, v = (x[:1, :1] for x in draw(n, seed=n))
        real = torch.rand(n, generator=torch.Generator().manual_seed(n)) > 0.3 if n % 2 else torch.ones(n).bool()
        keys, hidden, expected = k[0, 0].tolist(), ~real, []
        for i, query in enumerate(q[0, 0].tolist()):
            seen = [j for j in range(i + 1 if causal else n) if not hidden[j]]
            weights = {j: weight(query, keys[j], exact=len(seen) <= limit) for j in seen}
            total = sum((w * v[0, 0, j] for j, w in weights.items()), torch.zeros(3, dtype=torch.float64))
            expected.append(total / sum(weights.values()) if seen else total)
        mechanism = build("length_switch", heads, exact_keys=limit)
        for key_mask in (real[None],) if n % 2 else (real[None], None):
            found = mechanism(q, k, v, key_mask=key_mask).values[0, 0]
            torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_the_branches_are_softmax_and_linear(causal: bool) -> None:
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=causal)
    x = draw(19, heads=4)
    for limit, other in ((19, "softmax"), (1000, "softmax"), (0, "linear")):
        found = build("length_switch", heads, exact_keys=limit)(*x).values
        torch.testing.assert_close(found, build(other, heads)(*x).values, rtol=0, atol=1e-12)
    found = build("length_switch(exact_keys=7)", heads)(*x).values
    if causal:
        torch.testing.assert_close(found[:, :, :7], build("softmax", heads)(*x).values[:, :, :7], rtol=0, atol=1e-12)
        torch.testing.assert_close(found[:, :, 7:], build("linear", heads)(*x).values[:, :, 7:], rtol=0, atol=1e-12)
    else:
        torch.testing.assert_close(found, build("linear", heads)(*x).values, rtol=0, atol=1e-12)


def test_another_token_rewrites_no_earlier_output() -> None:
    mechanism = build("length_switch(exact_keys=5)", Heads(count=2, key_dim=4, value_dim=3, causal=True))
    x = draw(12)
    whole = mechanism(*x).values
    for n in range(1, 12):
        found = mechanism(*(y[:, :, :n] for y in x)).values
        torch.testing.assert_close(found, whole[:, :, :n], rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_keys_are_kept_until_no_query_is_exact(masked: bool) -> None:
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=True)
    mechanism = build("length_switch(exact_keys=6)", heads)
    q, k, v = draw(30, heads=4)
    mask = torch.ones(2, 30, dtype=torch.bool)
    if masked:
        mask[1, 2:11] = False  # the second row reaches 7 real keys at slot 15
    whole = mechanism(q, k, v, key_mask=mask if masked else None).values
    state, out = mechanism.initial_state(2, dtype=torch.float64), []
    for at in range(30):
        piece = (x[:, :, at : at + 1] for x in (q, k, v))
        answer = mechanism(*piece, key_mask=mask[:, at : at + 1] if masked else None, state=state)
        assert answer.state is not None
        state = answer.state
        out.append(answer.values)
        reached = min(int(row[: at + 1].sum()) for row in mask)
        assert state.tensors()["k"].shape[2] == (at + 1 if reached <= 6 else 0)
    torch.testing.assert_close(torch.cat(out, 2), whole, rtol=0, atol=1e-12)


def test_a_source_that_grows_past_the_limit() -> None:
    """Cross-attention: exact while the source has few keys, linear once it has more, whatever was asked before."""
    heads = Heads(count=2, key_dim=4, value_dim=3)
    mechanism = build("length_switch(exact_keys=6)", heads)
    q, k, v = draw(3, 11)
    state = mechanism.initial_state(2, dtype=torch.float64)
    for first, last, other in ((0, 4, "softmax"), (4, 6, "softmax"), (6, 7, "linear"), (7, 11, "linear")):
        answer = mechanism(q, k[:, :, first:last], v[:, :, first:last], state=state)
        assert answer.state is not None
        state = answer.state
        expected = build(other, heads)(q, k[:, :, :last], v[:, :, :last]).values
        torch.testing.assert_close(answer.values, expected, rtol=0, atol=1e-12)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="exact_keys=-1 is not valid: Input should be greater than or equal to 0"):
        build("length_switch(exact_keys=-1)", Heads(count=1, key_dim=4))
