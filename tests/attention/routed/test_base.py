"""The routed template: a mechanism written from its hooks alone decides, remembers and replays."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.attention.routed import Routed
from regard.core.attention import Attended, Call
from regard.core.info import Heads, Info, Supports
from regard.core.state import per_slot
from regard.testing.compare import assert_close, assert_identical


class Halves(Routed):
    """A query meets the keys whose first number has the sign of its own."""

    default_info = Info(
        title="Halves",
        source="written for this test",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        state="length",
        selects=True,
        shares_query_key=True,
        rows_sum_to_one=False,
    )

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q[..., 0] > 0, k[..., 0] > 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        asked, sides = self.decisions(q, k)
        slots, call = call.remember(k=k, v=v, sides=sides)
        logits = self.logits(q, slots["k"], (asked, slots["sides"]), call)
        return Attended(reference_softmax(logits, slots["v"], call), call.state)

    def state_layout(self) -> dict[str, object]:
        return {**super().state_layout(), "sides": per_slot(self.heads.kv_heads, dtype=torch.bool)}

    def choices(self, q: Tensor, k: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        return q.select(-1, 0).sign() == 1, k.select(-1, 0).sign() == 1

    def logits(self, q: Tensor, k: Tensor, choices: tuple[Tensor, Tensor], call: Call) -> Tensor:
        ours, theirs = choices
        return (q @ k.mT).masked_fill(ours[..., :, None] != theirs[..., None, :], float("-inf"))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(causal: bool = True, **options: str) -> Halves:
    return Halves(Heads(count=2, key_dim=4, causal=causal), **options).double().eval()


@pytest.mark.parametrize("causal", [True, False])
def test_reference_is_the_softmax_over_choices(causal: bool) -> None:
    mechanism, q, k, v = make(causal), *(randn(1, 2, 9, 4, seed=s) for s in range(3))
    keep = torch.arange(9)[None] != 4
    values = mechanism(q, k, v, key_mask=keep).values
    for h in range(2):
        for i in range(9):
            met = [j for j in range(i + 1 if causal else 9) if keep[0, j] and q[0, h, i, 0] * k[0, h, j, 0] > 0]
            odds = [torch.exp(q[0, h, i] @ k[0, h, j]) for j in met]
            mean = (
                sum(odd * v[0, h, j] for odd, j in zip(odds, met, strict=True)) / sum(odds) if met else 0 * v[0, h, 0]
            )
            torch.testing.assert_close(values[0, h, i], mean, rtol=0, atol=1e-12)
    assert_close(mechanism.definition(q, k, v, key_mask=keep), values, tolerance=1e-12, what="the definition")


def test_remembered_slots() -> None:
    mechanism, x, v = make(), randn(2, 2, 12, 4), randn(2, 2, 12, 4, seed=1)
    keep = torch.rand(2, 12, generator=torch.Generator().manual_seed(0)) > 0.3
    whole = mechanism(x, x, v, key_mask=keep).values
    state, out = mechanism.initial_state(2, dtype=torch.float64), []
    for piece in torch.arange(12).split([5, 1, 0, 6]):
        answer = mechanism(*(y[:, :, piece] for y in (x, x, v)), key_mask=keep[:, piece], state=state)
        out.append(answer.values)
        state = answer.state
    assert_close(torch.cat(out, 2), whole, tolerance=1e-12, what="pieces")
    assert state.tensors()["sides"].dtype == torch.bool
    assert_identical(state.tensors()["key_mask"], keep, what="the mask")
    slots, call = Call(key_mask=keep).remember(k=x)
    assert slots["k"] is x
    assert call.state is None


def test_queries_that_are_keys_are_hidden_with_them() -> None:
    mechanism, x = make(), randn(2, 2, 12, 4)
    keep = torch.rand(2, 12, generator=torch.Generator().manual_seed(0)) > 0.3
    assert mechanism.query_mask(x, Call()) is None
    mask = mechanism.query_mask(x[:, :, 7:], Call(key_mask=keep))
    assert mask is not None
    assert torch.equal(mask, keep[:, 7:])
    mechanism.info = replace(mechanism.info, shares_query_key=False)
    assert mechanism.query_mask(x, Call(key_mask=keep)) is None
