"""The regularisers of linear: double loops over the weights, their constants and gradients, what they refuse."""

import math

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, UnsupportedError, build
from regard.testing import check_attention

ROWS = ("score_l1", "entropy", "hoyer", "l_half")


def draw(n: int, m: int | None = None, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2, n, 4), (2, 1, m or n, 4), (2, 1, m or n, 3))
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def phi(x: list[float]) -> list[float]:
    return [y + 1 if y > 0 else math.exp(y) for y in x]


def measure(kind: str, row: list[float]) -> float:
    """Of the weights of one query, not normalised."""
    total, count = sum(row), len(row)
    p = [a / total for a in row]
    if kind == "score_l1":
        return total
    if kind == "entropy":
        return -sum(a * math.log(a) for a in p)
    if kind == "l_half":
        return sum(math.sqrt(a) for a in p) ** 2
    if count == 1:
        return 0.0
    sparseness = (math.sqrt(count) - sum(p) / math.sqrt(sum(a * a for a in p))) / (math.sqrt(count) - 1)
    return 1 - sparseness


def by_hand(kind: str, q: Tensor, k: Tensor, real: Tensor, *, causal: bool) -> float:
    found = []
    queries, keys = q.shape[2], k.shape[2]
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            for i in range(queries):
                at = i + keys - queries
                if not (bool(real[row, at]) if causal or queries == keys else True):
                    continue
                fq = phi(q[row, head, i].tolist())
                seen = [j for j in range(at + 1 if causal else keys) if real[row, j]]
                weights = [sum(a * b for a, b in zip(fq, phi(k[row, 0, j].tolist()), strict=True)) for j in seen]
                found.append(measure(kind, weights))
    return sum(found) / len(found)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("causal", [True, False])
def test_double_loop(causal: bool, kind: str) -> None:
    heads = Heads(count=2, key_dim=4, value_dim=3, kv_count=1, causal=causal)
    mechanism = build("linear", heads, regulariser=kind).train()
    for n, m in ((1, 1), (2, 2), (7, 7), (16, 16), (5, 9)):
        q, k, v = draw(n, m)
        real = torch.rand(2, m, generator=torch.Generator().manual_seed(n)) > 0.4
        real[:, 0] = True
        if causal:
            real[:, m - 1] = True
        for mask in (torch.ones(2, m, dtype=torch.bool), real):
            found = mechanism(q, k, v, key_mask=mask).losses
            assert set(found) == {kind}
            assert abs(found[kind].item() - by_hand(kind, q, k, mask, causal=causal)) < 1e-10


@pytest.mark.parametrize("causal", [True, False])
def test_l1_of_the_output(causal: bool) -> None:
    heads = Heads(count=2, key_dim=4, value_dim=3, kv_count=1, causal=causal)
    x = draw(9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    for key_mask, rows in ((None, [9, 9]), (mask, [9, 6])):
        out = build("linear", heads)(*x, key_mask=key_mask).values.abs()
        total = sum(out[row, :, :count].sum().item() for row, count in enumerate(rows))
        for kind, expected in (("output_l1_sum", total), ("output_l1", total / (sum(rows) * 2 * 3))):
            found = build("linear", heads, regulariser=kind).train()(*x, key_mask=key_mask).losses[kind].item()
            assert abs(found - expected) < 1e-10


def test_l1_of_normalised_rows_is_constant() -> None:
    """Why score_l1 is of weights before they are normalised: after, it is 1 per row, and its gradient 0."""
    q, k, _ = (x.requires_grad_() for x in draw(6))
    found = build("linear", Heads(count=2, key_dim=4, value_dim=6, kv_count=1))(
        q, k, torch.eye(6, dtype=torch.float64).expand(2, 1, 6, 6)
    )
    rows = found.values.abs().sum(-1)  # values of the identity give the weights
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=1e-12)
    for grad in torch.autograd.grad(rows.sum(), (q, k)):
        assert grad.abs().max() < 1e-12


@pytest.mark.parametrize(("kind", "one_hot", "equal"), [("entropy", 0, math.log(4)), ("hoyer", 0, 1), ("l_half", 1, 4)])
def test_extremes(kind: str, one_hot: float, equal: float) -> None:
    """relu features of which the query meets one key, or four equal ones; gradients at zero weights are finite."""
    heads = Heads(count=1, key_dim=4)
    mechanism = build("linear", heads, regulariser=kind, feature_map="relu").train()
    for q, expected in ((torch.eye(4)[None, None, :1], one_hot), (torch.ones(1, 1, 1, 4), equal)):
        q, k = q.clone().requires_grad_(), torch.eye(4)[None, None].clone().requires_grad_()
        loss = mechanism(q, k, torch.ones(1, 1, 4, 4)).losses[kind]
        assert abs(loss.item() - expected) < 1e-6
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, (q, k)))


@pytest.mark.parametrize("kind", ROWS)
def test_gradients_are_slopes(kind: str) -> None:
    mechanism = build("linear", Heads(count=2, key_dim=4, value_dim=3, kv_count=1, causal=True), regulariser=kind)
    q, k, v = draw(7)
    mechanism.train()
    torch.autograd.gradcheck(
        lambda q, k: mechanism(q, k, v).losses[kind], (q.requires_grad_(), k.requires_grad_()), atol=1e-7
    )


@pytest.mark.parametrize("kind", ["output_l1", *ROWS])
def test_values_are_untouched_and_a_weight_of_zero_declares_nothing_to_add(kind: str) -> None:
    heads = Heads(count=2, key_dim=4, value_dim=3, kv_count=1, causal=True)
    plain, pressed = build("linear", heads).train(), build("linear", heads, regulariser=kind).train()
    x = draw(11)
    assert torch.equal(plain(*x).values, pressed(*x).values)
    assert pressed.eval()(*x).losses == {}
    assert dict(pressed.info.losses) == {kind: 0.01}
    none = build("linear", heads, regulariser=kind, regulariser_weight=0.0)
    assert dict(none.info.losses) == {kind: 0.0}


def test_a_state_carries_score_l1_and_refuses_what_needs_every_key() -> None:
    heads = Heads(count=2, key_dim=4, value_dim=3, kv_count=1, causal=True)
    q, k, v = draw(10)
    pieces = [[x[:, :, at] for x in (q, k, v)] for at in (slice(0, 4), slice(4, 10))]
    mechanism = build("linear(regulariser=score_l1)", heads).train()
    first = mechanism(*pieces[0], state=mechanism.initial_state(2, dtype=torch.float64))
    second = mechanism(*pieces[1], state=first.state)
    both = (4 * first.losses["score_l1"] + 6 * second.losses["score_l1"]) / 10
    torch.testing.assert_close(both, mechanism(q, k, v).losses["score_l1"], rtol=0, atol=1e-10)
    mechanism = build("linear(regulariser=entropy)", heads).train()
    first = mechanism(*pieces[0], state=mechanism.initial_state(2, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="score_l1"):
        mechanism(*pieces[1], state=first.state)


def test_refusals() -> None:
    heads = Heads(count=1, key_dim=4)
    with pytest.raises(ConfigError, match="cannot be negative"):
        build("linear(feature_map=identity, normalise=False, regulariser=score_l1)", heads)
    with pytest.raises(ConfigError, match="cannot be negative"):
        build("linear(rotary=True, regulariser=entropy)", heads)
    with pytest.raises(
        ConfigError, match=r"regulariser_weight=-1.0 is not valid: Input should be greater than or equal to 0"
    ):
        build("linear(regulariser=entropy, regulariser_weight=-1.0)", heads)
    with pytest.raises(ConfigError, match="impl='auto' has"):
        build("linear(regulariser=entropy, impl=reference)", heads)


def test_the_suite_on_the_quadratic_ones() -> None:
    options = [{"regulariser": kind} for kind in ("entropy", "hoyer", "l_half")]
    found = check_attention("linear", options=options, checks=["losses", "evaluation", "recomputation", "options"])
    assert [r.message for r in found if r.status != "passed"] == []
