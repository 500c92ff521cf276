"""Dropout of every sparse mechanism: the weights without it, times the factors that seed, row, head and slots give."""

import itertools

import pytest
import torch
from torch import Tensor

import regard
from regard import AttentionLayer, Heads, build
from regard.catalog import names
from regard.core.bias import ScoreBias
from regard.engines.kernels import forced
from regard.engines.tiles import Dropout

N, P = 90, 0.4
SPARSE = ["local(window=9)", "local(window=3, dilation=4)", "atrous(dilation=3)"]
SPARSE += ["local_atrous(window=2, dilation=5)", "strided(stride=6)", "strided_union(stride=7)"]
SPARSE += ["fixed(stride=6, columns=2)", "fixed_union(stride=24, columns=3)"]
SPARSE += ["image_local_1d(block_size=9, memory=4)", "image_local_2d(width=6, query_block=(2, 3), flange=(3, 1))"]
SPARSE += ["blockwise(blocks=4)", "blockwise(blocks=4, shift=0)", "pattern(rule='block(7) | first(3)')"]
SPARSE += ["pattern(rule='per_head(window(9), strided(2), block(5), first(4))')"]
SPARSE += ["adaptive_span(max_span=9, ramp=4, initial=0.5)", "adaptive_span(max_span=80, ramp=5)"]
GLOBAL = ["longformer(window=3, dilation=(1, 2))", "longformer(window=2, num_global=7)"]
GLOBAL += ["bigbird(block_size=4)", "bigbird(form=etc, block_size=3, num_global=2)"]
GLOBAL += ["etc(window=4, num_global=3, g2g=self)", "etc(window=2, num_global=0)"]
CALLS = [
    (spec, causal)
    for spec in SPARSE + GLOBAL
    for causal in (False, True)
    if getattr(regard.describe(spec).supports, "causal" if causal else "bidirectional")
]


def made(spec: str, causal: bool, dropout: float = P, value_dim: int = N, **heads: int):
    return build(
        spec, Heads(count=4, key_dim=8, value_dim=value_dim, causal=causal, max_length=N, dropout=dropout, **heads)
    )


def drawn(*, value: Tensor | None = None, kv_heads: int = 2) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, heads, N, 8, generator=source, dtype=torch.float64) for heads in (4, kv_heads, kv_heads))
    return [q, k, v if value is None else value.expand(3, kv_heads, N, N)]


def marks_of(spec: str) -> Tensor:
    marks = torch.zeros(3, N, dtype=torch.long)
    marks[0, 20], marks[1, 5], marks[1, 70] = (-1 if spec.startswith("etc") else 1,) * 3
    return marks


def factors(q: Tensor, first: int = 0) -> Tensor:
    """Those of the next call."""
    i, j = torch.arange(first, first + q.shape[2]), torch.arange(N)
    return Dropout.drawn(P).factors(i[None], j[None], like=q)


def test_these_are_all_sparse_names() -> None:
    sparse = {name for name in names() if regard.catalog.family(name) == "sparse" and name != "dynamic_span"}
    assert {spec.partition("(")[0] for spec in SPARSE + GLOBAL} == sparse


@pytest.mark.parametrize(("spec", "causal"), CALLS)
def test_weights_are_those_without_times_the_factors(spec: str, causal: bool) -> None:
    mechanism, x = made(spec, causal, kv_count=2), drawn(value=torch.eye(N, dtype=torch.float64))
    keep = torch.rand(3, N, generator=torch.Generator().manual_seed(1)) > 0.2
    keep[:, 0] = True
    calls = [{}, {"key_mask": keep}, {"bias": ScoreBias(table=torch.randn(3, 4, N, N, dtype=torch.float64))}]
    if mechanism.info.supports.marks:
        calls.append({"marks": marks_of(spec)})
    for call, engine in itertools.product(calls, ("", "tiles")):
        with forced(engine):
            plain = mechanism.eval()(*x, **call).values
            assert torch.equal(plain, made(spec, causal, 0.0, kv_count=2)(*x, **call).values)
            torch.manual_seed(5)
            found = mechanism.train()(*x, **call).values
        torch.manual_seed(5)
        torch.testing.assert_close(found, plain * factors(x[0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", [spec for spec, causal in CALLS if causal])
@pytest.mark.parametrize("new", [1, 40])
def test_on_a_state(spec: str, new: int) -> None:
    mechanism, x = made(spec, True, kv_count=2), drawn(value=torch.eye(N, dtype=torch.float64))
    with torch.no_grad():
        whole = mechanism.eval()(*x).values[:, :, N - new :]
        state = mechanism(*(y[:, :, : N - new] for y in x), state=mechanism.initial_state(3, dtype=torch.float64)).state
        torch.manual_seed(5)
        found = mechanism.train()(*(y[:, :, N - new :] for y in x), state=state).values
    torch.manual_seed(5)
    torch.testing.assert_close(found, whole * factors(x[0][:, :, N - new :], N - new), rtol=0, atol=1e-12)


@pytest.mark.parametrize("marked", [1, 12])
def test_global_rows_with_projections_of_their_own_drop_weights(marked: int) -> None:
    """Few rows, whose keys are never projected, and many: the mean over draws is that without, and draws differ."""
    torch.manual_seed(0)
    options = {"heads": 2, "causal": False, "projections": "global", "dropout": P}
    layer = AttentionLayer(16, "longformer(window=3, num_global=0)", **options).double()
    x, marks = torch.randn(1, 20, 16).double(), torch.zeros(1, 20, dtype=torch.long)
    marks[:, :marked] = 1
    rows, draws = slice(0, marked), 600
    with torch.no_grad():
        plain = layer.eval()(x, marks=marks).hidden[0, rows]
        found = layer.train()(x.expand(draws, -1, -1), marks=marks.expand(draws, -1)).hidden[:, rows]
    assert (found.std(0) > 0).all()
    assert ((found.mean(0) - plain).abs() <= 5 * found.std(0) / draws**0.5).all()
