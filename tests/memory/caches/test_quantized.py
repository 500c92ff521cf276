"""Slots in few bits, against loops from the definition: what each row reads exactly, and what as a code."""

import math

import pytest
import torch

import regard
from regard import Heads, build
from regard.core.errors import ConfigError, UnsupportedError
from regard.memory.caches import build_cache
from regard.memory.caches._codes import coded, decoded, packed, unpacked

HEADS = Heads(count=4, kv_count=2, key_dim=6, value_dim=6, causal=True, max_length=64)
LENGTH, RECENT, GROUP = 40, 6, 3
SPEC = f"quantized(bits={{}}, recent={RECENT}, group={GROUP})"


def draw(length=LENGTH, batch=2, seed=0):
    of = torch.Generator().manual_seed(seed)
    widths = (4, 6), (2, 6), (2, 6)
    return tuple(torch.randn(batch, n, length, width, generator=of, dtype=torch.float64) for n, width in widths)


def grid(numbers, bits):
    """Numbers of a group, each the nearest of 2^bits even steps between the least and the greatest."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return list(numbers)
    step = (high - low) / (2**bits - 1)
    return [low + step * math.floor((x - low) / step + 0.5) for x in numbers]


def loops(q, k, v, bits, group):
    """SPEC P8: row i reads codes of the keys j < R floor(i / R) and of the values j < i - R."""
    batch, heads, length, _ = q.shape
    values = torch.zeros(batch, heads, length, v.shape[3], dtype=torch.float64)
    rough_k, rough_v = k.clone(), v.clone()
    for b in range(batch):
        for h in range(k.shape[1]):
            for c in range(k.shape[3]):
                for first in range(0, length - length % RECENT, group):
                    part = k[b, h, first : first + group, c].tolist()
                    rough_k[b, h, first : first + group, c] = torch.tensor(grid(part, bits), dtype=k.dtype)
            for j in range(length):
                for c in range(0, v.shape[3], group):
                    part = v[b, h, j, c : c + group].tolist()
                    rough_v[b, h, j, c : c + group] = torch.tensor(grid(part, bits), dtype=v.dtype)
            for i in range(length):
                read_k, read_v = k[b, h, : i + 1].clone(), v[b, h, : i + 1].clone()
                coded_keys, coded_values = RECENT * (i // RECENT), max(i - RECENT, 0)
                read_k[:coded_keys] = rough_k[b, h, :coded_keys]
                read_v[:coded_values] = rough_v[b, h, :coded_values]
                for of in range(2 * h, 2 * h + 2):
                    odds = (read_k @ q[b, of, i] / 6**0.5).exp()
                    values[b, of, i] = odds @ read_v / odds.sum()
    return values


@torch.no_grad()
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_equal_to_the_loops(bits):
    q, k, v = draw()
    mechanism = build("softmax", HEADS).eval()
    cache = build_cache(SPEC.format(bits), mechanism).eval()
    wanted = loops(q, k, v, bits, GROUP)
    for n in range(1, LENGTH + 1):
        state = cache.initial_state(mechanism, 2, dtype=torch.float64)
        got = cache(mechanism, *(x[:, :, :n] for x in (q, k, v)), state=state)
        torch.testing.assert_close(got.values, wanted[:, :, :n], rtol=1e-11, atol=1e-11)
        assert got.state.length == n
        assert got.state.nbytes == cache.state_nbytes(mechanism, 2, n, torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("name", ["softmax", "cosine", "additive", "shaw", "distance_aware"])
def test_every_split_is_the_whole_and_what_is_not_rounded_is_exact(name):
    q, k, v = draw(20)
    mechanism = build(name, HEADS).double().eval()
    cache = build_cache(SPEC.format(2), mechanism).eval()
    whole = cache(mechanism, q, k, v).values
    for sizes in ([1] * 20, [5, 2, 13], [6, 14], [13, 7]):
        state, first, parts = cache.initial_state(mechanism, 2, dtype=torch.float64), 0, []
        for size in sizes:
            got = cache(mechanism, *(x[:, :, first : first + size] for x in (q, k, v)), state=state)
            state, first = got.state, first + size
            parts.append(got.values)
        torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-9, atol=1e-11)
    exact = mechanism(*(x[:, :, :RECENT] for x in (q, k, v)), state=mechanism.initial_state(2, dtype=q.dtype)).values
    assert torch.equal(cache(mechanism, *(x[:, :, :RECENT] for x in (q, k, v))).values, exact)
    assert not torch.allclose(whole[:, :, RECENT:], mechanism(q, k, v).values[:, :, RECENT:])


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_no_error_is_above_half_a_step(bits):
    x = torch.randn(50, 32, generator=torch.Generator().manual_seed(bits)) * torch.logspace(-3, 3, 50)[:, None]
    found = decoded(*coded(x, bits, -1), x.dtype)
    reach = x.amax(-1) - x.amin(-1)
    error = (found - x).abs().amax(-1)
    bound = reach / (2 * (2**bits - 1))
    assert (error <= bound * (1 + 1e-4)).all()
    assert (error > bound * 0.8).any()  # the bound is met
    same = torch.full((3, 8), 1 / 3)
    assert torch.equal(decoded(*coded(same, bits, -1), same.dtype), same)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_half_precision_adds_the_rounding_of_the_number_alone(bits, dtype):
    """Far from 0, where low has few digits, and near it, where a step is below the least number of float16."""
    of, limits = torch.Generator().manual_seed(bits), torch.finfo(dtype)
    for scale, centre in ((1.0, 5.0), (1.0, 0.0), (1e-4, 0.0), (1e-6, 0.0)):
        x = ((torch.randn(500, 32, generator=of) + centre) * scale).to(dtype)
        found, exact = decoded(*coded(x, bits, -1), dtype).double(), x.double()
        bound = (exact.amax(-1, keepdim=True) - exact.amin(-1, keepdim=True)) / (2 * (2**bits - 1))
        last = (found.abs() * limits.eps).clamp_min(limits.smallest_normal * limits.eps) / 2
        assert ((found - exact).abs() <= bound * (1 + 1e-4) + last).all()


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("width", [1, 5, 8])
def test_packed_codes_are_those_that_come_back(bits, width):
    codes = torch.randint(2**bits, (3, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    kept = packed(codes, bits)
    assert kept.shape == (3, math.ceil(width * bits / 8))
    assert torch.equal(unpacked(kept, bits, width), codes)


@torch.no_grad()
def test_bytes_in_half_precision():
    """bits / 8 + 8 / G for each coded number: low and step are float32."""
    heads = Heads(count=2, key_dim=64, causal=True)
    mechanism = build("softmax", heads).eval()
    for bits in (8, 4, 2):
        cache = build_cache(f"quantized(bits={bits})", mechanism)
        more = [cache.state_nbytes(mechanism, 1, n, torch.float16) for n in (640, 1280)]
        assert more[1] - more[0] == 640 * 2 * 128 * (bits / 8 + 8 / 32)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_state_of_half_precision_has_the_bytes_of_the_formula(dtype):
    mechanism, (q, k, v) = build("softmax", HEADS).eval(), (x.to(dtype) for x in draw())
    cache = build_cache(SPEC.format(4), mechanism).eval()
    got = cache(mechanism, q, k, v, state=cache.initial_state(mechanism, 2, dtype=dtype))
    assert got.values.dtype == dtype
    assert got.state.slots("key_ranges").view()["step"].dtype == torch.float32
    assert got.state.nbytes == cache.state_nbytes(mechanism, 2, LENGTH, dtype)


def test_what_it_does_not_serve():
    mechanism = build("softmax", HEADS).eval()
    for options, why in (("recent=30", "group=32 must divide recent=30"), ("group=4, recent=8", "divide the values'")):
        with pytest.raises(ConfigError, match=why):
            build_cache(f"quantized({options})", mechanism)
    with pytest.raises(UnsupportedError, match="keeps buckets, k, v"):
        build_cache("quantized(group=2)", build("lsh", Heads(count=2, key_dim=6, causal=True, max_length=64)))
    with pytest.raises(UnsupportedError, match="keeps sums"):
        build_cache("quantized(group=2)", build("linear", Heads(count=2, key_dim=6, causal=True)))
    cache, (q, k, v) = build_cache(SPEC.format(4), mechanism).eval(), draw(5)
    mask = torch.tensor([[True] * 5, [False] + [True] * 4])
    with pytest.raises(UnsupportedError, match="no rows of unequal length"):
        cache(mechanism, q, k, v, key_mask=mask)
    assert torch.equal(cache(mechanism, q, k, v, key_mask=mask[:1].expand(2, -1)).values, mechanism(q, k, v).values)
    assert "quantized" in regard.memory.caches.names()
