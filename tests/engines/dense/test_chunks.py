"""The dense engine: chunk borders, gradients of every argument, one graph node."""

import pytest
import torch

from regard.core.attention import Call
from regard.core.bias import ScoreBias
from regard.engines.dense import Rule, chunked, chunks, publish, softmax


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.requires_grad_()


def score(q: torch.Tensor, k: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return (q * gain) @ k.mT


RULE = publish("test: dot product with a gain", Rule(score, softmax))


def leaves(queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    return (
        draw(2, 2, queries, 3),
        draw(2, 2, keys, 3, seed=1),
        draw(2, 2, keys, 4, seed=2),
        draw(3, seed=3),
        draw(2, 13, seed=4),
        draw(2, 2, queries, 3, seed=5),
        draw(2, 13, 3, seed=6),
        draw(2, 1, queries, keys, seed=7),
    )


def values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor, causal: bool) -> torch.Tensor:
    gain, curve, query, relative, table = rest
    keep = torch.ones(2, k.shape[2], dtype=torch.bool)
    keep[0], keep[1, 0] = False, False
    bias = ScoreBias(high=6, curve=curve, query=query, relative=relative, table=table)
    start = k.shape[2] - q.shape[2] if causal else 0
    return chunked(RULE, q, k, v, Call(keep, bias, causal=causal, query_start=start), [gain])


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_every_argument_across_chunks(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 2 * 2 * 7 * 2)  # two queries a chunk
    assert torch.autograd.gradcheck(lambda *x: values(*x, causal=causal), leaves(5, 7), fast_mode=True)


@pytest.mark.parametrize("causal", [True, False])
def test_chunk_borders_do_not_show(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = values(*leaves(6, 7), causal=causal)
    for elements in (1, 60, 100):
        monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", elements)
        torch.testing.assert_close(values(*leaves(6, 7), causal=causal), whole, rtol=0, atol=1e-12)


def test_the_graph_has_as_many_nodes_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 64)
    nodes = []

    def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> object:
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    for length in (4, 7):
        torch._dynamo.reset()
        compiled = torch.compile(values, fullgraph=True, backend=backend, dynamic=False)
        given = leaves(length, length)
        torch.testing.assert_close(compiled(*given, causal=True), values(*given, causal=True))
    assert nodes[0] == nodes[1]


def test_softmax_with_nulls() -> None:
    logits = torch.tensor([[0.0, 0.0], [-1e4, -1e4], [1e4, 0.0], [-torch.inf, -torch.inf]])
    assert softmax(logits).tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]
    expected = [[0.25, 0.25], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    assert softmax(logits, nulls=2).tolist() == expected


def test_sixteen_bits_accumulate_in_float32() -> None:
    q, k, v, gain, *_ = (x.detach().bfloat16() for x in leaves(6, 7))
    call = Call(causal=True, query_start=1)
    got = chunked(RULE, q, k, v, call, [gain])
    exact = chunked(RULE, *(x.double() for x in (q, k, v)), call, [gain.double()])
    assert got.dtype == torch.bfloat16
    assert (got.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize("value_dim", [3, 5])
def test_the_operator_says_its_shape_before_it_runs(value_dim: int) -> None:
    """What `torch.compile` reckons with: values are as wide as v, whatever q, k and the heads are."""
    q, k, v = (torch.randn(2, 4, n, dim) for n, dim in ((6, 7), (9, 7), (9, value_dim)))
    rule = publish("inner products of a test", Rule(lambda q, k: q @ k.mT, softmax))
    given = q, k, v, [], None, None, None, None, None, None, rule, 0, True, 3, 0.0
    torch.library.opcheck(torch.ops.regard.dense.default, given, test_utils="test_faketensor")
