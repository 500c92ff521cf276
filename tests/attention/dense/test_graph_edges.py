"""Graph attention over real neighbours: neighbour by neighbour, a layer of its authors, and what it costs."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.core.errors import ConfigError, UnsupportedError
from regard.patterns import causal, edges, window
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def listed(nodes: int, degree: int = 3, seed: int = 0) -> Tensor:
    source = random.Random(seed)
    return torch.tensor([(i, source.randrange(nodes)) for i in range(nodes) for _ in range(degree)]).T


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("loops", [True, False])
def test_neighbour_by_neighbour(loops: bool, is_causal: bool) -> None:
    for n in (*range(1, 14), 27, 40):
        pairs = listed(n, seed=n)
        heads = regard.Heads(count=2, key_dim=3, value_dim=2, kv_count=1, causal=is_causal)
        mechanism = regard.build("graph", heads, neighbours=edges(pairs, loops=loops)).double()
        q, k, v = draw(2, 2, n, 3), draw(2, 1, n, 3, seed=1), draw(2, 1, n, 2, seed=2)
        keep = torch.rand(2, n, generator=torch.Generator().manual_seed(n)) < 0.8
        keep[:, 0] = True  # hidden, it would be left padding
        got = mechanism(q, k, v, key_mask=keep).values
        every = {(i, j) for i, j in pairs.T.tolist()} | ({(i, i) for i in range(n)} if loops else set())
        for row in range(2):
            for head in range(2):
                a = torch.cat([mechanism.query[head], mechanism.key[0]]).tolist()
                for i in range(n):
                    seen = [j for j in range(n) if (i, j) in every and keep[row, j] and not (is_causal and j > i)]
                    odds = []
                    for j in seen:
                        pair = q[row, head, i].tolist() + k[row, 0, j].tolist()
                        total = sum(x * y for x, y in zip(a, pair, strict=True))
                        odds.append(math.exp(total if total > 0 else 0.2 * total))
                    terms = [odd * v[row, 0, j] / sum(odds) for odd, j in zip(odds, seen, strict=True)]
                    expected = sum(terms, torch.zeros(2, dtype=torch.float64))
                    torch.testing.assert_close(got[row, head, i], expected, rtol=0, atol=1e-12)


def published_layer(x: Tensor, pairs: Tensor, w: Tensor, a: Tensor) -> Tensor:
    """h'_i = ||_k sum_j softmax_j(LeakyReLU(a_k^T [W_k h_i || W_k h_j])) W_k h_j, as the paper writes it (Eqs. 1-5).

    x: (nodes, in). w: (heads, in, out). a: (heads, 2 out). Dense, with -inf where there is no edge.
    """
    adjacency = torch.zeros(len(x), len(x), dtype=torch.bool)
    adjacency[pairs[0], pairs[1]] = True
    adjacency |= torch.eye(len(x), dtype=torch.bool)
    out = []
    for weight, vector in zip(w, a, strict=True):
        h = x @ weight
        left = h[:, None].expand(-1, len(x), -1)
        e = F.leaky_relu(torch.cat([left, h[None].expand(len(x), -1, -1)], -1) @ vector, 0.2)
        out.append(e.masked_fill(~adjacency, float("-inf")).softmax(-1) @ h)
    return torch.cat(out, -1)


def test_a_layer_of_the_paper_with_its_gradients() -> None:
    nodes, heads, width = 30, 3, 5
    x, pairs = draw(nodes, 7).requires_grad_(), listed(nodes)
    w, a = draw(heads, 7, width, seed=1).requires_grad_(), draw(heads, 2 * width, seed=2).requires_grad_()
    wanted = published_layer(x, pairs, w, a)
    mechanism = regard.build(
        "graph", regard.Heads(count=heads, key_dim=width), neighbours=edges(pairs, loops=True)
    ).double()
    with torch.no_grad():
        mechanism.query.copy_(a[:, :width])
        mechanism.key.copy_(a[:, width:])
    h = torch.einsum("ni,hio->hno", x, w)[None]
    got = mechanism(h, h, h).values[0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    along = draw(nodes, heads * width, seed=3)
    ours = torch.autograd.grad((got * along).sum(), [x, w, mechanism.query, mechanism.key])
    theirs = torch.autograd.grad((wanted * along).sum(), [x, w, a])
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(ours[2:], -1), theirs[2], rtol=0, atol=1e-10)


def test_the_softmax_of_inner_products_over_the_same_edges() -> None:
    pairs = listed(150)
    q, k, v = draw(1, 2, 150, 4), draw(1, 2, 150, 4, seed=1), draw(1, 2, 150, 3, seed=2)
    sparse = regard.build("pattern", regard.Heads(count=2, key_dim=4, value_dim=3), rule=edges(pairs, loops=True))
    got = sparse(q, k, v).values
    adjacency = torch.eye(150, dtype=torch.bool)
    adjacency[pairs[0], pairs[1]] = True
    logits = (q @ k.mT / 2).masked_fill(~adjacency, float("-inf"))
    torch.testing.assert_close(got, logits.softmax(-1) @ v, rtol=0, atol=1e-12)


def peak(nodes: int, degree: int, name: str) -> int:
    """Most numbers alive at a time in a pass and its gradient; neighbours are at most 40 numbers away."""
    source = random.Random(0)
    pairs = torch.tensor(
        [(i, max(0, min(nodes - 1, i + source.randint(-40, 40)))) for i in range(nodes) for _ in range(degree)]
    ).T
    option = {"graph": "neighbours", "pattern": "rule"}[name]
    mechanism = regard.build(name, regard.Heads(count=1, key_dim=4), **{option: edges(pairs, loops=True)})
    leaves = [draw(1, 1, nodes, 4, seed=seed).float().requires_grad_() for seed in range(3)]
    mechanism(*leaves)  # the layout of a pattern is made once
    return count(lambda: mechanism(*leaves).values.sum().backward()).peak


@pytest.mark.parametrize("name", ["graph", "pattern"])
def test_memory_grows_with_the_edges_and_not_with_the_pairs(name: str) -> None:
    small, large = (peak(nodes, 4, name) for nodes in (1024, 4096))
    assert large <= 4.5 * small
    assert large <= 4096**2 // 8  # numbers: not even a bit of every pair
    if name == "graph":
        assert peak(1024, 16, name) <= 4.5 * small


@pytest.mark.parametrize(
    "rule", ["window(3)", window(3), causal & edges(torch.tensor([[0], [1]])), "everything"], ids=str
)
def test_other_patterns_are_refused(rule: object) -> None:
    with pytest.raises(ConfigError, match=r"must be a list of edges.*`pattern` has every pattern"):
        regard.build("graph", regard.Heads(count=1, key_dim=2), neighbours=rule)


def test_edges_have_no_bias() -> None:
    heads = regard.Heads(count=1, key_dim=2)
    mechanism = regard.build("graph", heads, neighbours=edges(torch.tensor([[0], [1]])))
    q = torch.randn(1, 1, 3, 2)
    with pytest.raises(UnsupportedError, match="its neighbours are a list of edges, and no edge has a distance"):
        mechanism(q, q, q, bias=regard.ScoreBias(high=2, curve=torch.zeros(1, 3)))


def test_a_graph_without_edges_gives_nothing() -> None:
    nothing = edges(torch.empty(2, 0, dtype=torch.long), 5)
    mechanism = regard.build("graph", regard.Heads(count=1, key_dim=2), neighbours=nothing)
    q = torch.randn(1, 1, 5, 2)
    assert not mechanism(q, q, q).values.any()
