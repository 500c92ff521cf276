"""Forgetting attention against loops that multiply gates, and against what its gates make of it."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.core.bias import ScoreBias
from regard.core.errors import InputError, ShapeError, UnsupportedError


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gates(*shape: int, seed: int = 9, shift: float = 1.0) -> Tensor:
    """Log gates (batch, heads, slots, 1)."""
    return F.logsigmoid(draw(*shape, 1, seed=seed) + shift)


def built(count: int = 2, kv_count: int | None = None, dtype: torch.dtype = torch.float64, **options: object):
    heads = regard.Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count, causal=True)
    return regard.build("forgetting", heads, **options).to(dtype)


def tensors(
    length: int, batch: int = 2, count: int = 2, kv_count: int | None = None, keys: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the log gates."""
    keys = length if keys is None else keys
    of_keys = batch, kv_count or count, keys
    q, k, v = draw(batch, count, length, 4), draw(*of_keys, 4, seed=1), draw(*of_keys, 3, seed=2)
    return q, k, v, gates(batch, count, keys)


def loop(q: Tensor, k: Tensor, v: Tensor, forget: list[float], keep: list[bool], scale: float) -> Tensor:
    """One head, one pair at a time; the odds of a pair are multiplied by the gate of every slot behind its key."""
    n, m = len(q), len(k)
    out = torch.zeros(n, v.shape[1], dtype=torch.float64)
    for row in range(n):
        i = row + m - n
        odds: dict[int, float] = {}
        for j in range(i + 1):
            if keep[j]:
                odds[j] = math.exp(scale * sum(float(a) * float(b) for a, b in zip(q[row], k[j], strict=True)))
                for r in range(j + 1, i + 1):
                    odds[j] *= forget[r] if keep[r] else 1.0
        for j, odd in odds.items():
            out[row] += odd / sum(odds.values()) * v[j]
    return out


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_pairs_one_at_a_time(length: int, scale: float | None) -> None:
    q, k, v = draw(length, 4), draw(length + 2, 4, seed=1), draw(length + 2, 3, seed=2)
    log_gate = gates(1, 1, length + 2)
    if length == 40:
        log_gate[0, 0, 25] = -math.inf
    keep = [j % 5 != 1 for j in range(length + 2)]
    mechanism = built(1, scale=scale)
    inputs = {"log_gate": log_gate}
    got = mechanism(q[None, None], k[None, None], v[None, None], key_mask=torch.tensor([keep]), inputs=inputs)
    expected = loop(q, k, v, log_gate.exp().flatten().tolist(), keep, 0.5 if scale is None else scale)
    torch.testing.assert_close(got.values[0, 0], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    v = torch.tensor([0.0, 7.0, 14.0], dtype=torch.float64)[None, None, :, None].expand(-1, -1, -1, 3)
    log_gate = torch.tensor([0.1, 0.5, 0.25], dtype=torch.float64).log()[None, None, :, None]
    got = built(1)(q, q, v, inputs={"log_gate": log_gate}, lse=True)
    # odds: 1; 1/2, 1; 1/8, 1/4, 1. The first gate has nothing to forget.
    assert got.values[0, 0, :, 0].tolist() == pytest.approx([0.0, 14 / 3, (7 / 4 + 14) / (11 / 8)], abs=1e-12)
    assert got.lse is not None
    assert got.lse.flatten().tolist() == pytest.approx([0.0, math.log(1.5), math.log(11 / 8)], abs=1e-12)


@pytest.mark.parametrize("length", [9, 40, 300])
def test_open_gates_are_softmax(length: int) -> None:
    q, k, v, log_gate = tensors(length)
    got = built()(q, k, v, inputs={"log_gate": log_gate * 0}).values
    torch.testing.assert_close(got, regard.attend(q, k, v, causal=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [9, 40, 300])
def test_constant_gates_are_alibi(length: int) -> None:
    q, k, v, log_gate = tensors(length)
    slopes = torch.tensor([0.5, 0.0625], dtype=torch.float64)
    curve = -slopes[:, None] * torch.arange(length - 1, -1, -1)  # column c: distance length - 1 - c
    expected = regard.attend(q, k, v, causal=True, bias=ScoreBias(high=length - 1, curve=curve))
    constant = -slopes[:, None, None].expand_as(log_gate)
    got = built()(q, k, v, inputs={"log_gate": constant}).values
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shut", [-math.inf, -1e30, -1e7, -1e5])
@pytest.mark.parametrize("length", [12, 24, 150, 300])
def test_a_shut_gate_begins_a_document(length: int, shut: float) -> None:
    """Nothing before it is seen, by the later half it is as if nothing had been, and no gradient crosses it."""
    at = length // 2 - 1
    q, k, v, log_gate = tensors(length)
    log_gate[:, :, at] = shut
    leaves = [x.requires_grad_() for x in (q, k, v, log_gate)]
    whole = built()(*leaves[:3], inputs={"log_gate": log_gate}, lse=True)
    halves = []
    for part in (slice(0, at), slice(at, length)):
        q, k, v, log_gate = (x[:, :, part] for x in leaves)
        halves.append(built()(q, k, v, inputs={"log_gate": log_gate}, lse=True))
    parts = [torch.cat([getattr(half, name) for half in halves], 2) for name in ("values", "lse")]
    for got, expected in zip((whole.values, whole.lse), parts, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9 if shut == -1e5 else 1e-12)
    ways = [draw(*x.shape, seed=3 + at) for at, x in enumerate(parts)]
    found, wanted = (
        torch.autograd.grad(sum((x * way).sum() for x, way in zip(pair, ways, strict=True)), leaves)
        for pair in ((whole.values, whole.lse), parts)
    )
    for got, expected in zip(found, wanted, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9 if shut == -1e5 else 1e-11)


def test_a_shut_gate_hides_whatever_the_logits_say() -> None:
    for length in (10, 100):
        q, k, v, log_gate = tensors(length)
        log_gate[:, :, 6] = -math.inf
        k[:, :, :6] = 1e9 * q[:, :, -1:]  # the last query would look at nothing else
        got = built()(q, k, v, inputs={"log_gate": log_gate}).values[:, :, 6:]
        alone = built()(*(x[:, :, 6:] for x in (q, k, v)), inputs={"log_gate": log_gate[:, :, 6:]}).values
        torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


def test_the_state_holds_a_number_per_query_head_beside_keys_and_values() -> None:
    mechanism = built(4, 2, dtype=torch.bfloat16)
    state = mechanism.initial_state(2, dtype=torch.bfloat16)
    q, k, v, log_gate = (x.bfloat16() for x in tensors(30, count=4, kv_count=2))
    state = mechanism(q, k, v, inputs={"log_gate": log_gate}, state=state).state
    assert state.tensors()["log_gate"].dtype == torch.float32
    assert state.nbytes == mechanism.state_nbytes(2, 30, torch.bfloat16) == 2 * 30 * (2 * (4 + 3) * 2 + 4 * 4)


def long_call(start: int, queries: int) -> tuple[Tensor, ...]:
    """float32 q, k, v and gates of 65,536 slots, up to the last of some queries; one head forgets in three slots, the
    other in a few hundred."""
    slots = start + queries
    q = draw(1, 2, 65_536, 16, dtype=torch.float32)[:, :, start:slots]
    k, v = (draw(1, 1, 65_536, 16, seed=seed, dtype=torch.float32)[:, :, :slots] for seed in (1, 2))
    shift = torch.tensor([1.0, 6.0], dtype=torch.float64)[:, None, None]
    log_gate = F.logsigmoid(draw(1, 2, 65_536, 1, seed=3) + shift).float()[:, :, :slots]
    return q, k, v, log_gate


def exact_rows(q: Tensor, k: Tensor, v: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """(values, lse) in float64 from the sums of the gates of every pair; later keys have -inf."""
    logits = torch.einsum("bhid,bkjd->bhij", q.double(), k.double()) / 4 + sums
    return logits.softmax(-1) @ v.double(), logits.logsumexp(-1)


@pytest.mark.parametrize("queries", [1, 8, 64])
@pytest.mark.parametrize("start", [20_000, 65_472])
def test_sixty_five_thousand_slots_stay_exact(start: int, queries: int) -> None:
    """Float32 errs as it does without gates; added up in float32, the gates alone err a hundred times more."""
    heads = regard.Heads(count=2, key_dim=16, kv_count=1, causal=True)
    q, k, v, log_gate = long_call(start, queries)
    i, j = torch.arange(start, start + queries)[:, None], torch.arange(start + queries)
    later = (j > i).double().masked_fill(j > i, -math.inf)
    total = log_gate.double().cumsum(2).squeeze(-1)
    exact, level = exact_rows(q, k, v, total[..., start:, None] - total[..., None, :] + later)

    got = regard.build("forgetting", heads)(q, k, v, inputs={"log_gate": log_gate}, lse=True)
    ours = (got.values - exact).abs().max().item()
    plain = regard.build("softmax", heads)(q, k, v).values - exact_rows(q, k, v, later)[0]
    largest = exact.abs().max().item()
    assert ours < 2e-6 * largest, f"{ours:.1e}; softmax without gates: {plain.abs().max().item():.1e}"
    assert (got.lse - level).abs().max() < 4e-6

    short = log_gate.cumsum(2).squeeze(-1)  # in float32
    off = (short[..., start:, None] - short[..., None, :] - (total[..., start:, None] - total[..., None, :]))[:, 0]
    near = (i - j < 64) & (j <= i)
    assert off[:, near].abs().max() > 2e-4
    careless = exact_rows(q, k, v, (short[..., start:, None] - short[..., None, :]).double() + later)[0]
    assert (careless - exact).abs().max() > 30 * ours


def test_gate_gradients_of_sixty_five_thousand_slots() -> None:
    heads = regard.Heads(count=2, key_dim=16, kv_count=1, causal=True)
    start, queries = 65_472, 64
    q, k, v, log_gate = long_call(start, queries)
    way = draw(1, 2, queries, 16, seed=7)
    leaf = log_gate.clone().requires_grad_()
    values = regard.build("forgetting", heads)(q, k, v, inputs={"log_gate": leaf}).values
    (found,) = torch.autograd.grad((values * way).sum(), leaf)
    exact = log_gate.double().requires_grad_()
    total = exact.cumsum(2).squeeze(-1)
    i, j = torch.arange(start, start + queries)[:, None], torch.arange(start + queries)
    later = (j > i).double().masked_fill(j > i, -math.inf)
    expected = exact_rows(q, k, v, total[..., start:, None] - total[..., None, :] + later)[0]
    (wanted,) = torch.autograd.grad((expected * way).sum(), exact)
    assert (found - wanted).abs().max() < 2e-6 * wanted.abs().max()
    # far behind, where nothing is left to forget, rounding does not add up
    assert (found - wanted)[:, :, :30_000].abs().max() < 1e-12


def test_raw_gates_are_activated_in_float32() -> None:
    raw = draw(1, 2, 9, 1, dtype=torch.bfloat16)
    found = built().activate({"log_gate": raw})["log_gate"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp(), raw.float().sigmoid())


@pytest.mark.parametrize("gap", [1e3, 1e5, 1e6])
def test_few_queries_far_behind_every_key_in_float32(gap: float) -> None:
    """The sums of gates behind a key are large, their differences are not: near keys are hidden, or of another part."""
    q, k, v, log_gate = (x.float() for x in tensors(24))
    log_gate[:, :, 20] = -gap
    mechanism, keep = built(dtype=torch.float32), torch.arange(24).expand(2, -1) < 20

    def ends(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor) -> tuple[Tensor, Tensor]:
        mechanism.to(q.dtype)
        given = {"inputs": {"log_gate": log_gate}}
        part = mechanism(q[:, :, 21:], k[:, :, :20], v[:, :, :20], query_start=21, **given).values
        return mechanism(q[:, :, 21:], k, v, key_mask=keep, **given).values, part

    wanted = ends(*(x.double() for x in (q, k, v, log_gate)))
    for found, want in zip(ends(q, k, v, log_gate), wanted, strict=True):
        torch.testing.assert_close(found.double(), want, rtol=0, atol=2e-6)


def far_behind(way: str, x: tuple[Tensor, ...], gap: float) -> tuple[Tensor, ...]:
    """Values, and the gradients of q, k, v and the gates, of queries whose nearest keys lie `gap` behind them."""
    length, wide = x[0].shape[2], x[0].dtype
    at = length // 3
    gate = x[3].index_fill(2, torch.tensor([at]), -gap)
    q, k, v, gate = leaves = [y.detach().clone().requires_grad_() for y in (*x[:3], gate)]
    mechanism = built(2, dtype=wide)
    if way == "part":
        values = mechanism(q[:, :, at:], k[:, :, :at], v[:, :, :at], query_start=at, inputs={"log_gate": gate}).values
    else:
        pairs = torch.ones(length, length, dtype=torch.bool).tril(-length // 4)
        curve = torch.zeros(2, length, dtype=wide)
        curve[0, -length // 4 :] = curve[1, -length // 5 :] = -math.inf  # the nearest
        bias = ScoreBias(high=length - 1, curve=curve) if way == "curve" else ScoreBias(table=pairs[None, None])
        if way == "dropout":
            mechanism = regard.build("forgetting", replace(mechanism.heads, dropout=0.3)).to(wide)
            torch.manual_seed(0)
        values = mechanism(q, k, v, bias=bias, inputs={"log_gate": gate}).values
    loss = (values * draw(*values.shape, seed=5, dtype=wide)).sum()
    return values, *torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("way", ["part", "curve", "table", "dropout"])
@pytest.mark.parametrize(("length", "gap"), [(12, 1e6), (60, 1e3), (60, 1e6), (400, 1e6)])
def test_what_lies_between_costs_the_nearest_keys_no_digit(way: str, length: int, gap: float) -> None:
    """Float32 rounds logits of 1e6 to 1/16. What all logits of a row share does not change its weights."""
    x = tuple(y.float() for y in tensors(length, batch=1))
    found, wanted = far_behind(way, x, gap), far_behind(way, tuple(y.double() for y in x), gap)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6 * other.abs().max().item())


def test_what_it_refuses() -> None:
    q, k, v, log_gate = tensors(9)
    with pytest.raises(InputError, match=r"log_gate must lie in \[-inf, 0.0\]"):
        built()(q, k, v, inputs={"log_gate": -log_gate})
    with pytest.raises(ShapeError, match="takes the inputs"):
        built()(q, k, v)
    with pytest.raises(ShapeError, match=r"\(2, 2, 9, 1\), got torch.float64 \(2, 2, 4, 1\)"):
        built()(q[:, :, 6:], k[:, :, :4], v[:, :, :4], inputs={"log_gate": log_gate[:, :, :4]}, query_start=6)
    with pytest.raises(UnsupportedError, match="a gate forgets what came before it"):
        regard.build("forgetting", regard.Heads(count=2, key_dim=4))
