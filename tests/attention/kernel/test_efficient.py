"""`efficient` against double loops written from SPEC F2, and the laws of its causal passes."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import ConfigError, Heads, UnsupportedError
from regard.engines.sums import channels


def loops(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    """One channel's softmax over the positions after another. The queries are the last positions."""
    batch, heads, queries, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    past = keys - queries if causal else 0
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b, h in itertools.product(range(batch), range(heads)):
        over, values = k[b, h // group].exp().tolist(), v[b, h // group].tolist()
        for i in range(queries):
            seen = [j for j in range(keys) if not (causal and j > i + past) and (mask is None or mask[b, j])]
            of_channel = [math.exp(x) for x in q[b, h, i].tolist()]
            row = [0.0] * v.shape[3]
            for c in range(dim if seen else 0):
                total = sum(over[j][c] for j in seen) * sum(of_channel)
                for j in seen:
                    row = [x + of_channel[c] * over[j][c] / total * y for x, y in zip(row, values[j], strict=True)]
            out[b, h, i] = torch.tensor(row, dtype=torch.float64)
    return out


def draw(queries: int = 9, keys: int = 9, seed: int = 0, dim: int = 4, kv: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((2, 2 * kv, queries, dim), (2, kv, keys, dim), (2, kv, keys, 3))
    q, k, v = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes)
    return q, k, v


def build(causal: bool = True, *, dim: int = 4, kv: int = 2, **options: object):
    return regard.build(
        "efficient", Heads(count=2 * kv, kv_count=kv, key_dim=dim, value_dim=3, causal=causal), **options
    )


def test_equals_the_double_loop_at_every_length() -> None:
    """n = 1 to 40: every way a chunk is halved, with and without padding, causal or not."""
    for n in range(1, 41):
        q, k, v = draw(n, n, seed=n, dim=2, kv=1)
        mask = torch.rand(2, n, generator=torch.Generator().manual_seed(n)) > 0.4
        for causal, key_mask in itertools.product((True, False), (None, mask) if n % 8 == 1 else (None,)):
            found = build(causal, dim=2, kv=1)(q, k, v, key_mask=key_mask).values
            assert (found - loops(q, k, v, causal, key_mask)).abs().max() < 1e-12, (n, causal)


def test_one_common_normaliser_is_another_function() -> None:
    """exp(k) with one sum for all channels: the causal form of the code that is known for this mechanism."""
    q, k, v = draw()
    fk = k.exp().repeat_interleave(2, 1)
    pairs = (q.softmax(-1) @ fk.mT).tril()
    common = pairs @ v.repeat_interleave(2, 1) / pairs.sum(-1, keepdim=True)
    assert (build()(q, k, v).values - common).abs().max() > 1e-2


def test_scaling_divides_by_the_real_keys_and_refuses_causal() -> None:
    q, k, v = draw(5, 7)
    mask = torch.arange(7) < torch.tensor([[7], [3]])
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    mechanism = build(False, normaliser="scaling")
    assert (mechanism(q, k, v).values - q @ keys.mT @ values / 7).abs().max() < 1e-12
    expected = (q @ keys.mT * mask[:, None, None]) @ values / torch.tensor([7.0, 3.0])[:, None, None, None]
    assert (mechanism(q, k, v, key_mask=mask).values - expected).abs().max() < 1e-12
    assert not mechanism(q, k, v, key_mask=torch.zeros_like(mask)).values.any()
    with pytest.raises(UnsupportedError, match="divides by the length of the call"):
        build(True, normaliser="scaling")


def test_gradients_across_spans_of_kept_states() -> None:
    """Float64, 1e-10: three spans, a remainder, leading keys, padding, groups, and the gradient of the state."""
    q, k, v = draw(1070, 1100, dim=3, kv=1)
    mask = torch.rand(2, 1100, generator=torch.Generator().manual_seed(5)) > 0.3
    mask[0, :200] = False
    mechanism = build(dim=3, kv=1)
    x = [y[:1].requires_grad_() for y in (q, k, v)]
    outs = mechanism(*x, key_mask=mask[:1]).values, mechanism.definition(*x, key_mask=mask[:1])
    assert (outs[0] - outs[1]).abs().max() < 1e-12
    g = torch.randn(outs[0].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = torch.autograd.grad(outs[1], x, g)
    for a, b in zip(torch.autograd.grad(outs[0], x, g), wanted, strict=True):
        assert (a - b).abs().max() < 1e-10 * max(1, b.abs().max())
    state, parts = mechanism.initial_state(1, dtype=torch.float64), []
    for a, b in itertools.pairwise((0, 1, 30, 31, 600, 1070)):
        late = slice(a if a == 0 else a + 30, b + 30)  # the first piece holds the leading keys
        out = mechanism(x[0][:, :, a:b], x[1][:, :, late], x[2][:, :, late], key_mask=mask[:1, late], state=state)
        state, parts = out.state, [*parts, out.values]
    for a, b in zip(torch.autograd.grad(torch.cat(parts, 2), x, g), wanted, strict=True):
        assert (a - b).abs().max() < 1e-10 * max(1, b.abs().max())


def test_keys_of_any_size() -> None:
    """A jump by thousands inside a chunk, up, down, per channel: no common scale of a chunk could hold it. Float32."""
    q, k, v = draw(150, 150, kv=1)
    jumps = torch.randint(-3, 4, k.shape, generator=torch.Generator().manual_seed(1)) * 1000.0
    for keys in (k * 1e4, k + jumps, k + jumps.cummax(2).values, k - 1e4 * torch.arange(150.0)[:, None]):
        mechanism = build(kv=1)
        x = [y.float().requires_grad_() for y in (q, keys, v)]
        out = mechanism(*x).values
        exact = mechanism.definition(*(y.detach().double() for y in x))
        assert (out - exact).abs().max() < 2e-6 * exact.abs().max()
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.square().sum(), x))


class Largest(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            self.elements = max(self.elements, x.numel() if isinstance(x, Tensor) else 0)
        return out


def test_memory_is_linear_in_the_length_alone() -> None:
    """Nothing of length x dim x value, forward and backward; one state per 512 keys is kept."""
    length, dim, value = 2048, 16, 24
    r, k = torch.rand(2, 1, 1, length, dim).unbind()
    v, sum, top = torch.randn(1, 1, length, value), torch.zeros(1, 1, dim, value + 1), torch.zeros(1, 1, dim)
    with Largest() as made:
        given = channels.Arguments(r, k, v, sum, top, keep=True)
        out = channels.forward(given)
        channels.backward(given, out, channels.Results(torch.ones_like(v), *[None] * 4), {})
    assert made.elements <= length * value < length * dim * value / 8
    assert out[3].shape == (4, 1, value + 1, dim)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"normaliser": "l2"}, "option normaliser='l2' is not valid"), ({"impl": "flex"}, "impl='flex' is not valid")],
)
def test_bad_options(options: dict, message: str) -> None:
    from regard.attention.kernel.efficient import Efficient

    with pytest.raises(ConfigError, match=message):
        Efficient(Heads(count=1, key_dim=4), **options)
