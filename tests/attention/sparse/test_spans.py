"""adaptive_span and dynamic_span: loops over keys, the ramp, what is computed and kept, and how spans learn."""

import math

import pytest
import torch
from torch import Tensor

from regard import AttentionLayer, ConfigError, Heads, ScoreBias, build
from regard.engines.kernels import forced
from regard.testing.counting import count

SPANS = [0.0, 0.2, 0.55, 1.0]
"""shares of `max_span`, one a head"""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def adaptive(max_span: int, ramp: int, **options: object):
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=True)
    mechanism = build("adaptive_span", heads, max_span=max_span, ramp=ramp, **options).double()
    with torch.no_grad():
        mechanism.span.copy_(torch.tensor(SPANS, dtype=torch.float64))
    return mechanism


def dynamic(max_span: int, ramp: int):
    return build(
        "dynamic_span", Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=True), max_span=max_span, ramp=ramp
    )


def by_loops(q: Tensor, k: Tensor, v: Tensor, z: list[list[float]], ramp: int, longest: int, keep: Tensor) -> Tensor:
    """Each weight by the paper's equation: m_z(i - j) exp(q_i . k_j / sqrt(d)) over its sum. z: by head and slot."""
    out = torch.zeros(1, q.shape[1], q.shape[2], v.shape[3], dtype=torch.float64)
    for head in range(q.shape[1]):
        for i in range(q.shape[2]):
            odds = {}
            for j in range(i + 1):
                m = min(max((ramp + z[head][i] - (i - j)) / ramp, 0.0), 1.0)
                if m > 0 and i - j <= longest and keep[0, j]:
                    odds[j] = m * math.exp(float(q[0, head, i] @ k[0, head // 2, j]) / 2)
            for j, x in odds.items():
                out[0, head, i] += x / sum(odds.values()) * v[0, head // 2, j]
    return out


@pytest.mark.parametrize(("max_span", "ramp"), [(1, 1), (5, 2), (12, 7), (100, 32)])
def test_both_weigh_keys_as_published(max_span: int, ramp: int) -> None:
    for n in (1, 2, 3, 7, 13, 26, 40):
        q, k, v = draw(1, 4, n, 4), draw(1, 2, n, 4, seed=1), draw(1, 2, n, 3, seed=2)
        keep = torch.arange(n)[None] % 5 != 3
        spans = torch.rand(1, 4, n, 1, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        fixed = [[max_span * share] * n for share in SPANS]
        chosen = (max_span * spans[0, :, :, 0] * keep).tolist()  # padding asks for nothing
        for engine in ("", "tiles"):
            with forced(engine):
                got = adaptive(max_span, ramp)(q, k, v, key_mask=keep).values
            torch.testing.assert_close(got, by_loops(q, k, v, fixed, ramp, max_span, keep), rtol=0, atol=1e-12)
        got = dynamic(max_span, ramp)(q, k, v, key_mask=keep, inputs={"span": spans}).values
        torch.testing.assert_close(got, by_loops(q, k, v, chosen, ramp, max_span, keep), rtol=0, atol=1e-12)


def test_what_is_trimmed_has_no_weight() -> None:
    """Spans far below `max_span`: the same numbers as with the whole window, in steps of 64."""
    q, v = draw(1, 4, 300, 4), draw(1, 2, 300, 3, seed=2)
    trimmed, whole = adaptive(1000, 5), adaptive(1000, 5)
    with torch.no_grad():
        for mechanism in (trimmed, whole):
            mechanism.span.copy_(torch.tensor([0.0, 0.06, 0.01, 0.062]))
    whole.needed = lambda: 1000  # type: ignore[method-assign]
    got = trimmed(q, q[:, :2], v).values
    assert (trimmed.reach, trimmed.kept_slots(300)) == (128, 128)  # z + R - 1 = 66
    torch.testing.assert_close(got, whole(q, q[:, :2], v).values, rtol=0, atol=1e-12)
    assert whole.reach == 1000
    spans = 0.06 * torch.rand(1, 4, 300, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens, every = dynamic(1000, 5), dynamic(1000, 5)
    every.reaching = lambda z: every.whole  # type: ignore[method-assign]
    assert tokens.reaching(1000 * spans) == tokens.rule(64)
    given = [x.requires_grad_() for x in (q, v, spans)]
    one, other = (each(q, q[:, :2], v, inputs={"span": spans}).values for each in (tokens, every))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    slopes = (torch.autograd.grad(x.square().sum(), given) for x in (one, other))
    for got, wanted in zip(*slopes, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


def test_operations_follow_the_learned_span() -> None:
    q = torch.randn(1, 4, 1024, 4)
    counts: dict[str, list[float]] = {"adaptive": [], "dynamic": []}
    for share in (0.0, 0.25, 0.5, 1.0):
        mechanism = adaptive(512, 32).float()
        torch.nn.init.constant_(mechanism.span, share)
        counts["adaptive"].append(count(lambda mechanism=mechanism: mechanism(q, q[:, :2], q[:, :2, :, :3])).flops)
        spans = torch.full((1, 4, 1024, 1), share)
        asked = dynamic(512, 32)
        given = {"span": spans}
        counts["dynamic"].append(
            count(lambda asked=asked, given=given: asked(q, q[:, :2], q[:, :2, :, :3], inputs=given)).flops
        )
    for name, (least, quarter, half, whole) in counts.items():  # reaches of 64, 192, 320 and 512 slots of 1,024
        assert 1.3 * least < quarter, name
        assert 1.3 * quarter < half, name
        assert 1.2 * half < whole < 2 * half, name


def test_the_state_follows_the_span() -> None:
    mechanism, x = adaptive(500, 8), draw(1, 4, 400, 4)
    with torch.no_grad():
        mechanism.span.copy_(torch.tensor([0.01, 0.1, 0.0, 0.05]))
        state = mechanism(x, x[:, :2], x[:, :2, :, :3], state=mechanism.initial_state(1, dtype=torch.float64)).state
    assert state.tensors()["k"].shape[2] == 64
    assert state.nbytes == mechanism.state_nbytes(1, 400, torch.float64) == 2 * 64 * (4 + 3) * 8


def test_the_slope_of_z_is_1_over_r_on_the_ramp_alone() -> None:
    mechanism = adaptive(10, 4)
    with torch.no_grad():
        mechanism.span.fill_(0.35)  # z = 3.5: m is 1 up to 3, then 7/8, 5/8, 3/8, 1/8, 0
    m = mechanism.log_mask(torch.arange(10)).exp()
    torch.testing.assert_close(
        m[0].detach(), torch.tensor([1, 1, 1, 1, 0.875, 0.625, 0.375, 0.125, 0, 0], dtype=torch.float64)
    )
    for distance, slope in enumerate([0, 0, 0, 0, 10 / 4, 10 / 4, 10 / 4, 10 / 4, 0, 0]):  # z = 10 span
        (got,) = torch.autograd.grad(mechanism.log_mask(torch.tensor([distance])).exp()[0, 0], mechanism.span)
        assert math.isclose(got[0].item(), slope, abs_tol=1e-9), distance


@pytest.mark.parametrize(
    ("start", "push", "stays"), [(-0.2, 1.0, True), (-0.2, -1.0, False), (1.3, -1.0, True), (1.3, 1.0, False)]
)
def test_a_span_outside_its_bounds_is_cut_and_can_only_come_back(start: float, push: float, stays: bool) -> None:
    mechanism = adaptive(10, 4)
    with torch.no_grad():
        mechanism.span.fill_(start)
    assert torch.equal(mechanism.z.detach(), torch.full((4,), 10.0 * min(max(start, 0), 1), dtype=torch.float64))
    (push * mechanism.z.sum()).backward()
    assert torch.equal(mechanism.span.grad, torch.full((4,), 0.0 if stays else push * 10, dtype=torch.float64))


def test_the_loss_is_the_mean_span() -> None:
    mechanism, x = adaptive(20, 4).train(), draw(2, 4, 9, 4)
    got = mechanism(x, x[:, :2], x[:, :2, :, :3]).losses["span"]
    assert math.isclose(got.item(), 20 * sum(SPANS) / 4)
    spans = torch.rand(2, 4, 9, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0, 6:] = False
    got = dynamic(20, 4).train()(x, x[:, :2], x[:, :2, :, :3], key_mask=keep, inputs={"span": spans}).losses["span"]
    wanted = 20 * (spans[0, :, :6].sum() + spans[1].sum()) / (4 * 15)
    assert math.isclose(got.item(), wanted.item())


def test_two_heads_learn_the_spans_that_a_task_needs() -> None:
    """Values 2 and 30 tokens back: both heads learn to look so far, and a penalty keeps what is not needed away."""
    torch.manual_seed(0)
    heads = Heads(count=2, key_dim=4, causal=True)
    mechanism = build("adaptive_span", heads, max_span=64, ramp=4, initial=0.5)
    optimizer = torch.optim.Adam([mechanism.span], lr=0.02)
    queries, keys = torch.zeros(1, 2, 96, 4), torch.zeros(1, 2, 96, 4)
    position = torch.zeros(1, 2, 96, 96)
    for head, distance in enumerate((2, 30)):
        for i in range(distance, 96):
            position[0, head, i, i - distance] = 8.0
    mechanism.train()
    for _ in range(150):
        values = torch.randn(1, 2, 96, 4)
        got = mechanism(queries, keys, values, bias=ScoreBias(table=position))
        wanted = torch.stack([values[0, head].roll(distance, 0) for head, distance in enumerate((2, 30))])[None]
        loss = (got.values - wanted)[:, :, 30:].square().mean() + 2e-3 * got.losses["span"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    near, far = mechanism.z.tolist()
    assert near < 8 < 26 < far < 40


def test_limits() -> None:
    for spec in ("adaptive_span(max_span=0)", "dynamic_span(ramp=0)", "adaptive_span(initial=1.5)"):
        with pytest.raises(ConfigError, match=r"max_span|ramp|initial"):
            build(spec, Heads(count=1, key_dim=2, causal=True))
    x = torch.zeros(1, 1, 3, 2)
    mechanism = build("dynamic_span", Heads(count=1, key_dim=2, causal=True))
    with pytest.raises(ValueError, match="span"):
        mechanism(x, x, x, inputs={"span": torch.full((1, 1, 3, 1), 1.5)})


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_head_whose_span_is_no_number_gives_none(impl: str) -> None:
    q, k, v = draw(1, 4, 90, 4), draw(1, 2, 90, 4, seed=1), draw(1, 2, 90, 3, seed=2)
    mechanism = adaptive(300, 5, impl=impl)
    wanted = mechanism(q, k, v).values
    with torch.no_grad():
        mechanism.span[1] = math.nan
    got = mechanism(q, k, v).values
    assert got[:, 1].isnan().all()
    torch.testing.assert_close(got[:, [0, 2, 3]], wanted[:, [0, 2, 3]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_token_whose_span_is_no_number_gets_none(impl: str) -> None:
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=True)
    mechanism = build("dynamic_span", heads, max_span=20, ramp=4, impl=impl)
    q, k, v = draw(1, 4, 90, 4), draw(1, 2, 90, 4, seed=1), draw(1, 2, 90, 3, seed=2)
    span = torch.rand(1, 4, 90, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = mechanism(q, k, v, inputs={"span": span}).values
    span[0, 1, 50] = math.nan
    got = mechanism(q, k, v, inputs={"span": span}).values
    assert got.isnan().all(-1).nonzero().tolist() == [[0, 1, 50]]
    wanted[0, 1, 50] = math.nan
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12, equal_nan=True)


def test_no_token_asks_for_no_span() -> None:
    x = draw(2, 5, 8).float()
    layer = AttentionLayer(8, "dynamic_span(max_span=20, ramp=4)", heads=2, causal=True).train()
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert layer.remember(x, key_mask=mask, state=layer.initial_state(2)).length == 5
    nothing, span = draw(2, 4, 0, 4), torch.zeros(2, 4, 0, 1, dtype=torch.float64)
    got = dynamic(20, 4).train()(nothing, draw(2, 2, 5, 4), draw(2, 2, 5, 3), key_mask=mask, inputs={"span": span})
    assert got.losses["span"].item() == 0
