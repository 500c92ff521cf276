"""Which keys a mechanism uses, read from its outputs; and its values and states against literal key sets."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard import Heads, build

Sets = Callable[[int, int], set[int]]
"""(query, head) -> its keys, written from the paper"""


@pytest.fixture
def keys_of() -> Callable[..., list[list[set[int]]]]:
    """The keys of each head and query: where logits are 0 and values are the identity, each has weight 1 / count."""

    def read(spec: str, n: int, *, heads: int = 1, causal: bool = True, max_length: int | None = None):
        zeros = torch.zeros(1, heads, n, 4, dtype=torch.float64)
        mechanism = build(spec, Heads(count=heads, key_dim=4, value_dim=n, causal=causal, max_length=max_length))
        identity = torch.eye(n, dtype=torch.float64).expand(1, heads, n, n)
        values = mechanism(zeros, zeros, identity).values[0]
        count = (values > 0).sum(-1, keepdim=True).double()
        assert (((values - 1 / count.clamp_min(1)).abs() < 1e-12) | (values == 0)).all(), "weights are not 1 / count"
        return [[set(row.nonzero().flatten().tolist()) for row in head] for head in values]

    return read


@pytest.fixture
def decodes() -> Callable[..., None]:
    """Token by token, values are the softmax over the literal sets, and the state keeps what later queries see."""

    def check(
        spec: str,
        sets: Sets,
        *,
        heads: int = 2,
        n: int = 40,
        horizon: int = 60,
        max_length: int | None = None,
        kept: Callable[[int], set[int]] | None = None,
    ) -> None:
        mechanism = build(
            spec, Heads(count=heads, key_dim=8, value_dim=5, kv_count=1, causal=True, max_length=max_length)
        )
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, h, n, d, generator=draw).double() for h, d in ((heads, 8), (1, 8), (1, 5)))
        later = [set().union(*(sets(i, h) for h in range(heads))) for i in range(horizon)]
        state = mechanism.initial_state(2, dtype=torch.float64)
        with torch.no_grad():
            for i in range(n):
                now = slice(i, i + 1)
                values, state, *_ = mechanism(q[:, :, now], k[:, :, now], v[:, :, now], state=state)
                for head in range(heads):
                    expected = softmax_over(sorted(sets(i, head)), q[:, head, i], k[:, 0], v[:, 0])
                    torch.testing.assert_close(values[:, head, 0], expected, rtol=0, atol=1e-10)
                needed = {j for keys in later[i + 1 :] for j in keys if j <= i} if kept is None else kept(i + 1)
                assert torch.equal(state.tensors()["k"], k[:, :, sorted(needed)]), f"after {i + 1} slots"
                assert state.nbytes == mechanism.state_nbytes(2, i + 1, torch.float64)

    return check


def softmax_over(keys: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not keys:
        return torch.zeros(len(q), v.shape[-1], dtype=q.dtype)
    odds = torch.exp((q[:, None] * k[:, keys]).sum(-1) / q.shape[-1] ** 0.5)
    return (odds[..., None] * v[:, keys]).sum(1) / odds.sum(1, keepdim=True)


@pytest.fixture
def reachable() -> Callable[..., Tensor]:
    """Which pairs two layers connect: `second` after `first`, with residuals or without."""

    def compose(first: list[set[int]], second: list[set[int]], *, residual: bool) -> Tensor:
        one, two = (torch.zeros(len(first), len(first)) for _ in range(2))
        for matrix, sets in ((one, first), (two, second)):
            for i, keys in enumerate(sets):
                matrix[i, sorted(keys)] = 1
                if residual:
                    matrix[i, i] = 1
        return two @ one > 0

    return compose
