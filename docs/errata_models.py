"""Errata of notation, of names and of whole models, entered into `errata`'s page."""

import re

import torch
import torch.nn.functional as F
from errata import Row, draw, erratum
from torch import Tensor

import regard
from regard import AttentionLayer, Heads
from regard.position._base import sinusoidal_code


@erratum(
    "An output called Q",
    "A' = softmax(K^T Q), Q = V A', with one token in each column",
    "O = V A': the output, as wide as a value; and the softmax runs down each column, over the keys",
)
def output_called_q() -> list[Row]:
    """8 channels of queries, 5 of values. What comes out cannot be the queries, and a softmax over the other axis is
    no average of values. Read as it is meant, the columns are our rows, transposed.
    """
    q, k, v = draw(9, 8).mT, draw(9, 8, seed=1).mT, draw(9, 5, seed=2).mT
    logits = k.mT @ q / 8**0.5
    queries, keys, values = (x.mT[None, None] for x in (q, k, v))
    ours = regard.attend(queries, keys, values, "softmax")[0, 0].mT
    over_queries, over_keys = (v @ logits.softmax(axis) for axis in (1, 0))
    off = [(x - ours).abs().max().item() for x in (over_queries, over_keys)]
    return [
        Row("shape", str(tuple(q.shape)), str(tuple(over_keys.shape))),
        Row("largest difference from `softmax`, transposed: softmax along rows, down columns", *off),
    ]


@erratum(
    "Keys and values of length one",
    "a memory of past tokens is kept stable by normalised keys and values",
    "by normalised queries and keys: scores then depend on angles alone, and values stay as they are",
)
def normalised_values() -> list[Row]:
    """Old keys were made by earlier weights, so that their size means nothing; a value's size does. Queries that are
    ten times as long change nothing only if they too are normalised.
    """
    q, k, v = draw(3, 1, 1, 6, 8)
    mechanism = regard.build("cosine", Heads(count=1, key_dim=8)).double()

    def literal(queries: Tensor, values: Tensor) -> Tensor:
        return (queries @ F.normalize(k, dim=-1).mT).softmax(-1) @ F.normalize(values, dim=-1)

    def ours(queries: Tensor, values: Tensor) -> Tensor:
        with torch.no_grad():
            return mechanism(queries, k, values).values

    moved = [(run(10 * q, v) - run(q, v)).abs().max().item() for run in (literal, ours)]
    lengths = [(run(q, 3 * v).norm() / run(q, v).norm()).item() for run in (literal, ours)]
    return [
        Row("change of the output when queries are 10 times as long", *moved),
        Row("output when values are 3 times as large, over that before", *lengths),
    ]


@erratum(
    "A kernel that grows with the distance",
    "the exits of a depth-adaptive Transformer are smoothed with the RBF kernel kappa(t, t') = exp(|t - t'|^2 / sigma)",
    "exp(-|t - t'|^2 / sigma), whose weights fall with the distance; for sigma -> 0 nothing is smoothed",
)
def growing_kernel() -> list[Row]:
    """The exits of 16 tokens, smoothed around the first one, sigma = 2. Without the minus it takes the exit of the
    last one. Ours are the weights of kernel regression over positions.
    """
    at = torch.arange(16, dtype=torch.float64)
    literal = (at.square() / 2).softmax(-1)
    mechanism = regard.build("gaussian", Heads(count=1, key_dim=1)).double()
    slots = at[None, None, :, None]
    with torch.no_grad():
        ours = regard.weights(mechanism, slots[:, :, :1], slots)[0, 0, 0]
    off = (ours - (-at.square() / 2).softmax(-1)).abs().max().item()
    return [
        Row("weight of the token itself", literal[0].item(), ours[0].item()),
        Row("weight of the token 15 away", literal[-1].item(), ours[-1].item()),
        Row("difference from exp(-|t - t'|^2 / 2), normalised", "", off),
    ]


@erratum(
    "A reversible block and its inverse, exchanged",
    "y1 = x1 + F(_2), y2 = x2 + G(y1), printed where x2 = y2 - G(y1), x1 = y1 - F(x2) should be, and vice versa",
    "y1 = x1 + F(x2), y2 = x2 + G(y1) forward; x2 = y2 - G(y1), then x1 = y1 - F(x2) back",
)
def exchanged() -> list[Row]:
    """The missing argument is x2: with x1 instead, which a reader might put there, the way back is not to be had from
    F and G. F is an attention layer here, G a map of each token.
    """
    layer, weight = AttentionLayer(8, "softmax", heads=2, causal=True).double().eval(), draw(8, 8, seed=3)
    x1, x2 = draw(1, 6, 8), draw(1, 6, 8, seed=1)

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            return layer(x).hidden

    def g(x: Tensor) -> Tensor:
        return (x @ weight).relu()

    off = []
    for inside in (x1, x2):
        y1 = x1 + f(inside)
        y2 = x2 + g(y1)
        back2 = y2 - g(y1)
        back1 = y1 - f(back2)
        off.append(max((back1 - x1).abs().max().item(), (back2 - x2).abs().max().item()))
    return [Row("largest difference of x1, x2 after the way there and back", *off)]


@erratum(
    "A Universal Transformer that skips its attention",
    "A^t = LN(h^(t-1) + MHSA(h^(t-1) + P^t)), h^t = LN(A^(t-1) + Transition(A^t))",
    "A^t = LN((h^(t-1) + P^t) + MHSA(h^(t-1) + P^t)), h^t = LN(A^t + Transition(A^t))",
)
def skipped_attention() -> list[Row]:
    """The residual of a step is the state with its position, and then what attention made of it. As printed (A^0 is
    h^0) a state hears of what attention found through the transition alone, which is 0 here, and of positions through
    averages alone.
    """
    layer, h = AttentionLayer(16, "softmax", heads=2, causal=False).double().eval(), draw(1, 9, 16)
    positions = sinusoidal_code(torch.arange(9), 16)
    other = h.clone()
    other[:, 5] += 1.0

    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:])

    def literal(state: Tensor, before: Tensor) -> Tensor:
        del before
        return norm(state)

    def meant(state: Tensor, before: Tensor) -> Tensor:
        with torch.no_grad():
            return norm(norm(before + layer(before).hidden))

    changes = []
    for step in (literal, meant):
        one, two = (step(state, state + positions) for state in (h, other))
        changes.append((two - one)[:, :5].abs().max().item())
    alike = torch.ones(1, 9, 16, dtype=torch.float64)
    with torch.no_grad():
        flat = [norm(x + layer(alike + positions).hidden) for x in (alike, alike + positions)]
    spreads = [(x - x.mean(1, keepdim=True)).abs().max().item() for x in flat]
    return [
        Row("change of tokens 0 ... 4 after one step when token 5 changes, transition 0", *changes),
        Row("A^1 of one token at 9 positions: largest difference from their mean", *spreads),
    ]


@erratum(
    "Names and years",
    "ETC (Ainslie et al. 2019); the Image Transformer of Parmer; the Informer, in the caption of Linformer's figure",
    "Ainslie et al. 2020; Parmar; Linformer",
)
def names_and_years() -> list[Row]:
    """As the catalog cites them."""
    cited = {name: regard.describe(name).source for name in ("etc", "image_local_1d", "linformer")}
    year = re.search(r"\d{4}", cited["etc"])
    assert year is not None
    return [
        Row("year of `etc`", "2019", year.group()),
        Row("first author of `image_local_1d`", "Parmer", cited["image_local_1d"].split()[0]),
        Row("what `linformer` is", "Informer", regard.describe("linformer").title),
    ]
