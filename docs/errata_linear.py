"""Errata of linear attention, random features, sparse patterns and exact retrieval, entered into `errata`'s page."""

import math

import torch
from errata import Row, draw, erratum
from torch import Tensor

import regard
from regard import Heads
from regard.features.maps import feature_map


@erratum(
    "Random features without losing accuracy",
    "positive random features compute softmax attention in linear time, without losing accuracy",
    "exp(q . k) is estimated without bias, with a relative variance of (exp(|q + k|^2) - 1) / m for m features; "
    "attention divides two such estimates, and is biased",
)
def unbiased_kernel() -> list[Row]:
    """The mean over 4,000 draws of 4 features: the kernel is right to chance, its ratio is not. With 256 features
    the error is small for small queries and keys, and grows exponentially with their norm.
    """
    draws, count = 4000, 4
    q, k, v = draw(3, 1, 1, 4, 8)
    x, y = q[0, 0, :1] * 8**-0.25, k[0, 0, :1] * 8**-0.25
    w = draw(draws, count, 8, seed=1)
    fx, fy = (feature_map("positive_random")(part.expand(draws, 1, 8), w) for part in (x, y))
    off = (fx * fy).sum(-1)[:, 0] - (x @ y.mT).exp().item()
    many = Heads(count=draws, key_dim=8)
    mechanism = regard.build("performer", many, num_features=count, orthogonal=False).double().eval()
    estimate = mechanism(*(part.expand(1, draws, 4, 8) for part in (q, k, v))).values[0, :, 0, 0]
    biased = estimate - regard.attend(q, k, v, "softmax")[0, 0, 0, 0]
    rows = [Row("mean error of exp(q . k), in standard errors", "0", deviations(off))]
    rows.append(Row("mean error of the attention, in standard errors", "0", deviations(biased)))
    mechanism = regard.build("performer", Heads(count=8, key_dim=8), num_features=256).double().eval()
    for norm in (1, 2, 3):
        q, k, v = draw(3, 1, 8, 64, 8)
        q, k = (x * (norm * 8**0.25 / x.norm(dim=-1, keepdim=True)) for x in (q, k))
        found, exact = mechanism(q, k, v), regard.attend(q, k, v, "softmax")
        error = ((found.values - exact).norm() / exact.norm()).item()
        rows.append(Row(f"relative error with 256 features, scaled norms {norm}", "0", error))
    return rows


def deviations(x: Tensor) -> float:
    """The size of a mean, in standard errors."""
    return (x.mean().abs() / (x.std() / math.sqrt(len(x)))).item()


@erratum(
    "Efficient Attention is phi(q) . phi(k)",
    "Efficient Attention is the special case of linear attention in which phi is a softmax",
    "the softmax of the keys is over positions, not over the channels of one key: no phi(k_j) gives it",
)
def over_positions() -> list[Row]:
    """Under any phi, what one key weighs against another is a matter of these two. Here a third one changes it. What
    the article says of the rows holds: they sum to one.
    """
    q, k = draw(2, 1, 1, 6, 8)
    other = k.clone()
    other[:, :, 5] += 1.0
    changes, sums = [], []
    for spec in ("linear(feature_map=softmax_features)", "efficient"):
        mechanism = regard.build(spec, Heads(count=1, key_dim=8)).double()
        one, two = (regard.weights(mechanism, q, keys)[0, 0] for keys in (k, other))
        changes.append((one[:, 0] / one[:, 1] - two[:, 0] / two[:, 1]).abs().max().item())
        sums.append((one.sum(-1) - 1).abs().max().item())
    return [
        Row("change of p_i0 / p_i1 when key 5 changes", *changes),
        Row("sum of a row, minus 1", *sums),
    ]


@erratum(
    "A switch by the length of the sequence",
    "softmax attention if the sequence is short, linear attention if it is long",
    "softmax for the queries that see few keys, linear attention for those that see many",
)
def switch_by_length() -> list[Row]:
    """One token more, and every output that was given before is another: nothing can be decoded like that."""
    heads, short = Heads(count=1, key_dim=8, causal=True), 16
    q, k, v = draw(3, 1, 1, short + 1, 8)
    mechanism = regard.build("length_switch", heads, exact_keys=short).double()

    def literal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        chosen = "softmax" if queries.shape[2] <= short else "linear"
        return regard.attend(queries, keys, values, chosen, causal=True)

    changes = []
    for run in (literal, lambda *x: mechanism(*x).values):
        before, after = run(*(x[:, :, :short] for x in (q, k, v))), run(q, k, v)
        changes.append((after[:, :, :short] - before).abs().max().item())
    return [Row("change of 16 outputs when token 17 comes", *changes)]


@erratum(
    "Linear attention lacks a global normalisation",
    "linear attention is phi(Q) (phi(K)^T V), without the sum over keys that softmax divides by",
    "phi(q_i) (sum_j phi(k_j) v_j^T) / phi(q_i) . (sum_j phi(k_j))",
)
def no_denominator() -> list[Row]:
    """The definition has a denominator; the article's code left it out, and its mask argument unused. It cannot be what
    fails in retrieval: a positive number for every query does not change which stored value is nearest in angle.
    """
    q, k, v = draw(3, 1, 1, 64, 16)
    features, keys = q.relu(), k.relu()
    literal = features @ (keys.mT @ v)
    mechanism = regard.build("linear(feature_map=relu)", Heads(count=1, key_dim=16)).double()
    ours, plan = mechanism(q, k, v).values, torch.arange(64)[None] < 40
    other = v.clone()
    other[:, :, 40:] += 1.0
    moved = (features @ (keys.mT @ other) - literal).abs().max().item()
    masked = [mechanism(q, k, values, key_mask=plan).values for values in (v, other)]
    unit = v / v.norm(dim=-1, keepdim=True)
    nearest = [(out @ unit.mT).argmax(-1) for out in (literal, ours)]
    sums = (weights.sum(-1).mean().item() for weights in (features @ keys.mT, regard.weights(mechanism, q, k)))
    return [
        Row("sum of a row", *sums),
        Row("change when a masked value does", moved, (masked[0] - masked[1]).abs().max().item()),
        Row("queries of 64 whose nearest value differs", "", str(int((nearest[0] != nearest[1]).sum()))),
    ]


@erratum(
    "Features that approximate the exponential",
    "exp(q . k) ~ phi(q) . phi(k) with phi = ReLU or ELU + 1",
    "these are other kernels; random features and Taylor's polynomial approximate exp, where logits are small",
)
def not_the_exponential() -> list[Row]:
    """Were it an approximation, the ratio of the two would be nearly one number for all pairs."""
    q, k = draw(2, 1, 1, 64, 16) / 4
    exact = regard.weights(regard.build("softmax(scale=1.0)", Heads(count=1, key_dim=16)).double(), q, k)
    spread = {}
    for name in ("relu", "elu_plus_one", "taylor"):
        found = regard.weights(regard.build(f"linear(feature_map={name})", Heads(count=1, key_dim=16)).double(), q, k)
        spread[name] = ((found - exact).norm() / (exact - exact.mean(-1, keepdim=True)).norm()).item()
    what = "error of the weights, over what is not uniform in them"
    return [
        Row(f"{what}: ReLU", spread["relu"], ""),
        Row("... ELU + 1", spread["elu_plus_one"], ""),
        Row("... Taylor", "", spread["taylor"]),
    ]


@erratum(
    "An L1 penalty that makes attention sparse",
    "add the L1 norm of the attention's output, or of its weights, to the loss",
    "the output's norm says nothing of the weights, and that of normalised weights is 1 for every row; what can act is "
    "the norm before the normalisation, the entropy, or Hoyer's measure",
)
def penalty_of_nothing() -> list[Row]:
    """The gradient of a penalty for the queries: what the weights could learn from it."""
    q, k, v = draw(3, 1, 1, 24, 8)
    q.requires_grad_()
    weights = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
    rows = weights / weights.sum(-1, keepdim=True)
    literal, *acting = (
        torch.autograd.grad(loss, q, retain_graph=True)[0].abs().max().item()
        for loss in (
            rows.abs().sum(),
            weights.sum(-1).mean(),
            -(rows * rows.log()).sum(-1).mean(),
            ((1 / rows.norm(dim=-1) - 1) / (24**0.5 - 1)).mean(),
        )
    )
    names = ("the norm before the normalisation", "the entropy", "Hoyer's measure")
    mechanism = regard.build("linear", Heads(count=1, key_dim=8)).double()
    whole, half = (mechanism(q, k, values).values.abs().sum().item() for values in (v, v / 2))
    return [
        Row("gradient of the L1 norm of normalised weights", literal, ""),
        *(Row(f"gradient of {name}", "", slope) for name, slope in zip(names, acting, strict=True)),
        Row("norm of the output after values are halved, of that before", half / whole, ""),
    ]


@erratum(
    "O(1) a token",
    "linear attention costs O(1) a token, softmax O(n): the softmax is what makes attention quadratic",
    "O(features x value) a token; and without the softmax Q K^T is as quadratic, until the products change their order",
)
def hidden_constant() -> list[Row]:
    """Numbers that one head of width 64 keeps, and the length from which a cache of keys and values is larger. A
    sharper feature map is paid for in features.
    """
    heads, one = Heads(count=1, key_dim=64, causal=True), torch.float32
    cache = regard.build("softmax", heads).state_nbytes(1, 1, one) // 4
    rows = [Row("a softmax cache of 1,000 tokens", "", str(1000 * cache))]
    for spec in ("linear", "performer(num_features=256)", "linear(feature_map=taylor)"):
        kept = regard.build(spec, heads).state_nbytes(1, 1, one) // 4
        rows.append(Row(f"{spec}: numbers; tokens", "O(1)", f"{kept}; {math.ceil(kept / cache)}"))
    return rows


@erratum(
    "Sparse patterns that see the future",
    "A_i = {j : |i - j| < l} and {j : (i - j) mod l = 0}",
    "of both only j <= i",
)
def later_positions() -> list[Row]:
    """The sets are for a model that predicts the next token. Read literally they hold what is to be predicted."""
    i, j = torch.arange(16)[:, None], torch.arange(16)
    literal = ((i - j).abs() < 4) | ((i - j) % 4 == 0)
    mechanism = regard.build("strided_union(stride=4)", Heads(count=1, key_dim=8, causal=True)).double()
    ours = regard.weights(mechanism, *draw(2, 1, 1, 16, 8))[0, 0] > 0
    return [Row("later positions that 16 queries see", *(str(int(seen.triu(1).sum())) for seen in (literal, ours)))]


@erratum(
    "Blocks of N / n, and matrices of n x n",
    "a sequence of L tokens is cut into n blocks of N / n, whose attention matrices are n x n",
    "blocks of L / n tokens, n matrices of L / n x L / n",
)
def size_of_blocks() -> list[Row]:
    """12 tokens in 3 blocks."""
    mechanism = regard.build("blockwise(blocks=3, shift=0)", Heads(count=1, key_dim=8, max_length=12)).double()
    seen = regard.weights(mechanism, *draw(2, 1, 1, 12, 8))[0, 0] > 0
    return [
        Row("keys of a query", "3", str(int(seen.sum(-1).unique().item()))),
        Row("pairs in all", str(3 * 3 * 3), str(int(seen.sum()))),
    ]


@erratum(
    "Masking by multiplication",
    "softmax(Q K^T .* M), with M of ones and zeros",
    "-inf where M is 0: a logit of 0 is a weight of exp(0), not of 0",
)
def multiplied_mask() -> list[Row]:
    """12 tokens in 3 blocks."""
    q, k = draw(2, 1, 1, 12, 8)
    mechanism = regard.build("blockwise(blocks=3, shift=0)", Heads(count=1, key_dim=8, max_length=12)).double()
    at = torch.arange(12) // 4
    inside = at[:, None] == at
    literal = ((q @ k.mT / 8**0.5) * inside).softmax(-1)
    hidden = (x[..., ~inside].sum().item() / 12 for x in (literal, regard.weights(mechanism, q, k)))
    return [Row("weight of other blocks, of 1", *hidden)]


@erratum(
    "Global tokens with an attention of their own",
    "z_i^g = softmax over the global tokens alone",
    "one softmax over the global and the long tokens that it sees",
)
def one_normaliser() -> list[Row]:
    """The equation in print is one of the four pieces. A layer normalises over both of a row's."""
    q, k = draw(2, 1, 1, 12, 8)
    ours = regard.weights(regard.build("etc(num_global=3, window=2)", Heads(count=1, key_dim=8)).double(), q, k)[0, 0]
    literal = (q @ k.mT / 8**0.5)[0, 0, :3, :3].softmax(-1)
    of_globals, of_long = (part.sum(-1).mean().item() for part in (ours[:3, :3], ours[:3, 3:]))
    return [
        Row("weight of the global tokens in their own rows", literal.sum(-1).mean().item(), of_globals),
        Row("weight of the long tokens there", "0", of_long),
    ]
