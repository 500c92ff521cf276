"""The Triton kernels behind `linear_triton`. Tensors are contiguous; a row is a pair of batch element and head."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.engines.gpu._interpreter import INTERPRETED

CHUNK = 64
WIDEST = 64
"""features or value columns in one block of a product"""

WIDENED = tl.constexpr(INTERPRETED)
"""The interpreter multiplies the bits of bfloat16 numbers; in float32 their product is the one that hardware makes."""


@triton.jit
def _block(pointer, row, column, rows, columns, size: tl.constexpr, width: tl.constexpr):
    """The (size, width) block that starts at (row, column) of a matrix; 0 outside of it."""
    at, over = row + tl.arange(0, size), column + tl.arange(0, width)
    inside = (at < rows)[:, None] & (over < columns)[None]
    return tl.load(pointer + at[:, None].to(tl.int64) * columns + over[None], mask=inside, other=0.0)


@triton.jit
def _put(pointer, block, row, column, rows, columns, size: tl.constexpr, width: tl.constexpr):
    at, over = row + tl.arange(0, size), column + tl.arange(0, width)
    inside = (at < rows)[:, None] & (over < columns)[None]
    tl.store(pointer + at[:, None].to(tl.int64) * columns + over[None], block, mask=inside)


@triton.jit
def _entries(pointer, at, limit):
    return tl.load(pointer + at, mask=at < limit, other=0.0)


@triton.jit
def _product(a, b, wide: tl.constexpr):
    if WIDENED:
        a, b = a.to(wide), b.to(wide)
    return tl.dot(a, b, input_precision="ieee", out_dtype=wide)


@triton.jit
def _causal(pairs, size: tl.constexpr):
    at = tl.arange(0, size)
    return tl.where(at[:, None] >= at[None], pairs, 0.0)


@triton.jit
def _sums(
    fk, v, start, states, end, length, features, value, chunks,
    size: tl.constexpr, wide_f: tl.constexpr, wide_v: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """S and z before every chunk, and behind the last one. The last program of a row of blocks also keeps z."""
    f, c, row = tl.program_id(0) * wide_f, tl.program_id(1) * wide_v, tl.program_id(2).to(tl.int64)
    columns, numbers = value + 1, features * (value + 1)
    fk += row * length * features
    v += row * length * value
    at = f + tl.arange(0, wide_f)
    total = at.to(tl.int64) * columns + value
    s = _sum_block(start + row * numbers, f, c, features, value, wide_f, wide_v)
    z = _entries(start + row * numbers, total, numbers)
    for chunk in range(chunks):
        into = states + (row * chunks + chunk) * numbers
        _put_sum(into, s, f, c, features, value, wide_f, wide_v)
        if c == 0:
            tl.store(into + total, z, mask=at < features)
        key = _block(fk, chunk * size, f, length, features, size, wide_f)
        s += _product(tl.trans(key), _block(v, chunk * size, c, length, value, size, wide_v), wide)
        z += tl.sum(key.to(wide), 0)
    _put_sum(end + row * numbers, s, f, c, features, value, wide_f, wide_v)
    if c == 0:
        tl.store(end + row * numbers + total, z, mask=at < features)


@triton.jit
def _sum_block(pointer, f, c, features, value, wide_f: tl.constexpr, wide_v: tl.constexpr):
    """A block of S out of the matrix [S, z]."""
    at, over = f + tl.arange(0, wide_f), c + tl.arange(0, wide_v)
    inside = (at < features)[:, None] & (over < value)[None]
    return tl.load(pointer + at[:, None].to(tl.int64) * (value + 1) + over[None], mask=inside, other=0.0)


@triton.jit
def _put_sum(pointer, block, f, c, features, value, wide_f: tl.constexpr, wide_v: tl.constexpr):
    at, over = f + tl.arange(0, wide_f), c + tl.arange(0, wide_v)
    inside = (at < features)[:, None] & (over < value)[None]
    tl.store(pointer + at[:, None].to(tl.int64) * (value + 1) + over[None], block, mask=inside)


@triton.jit
def _outputs(
    fq, fk, v, states, values, totals, length, features, value, chunks, group,
    size: tl.constexpr, wide_f: tl.constexpr, wide_v: tl.constexpr, wide: tl.constexpr, normalise: tl.constexpr,
):  # fmt: skip
    """Values and totals of one chunk, for one block of value columns."""
    c, chunk, row = tl.program_id(0) * wide_v, tl.program_id(1), tl.program_id(2).to(tl.int64)
    keys, columns = row // group, value + 1
    first = chunk * size
    fq += row * length * features
    fk += keys * length * features
    states += (keys * chunks + chunk) * features * columns
    pairs = tl.zeros((size, size), wide)
    y = tl.zeros((size, wide_v), wide)
    total = tl.zeros((size,), wide)
    for f in range(0, features, wide_f):
        query = _block(fq, first, f, length, features, size, wide_f)
        pairs += _product(query, tl.trans(_block(fk, first, f, length, features, size, wide_f)), wide)
        s = _sum_block(states, f, c, features, value, wide_f, wide_v)
        y += _product(query, s.to(query.dtype), wide)
        z = _entries(states, (f + tl.arange(0, wide_f)).to(tl.int64) * columns + value, features * columns)
        total += tl.sum(query.to(wide) * z[None], 1)
    value_block = _block(v + keys * length * value, first, c, length, value, size, wide_v)
    pairs = _causal(pairs, size).to(value_block.dtype)
    total += tl.sum(pairs.to(wide), 1)  # of the rounded weights, so that they still sum to one
    y += _product(pairs, value_block, wide)
    if normalise:
        y = tl.where(total[:, None] == 0, 0.0, y / tl.where(total == 0, 1.0, total)[:, None])
    at = first + tl.arange(0, size)
    _put(values + row * length * value, y.to(value_block.dtype), first, c, length, value, size, wide_v)
    if c == 0:
        tl.store(totals + row * length + at, total, mask=at < length)


@triton.jit
def _slopes(
    fq, outer, slope, of_end, after, of_start, length, features, value, chunks, group,
    size: tl.constexpr, wide_f: tl.constexpr, wide_v: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The gradients of S and z behind every chunk, and before the first one."""
    f, c, row = tl.program_id(0) * wide_f, tl.program_id(1) * wide_v, tl.program_id(2).to(tl.int64)
    columns, numbers = value + 1, features * (value + 1)
    at = f + tl.arange(0, wide_f)
    total = at.to(tl.int64) * columns + value
    s = _sum_block(of_end + row * numbers, f, c, features, value, wide_f, wide_v)
    z = _entries(of_end + row * numbers, total, numbers)
    for back in range(chunks):
        chunk = chunks - 1 - back
        into = after + (row * chunks + chunk) * numbers
        _put_sum(into, s, f, c, features, value, wide_f, wide_v)
        if c == 0:
            tl.store(into + total, z, mask=at < features)
        for member in range(group):
            head = (row * group + member) * length
            query = _block(fq + head * features, chunk * size, f, length, features, size, wide_f)
            s += _product(
                tl.trans(query), _block(outer + head * value, chunk * size, c, length, value, size, wide_v), wide
            )
            slopes = _entries(slope + head, chunk * size + tl.arange(0, size), length)
            z += tl.sum(query.to(wide) * slopes[:, None], 0)
    _put_sum(of_start + row * numbers, s, f, c, features, value, wide_f, wide_v)
    if c == 0:
        tl.store(of_start + row * numbers + total, z, mask=at < features)


@triton.jit
def _feature_gradients(
    fq, fk, v, outer, slope, states, after, of_fq, of_fk, length, features, value, chunks, group,
    size: tl.constexpr, wide_f: tl.constexpr, wide_v: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """dF = dY S^T + dl z^T + M G and dG = V dS^T + dz^T + M^T F with M = tril(dY V^T + dl 1^T), of one chunk."""
    f, chunk, row = tl.program_id(0) * wide_f, tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, columns = chunk * size, value + 1
    states += (row * chunks + chunk) * features * columns
    after += (row * chunks + chunk) * features * columns
    fk += row * length * features
    v += row * length * value
    key = _block(fk, first, f, length, features, size, wide_f)
    total = (f + tl.arange(0, wide_f)).to(tl.int64) * columns + value
    z, dz = _entries(states, total, features * columns), _entries(after, total, features * columns)
    of_key = tl.zeros((size, wide_f), wide) + dz[None]
    for c in range(0, value, wide_v):
        ds = _sum_block(after, f, c, features, value, wide_f, wide_v)
        of_key += _product(_block(v, first, c, length, value, size, wide_v), tl.trans(ds).to(key.dtype), wide)
    for member in range(group):
        head = (row * group + member) * length
        slopes = _entries(slope + head, first + tl.arange(0, size), length)
        pairs = tl.zeros((size, size), wide) + slopes[:, None]
        of_query = slopes[:, None] * z[None]
        for c in range(0, value, wide_v):
            out = _block(outer + head * value, first, c, length, value, size, wide_v)
            pairs += _product(out, tl.trans(_block(v, first, c, length, value, size, wide_v)), wide)
            s = _sum_block(states, f, c, features, value, wide_f, wide_v)
            of_query += _product(out, tl.trans(s).to(out.dtype), wide)
        pairs = _causal(pairs, size).to(key.dtype)
        of_query += _product(pairs, key, wide)
        query = _block(fq + head * features, first, f, length, features, size, wide_f)
        of_key += _product(tl.trans(pairs), query, wide)
        _put(of_fq + head * features, of_query.to(key.dtype), first, f, length, features, size, wide_f)
    _put(of_fk + row * length * features, of_key.to(key.dtype), first, f, length, features, size, wide_f)


@triton.jit
def _value_gradient(
    fq, fk, outer, after, of_v, length, features, value, chunks, group,
    size: tl.constexpr, wide_f: tl.constexpr, wide_v: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """dV = G dS + tril(F G^T)^T dY, of one chunk."""
    c, chunk, row = tl.program_id(0) * wide_v, tl.program_id(1), tl.program_id(2).to(tl.int64)
    first = chunk * size
    after += (row * chunks + chunk) * features * (value + 1)
    fk += row * length * features
    gradient = tl.zeros((size, wide_v), wide)
    for f in range(0, features, wide_f):
        key = _block(fk, first, f, length, features, size, wide_f)
        gradient += _product(key, _sum_block(after, f, c, features, value, wide_f, wide_v).to(key.dtype), wide)
    for member in range(group):
        head = (row * group + member) * length
        pairs = tl.zeros((size, size), wide)
        for f in range(0, features, wide_f):
            query = _block(fq + head * features, first, f, length, features, size, wide_f)
            pairs += _product(query, tl.trans(_block(fk, first, f, length, features, size, wide_f)), wide)
        out = _block(outer + head * value, first, c, length, value, size, wide_v)
        gradient += _product(tl.trans(_causal(pairs, size)).to(out.dtype), out, wide)
    _put(of_v + row * length * value, gradient.to(of_v.dtype.element_ty), first, c, length, value, size, wide_v)


def sums(fk: Tensor, v: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """(states before every chunk (batch, kv_heads, chunks, features, value + 1), sums behind the last key)."""
    batch, kv_heads, length, features = fk.shape
    states = start.new_empty(batch, kv_heads, triton.cdiv(length, CHUNK), *start.shape[2:])
    end = torch.empty_like(start)
    wide = _widths(features, v.shape[3])
    grid = (triton.cdiv(features, wide[0]), _blocks(v.shape[3], wide[1]), batch * kv_heads)
    _sums[grid](fk, v, start, states, end, length, features, v.shape[3], states.shape[2], CHUNK, *wide, _wide(start))
    return states, end


def outputs(fq: Tensor, fk: Tensor, v: Tensor, states: Tensor, normalise: bool) -> tuple[Tensor, Tensor]:
    """Values (batch, heads, queries, value) and totals (batch, heads, queries)."""
    batch, heads, length, features = fq.shape
    value, chunks = v.shape[3], states.shape[2]
    values, totals = v.new_empty(batch, heads, length, value), states.new_empty(batch, heads, length)
    wide = _widths(features, value)
    grid = (_blocks(value, wide[1]), chunks, batch * heads)
    sizes = (length, features, value, chunks, heads // fk.shape[1])
    _outputs[grid](fq, fk, v, states, values, totals, *sizes, CHUNK, *wide, _wide(states), normalise)
    return values, totals


def slopes(fq: Tensor, outer: Tensor, slope: Tensor, of_end: Tensor) -> tuple[Tensor, Tensor]:
    """(gradients of the sums behind every chunk, gradient of the sums before the first key)."""
    batch, heads, length, features = fq.shape
    kv_heads, value, chunks = of_end.shape[1], outer.shape[3], triton.cdiv(length, CHUNK)
    after, of_start = of_end.new_empty(batch, kv_heads, chunks, *of_end.shape[2:]), torch.empty_like(of_end)
    wide = _widths(features, value)
    grid = (triton.cdiv(features, wide[0]), _blocks(value, wide[1]), batch * kv_heads)
    sizes = (length, features, value, chunks, heads // kv_heads)
    _slopes[grid](fq, outer, slope.contiguous(), of_end, after, of_start, *sizes, CHUNK, *wide, _wide(of_end))
    return after, of_start


def feature_gradients(
    fq: Tensor, fk: Tensor, v: Tensor, outer: Tensor, slope: Tensor, states: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of fq and fk."""
    of_fq, of_fk = torch.empty_like(fq), torch.empty_like(fk)
    batch, kv_heads, length, features = fk.shape
    wide = _widths(features, v.shape[3])
    grid = (triton.cdiv(features, wide[0]), states.shape[2], batch * kv_heads)
    sizes = (length, features, v.shape[3], states.shape[2], fq.shape[1] // kv_heads)
    _feature_gradients[grid](
        fq, fk, v, outer, slope.contiguous(), states, after, of_fq, of_fk, *sizes, CHUNK, *wide, _wide(states)
    )
    return of_fq, of_fk


def value_gradient(fq: Tensor, fk: Tensor, outer: Tensor, after: Tensor) -> Tensor:
    """Gradient of v."""
    batch, kv_heads, length, features = fk.shape
    of_v = outer.new_empty(batch, kv_heads, length, outer.shape[3])
    wide = _widths(features, outer.shape[3])
    grid = (_blocks(outer.shape[3], wide[1]), after.shape[2], batch * kv_heads)
    sizes = (length, features, outer.shape[3], after.shape[2], fq.shape[1] // kv_heads)
    _value_gradient[grid](fq, fk, outer, after, of_v, *sizes, CHUNK, *wide, _wide(after))
    return of_v


def _widths(features: int, value: int) -> tuple[int, int]:
    """Blocks of features and of value columns: powers of two from 16, the least that a product takes."""
    return tuple(min(WIDEST, max(16, triton.next_power_of_2(x))) for x in (features, value))  # type: ignore[return-value]


def _blocks(columns: int, wide: int) -> int:
    """At least one: totals are made also where there are no values."""
    return max(1, triton.cdiv(columns, wide))


def _wide(kept: Tensor) -> tl.dtype:
    return tl.float64 if kept.dtype == torch.float64 else tl.float32
