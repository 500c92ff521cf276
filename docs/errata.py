"""Runs the literal formula of an article beside ours, for each erratum; `errata.md` includes what `page` writes."""

import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import regard
from regard import AttentionLayer, Heads
from regard.models.fusion import Fusion
from regard.position import build_position
from regard.position._base import sinusoidal_code


@dataclass(frozen=True)
class Row:
    """One thing measured, as the literal formula and as ours give it."""

    what: str
    literal: float | str
    ours: float | str


@dataclass(frozen=True)
class Erratum:
    """title, what the article writes, what is meant, and what follows; `run` measures both."""

    title: str
    article: str
    meant: str
    run: Callable[[], list[Row]]


ERRATA: list[Erratum] = []


def erratum(title: str, article: str, meant: str) -> Callable[[Callable[[], list[Row]]], Callable[[], list[Row]]]:
    """Enter a measurement into the page; its docstring is the conclusion."""

    def enter(run: Callable[[], list[Row]]) -> Callable[[], list[Row]]:
        ERRATA.append(Erratum(title, article, meant, run))
        return run

    return enter


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Signed random numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@erratum(
    "The square root outside the exponential",
    "p_ij = exp(q_i . k_j) / (sqrt(d) sum_r exp(q_i . k_r))",
    "p_ij = exp(q_i . k_j / sqrt(d)) / sum_r exp(q_i . k_r / sqrt(d))",
)
def root_outside() -> list[Row]:
    """Rows no longer sum to one, and nothing keeps the softmax from saturating, which was the root's purpose."""
    q, k = draw(2, 1, 1, 16, 64)
    odds = (q @ k.mT).exp()
    literal = odds / (8 * odds.sum(-1, keepdim=True))
    ours = regard.weights(regard.build("softmax", Heads(count=1, key_dim=64)), q, k)
    return [
        Row("sum of a row", literal.sum(-1).mean().item(), ours.sum(-1).mean().item()),
        Row("share of a row's largest weight", *((x.amax(-1) / x.sum(-1)).mean().item() for x in (literal, ours))),
    ]


@erratum(
    "Division by the dimension",
    "softmax(q . k / d)",
    "softmax(q . k / sqrt(d))",
)
def by_the_dimension() -> list[Row]:
    """Products of d random terms have variance d. Divided by d they vanish, and attention is almost an average."""
    q, k = draw(2, 1, 1, 128, 256)
    identity = torch.eye(128, dtype=torch.float64)[None, None]
    literal, ours = (regard.attend(q, k, identity, scale=scale) for scale in (1 / 256, 1 / 16))
    logits = q @ k.mT
    return [
        Row("variance of the logits", (logits / 256).var().item(), (logits / 16).var().item()),
        Row("keys in use, of 128 (exp of the entropy)", *(effective_keys(p) for p in (literal, ours))),
    ]


def effective_keys(weights: Tensor) -> float:
    """exp of the mean entropy of the rows."""
    return torch.special.entr(weights).sum(-1).mean().exp().item()


@erratum(
    "The root of the whole width",
    "each of h heads divides by sqrt(d_k), with d_k the width of all heads together",
    "sqrt(d_k / h), the width of one head",
)
def whole_width() -> list[Row]:
    """Every head's logits are sqrt(h) times too small."""
    q, k = draw(2, 1, 8, 64, 64)
    logits = q @ k.mT
    return [Row("deviation of the logits, 8 heads of 64", (logits / 512**0.5).std().item(), (logits / 8).std().item())]


@erratum(
    "Fusion without the exponential",
    "beta_p = alpha_p / sum_p' exp(alpha_p')",
    "beta_p = exp(alpha_p) / sum_p' exp(alpha_p')",
)
def fusion_numerator() -> list[Row]:
    """The weights of modalities do not sum to one and can be negative: a modality is then subtracted."""
    model, vectors = Fusion(8, seed=1).double(), draw(3, 8)
    with torch.no_grad():
        alpha = model.inner(vectors).relu() @ model.query
        literal, ours = alpha / alpha.exp().sum(), model(vectors).weights
    return [
        Row("sum of the weights", literal.sum().item(), ours.sum().item()),
        Row("smallest weight", literal.min().item(), ours.min().item()),
    ]


@erratum(
    "Masks of -1e9",
    "masked logits are filled with -1e9 before the softmax",
    "masked keys have weight 0, and a query without any key gets zeros",
)
def finite_fill() -> list[Row]:
    """A sample that is all padding gets the average of its padding: as large as any answer, and nothing warns of it."""
    q, k, v = draw(3, 1, 1, 5, 8)
    keep = torch.zeros(1, 5, dtype=torch.bool)
    literal = (q @ k.mT / 8**0.5).masked_fill(~keep[:, None, None], -1e9).softmax(-1) @ v
    ours = regard.attend(q, k, v, key_mask=keep)
    return [Row("largest output where every key is masked", literal.abs().max().item(), ours.abs().max().item())]


@erratum(
    "An RBF kernel that beats the softmax",
    "exp(-|q - k|^2 / 2) is a better kernel than exp(q . k)",
    "it is the softmax of q . k - |k|^2 / 2: the term of the query cancels, and what remains is a penalty on long keys",
)
def rbf_kernel() -> list[Row]:
    """With keys of one length the two are the same attention, to the last digits."""
    q, k, v = draw(3, 1, 1, 32, 8)
    unit = k / k.norm(dim=-1, keepdim=True)
    rows = []
    for what, keys in (("any keys", k), ("keys of one length", unit)):
        rbf, plain = (regard.attend(q, keys, v, spec) for spec in ("gaussian", "softmax(scale=1.0)"))
        rows.append(Row(f"largest difference from softmax(q . k), {what}", (rbf - plain).abs().max().item(), ""))
    penalised = (q @ k.mT - k.square().sum(-1)[:, :, None] / 2).softmax(-1) @ v
    ours = regard.attend(q, k, v, "gaussian")
    return [*rows, Row("... from softmax(q . k - |k|^2 / 2)", "", (ours - penalised).abs().max().item())]


@erratum(
    "Permutation invariance",
    "self-attention is permutation-invariant: f(Px) = f(x)",
    "it is equivariant: f(Px) = P f(x); and not even that with a causal mask",
)
def invariance() -> list[Row]:
    """The outputs move with the inputs. What does not change is each token's own output."""
    layer, x = AttentionLayer(16, "softmax", heads=2, causal=False).double().eval(), draw(1, 9, 16)
    causal = AttentionLayer(16, "softmax", heads=2, causal=True).double().eval()
    order = torch.tensor([3, 1, 4, 0, 5, 8, 2, 6, 7])
    with torch.no_grad():
        still, moved, masked = layer(x).hidden, layer(x[:, order]).hidden, causal(x[:, order]).hidden
        behind = (masked - causal(x).hidden[:, order]).abs().max().item()
    return [
        Row("|f(Px) - f(x)|", (moved - still).abs().max().item(), ""),
        Row("|f(Px) - P f(x)|", "", (moved - still[:, order]).abs().max().item()),
        Row("... with a causal mask", "", behind),
    ]


@erratum(
    "Widths that a dot product cannot compare",
    "q has width d_q and k has width d_k, and the score is q . k",
    "a dot product needs d_q = d_k; additive and bilinear scores do not",
)
def different_widths() -> list[Row]:
    """The literal product does not exist. Ours is refused when it is built, with the scores that can."""
    try:
        literal = str((draw(1, 6) @ draw(1, 4).mT).shape)
    except RuntimeError:
        literal = "shapes do not fit"
    heads = Heads(count=1, key_dim=4, query_dim=6)
    try:
        regard.build("softmax", heads)
        refused = "built"
    except regard.UnsupportedError:
        refused = "refused when built"
    built = regard.build("additive", heads).double()
    shape = tuple(built(draw(1, 1, 3, 6), draw(1, 1, 5, 4), draw(1, 1, 5, 4)).values.shape)
    return [Row("q of width 6, k of width 4", literal, refused), Row("additive: shape of the output", "", str(shape))]


@erratum(
    "Sinusoids that begin with channel 1",
    "PE(i, 2c) = sin(i w_c), PE(i, 2c + 1) = cos(i w_c) for channels 1 ... d",
    "channels 0 ... d - 1",
)
def channels_from_one() -> list[Row]:
    """The first sine is lost and its cosine stands alone, so the product of two codes depends on where they are, not
    only on how far apart. The longest wave is 10000^((d-2)/d) 2 pi, not 10000 times 2 pi.
    """
    width, slots = 16, torch.arange(200)
    ours = sinusoidal_code(slots, width)
    channel = torch.arange(1, width + 1)
    angle = slots[:, None] * 10000.0 ** (-2 * (channel // 2) / width)
    literal = torch.where(channel % 2 == 0, angle.sin(), angle.cos())

    def spread(code: Tensor) -> float:
        products = (code[:-5] * code[5:]).sum(-1)
        return (products.max() - products.min()).item()

    return [
        Row("spread of PE(i) . PE(i + 5) over i", spread(literal.double()), spread(ours)),
        Row("longest wavelength, d = 16", 10000 * 2 * math.pi, 10000 ** ((width - 2) / width) * 2 * math.pi),
    ]


@erratum(
    "Shaw's tables of numbers",
    "P^K and P^V are vectors in R^(2k+1)",
    "they are tables, (2k + 1) x d: a label is a vector",
)
def tables_of_numbers() -> list[Row]:
    """One number per label adds sum(q) times that number to a logit: every query hears the same about distances."""
    q, numbers = draw(12, 8), draw(9)
    literal = (q[:, None] * numbers[:, None].expand(-1, 8)).sum(-1)  # query x label
    scheme = build_position("shaw_keys(max_distance=4)", Heads(count=1, key_dim=8), 8).double()
    bias = scheme.bias(q[None, None], -4, 4)
    assert bias is not None
    assert bias.query is not None
    assert bias.relative is not None
    ours = (bias.query @ bias.relative.mT)[0, 0].detach()
    ranks = (int(torch.linalg.matrix_rank(x)) for x in (literal, ours))
    return [Row("rank of the logits of 12 queries at 9 distances", *(str(rank) for rank in ranks))]


@erratum(
    "Transformer-XL's fourth term",
    "v . W_R x_(i-j), the hidden state of another token",
    "v . W_R r_(i-j), the sinusoid of the distance",
)
def fourth_term() -> list[Row]:
    """A term of position that reads tokens changes when one of them does, at pairs that do not hold it."""
    v, transform, x = draw(8), draw(8, 16, seed=1), draw(12, 16, seed=2)
    other = x.clone()
    other[3] += 1.0
    changed = []
    for tokens in (x, other):
        term = tokens @ transform.mT @ v  # the literal term of distances 0 ... 11
        changed.append(torch.stack([term[11 - j] for j in range(11)]))  # of query 11 with each key
    scheme = build_position("transformer_xl", Heads(count=1, key_dim=8, causal=True), 16).double()
    ours = []
    for tokens in (x, other):
        bias = scheme.bias((tokens @ transform.mT)[None, None], 0, 11)
        assert bias is not None
        assert bias.query is not None
        assert bias.relative is not None
        ours.append((bias.query[:, :, 11:] @ bias.relative.mT).detach())
    moved = [(a - b).abs().max().item() for a, b in (changed, ours)]
    return [Row("change at query 11 when token 3 changes", *moved)]


@erratum(
    "Rotary embeddings of the values",
    "rotate the keys and values",
    "rotate the queries and keys: scores then know the distance, and what is averaged stays as it is",
)
def rotated_values() -> list[Row]:
    """With one visible key the output should be its value. Rotated, it depends on where the key stood."""
    q, k, v = draw(3, 1, 1, 9, 8)
    rotary = build_position("rotary", Heads(count=1, key_dim=8), 8)
    slots, keep = torch.arange(9), torch.arange(9)[None] == 6
    turned_q, turned_k = rotary.transform(q, k, slots, slots)
    turned_v, _ = rotary.transform(v, v, slots, slots)
    wanted = v[:, :, 6:7].expand_as(v)
    outputs = (regard.attend(a, b, c, key_mask=keep) for a, b, c in ((q, turned_k, turned_v), (turned_q, turned_k, v)))
    return [Row("largest difference from the one visible value", *((x - wanted).abs().max().item() for x in outputs))]


@erratum(
    "Rotary scores without the transpose",
    "x_i^T W^q R_(j-i) W^k x_j",
    "x_i^T (W^q)^T R_(j-i) W^k x_j, with column vectors: (R_i W^q x_i) . (R_j W^k x_j)",
)
def missing_transpose() -> list[Row]:
    """For matrices that are not square the literal product does not exist; for square ones it is another number."""
    wq, wk, x = draw(8, 8), draw(8, 8, seed=1), draw(2, 8, seed=2)
    rotary = build_position("rotary", Heads(count=1, key_dim=8), 8)
    turn = [
        rotary.transform(*(torch.eye(8).double()[None, None],) * 2, *(torch.full((8,), i),) * 2)[0][0, 0].mT
        for i in (3, 7)
    ]
    between = turn[0].mT @ turn[1]
    score = (turn[0] @ wq @ x[0]) @ (turn[1] @ wk @ x[1])
    literal, ours = x[0] @ wq @ between @ wk @ x[1], x[0] @ wq.mT @ between @ wk @ x[1]
    return [Row("difference from (R_i q_i) . (R_j k_j)", *((y - score).abs().item() for y in (literal, ours)))]


@erratum(
    "ALiBi in reverse",
    "the row of biases over keys 1 ... i is m (0, -1, ..., -(i - 1))",
    "m (-(i - 1), ..., -1, 0): the query's own key is not penalised",
)
def alibi_order() -> list[Row]:
    """Read over the keys in order, the literal row favours the oldest key."""
    scheme = build_position("alibi", Heads(count=8, key_dim=4, causal=True), 32)
    bias = scheme.bias(torch.zeros(1, 8, 1, 4).double(), 0, 9)
    assert bias.curve is not None
    rows = (torch.softmax(curve, -1) for curve in (bias.curve[0].flip(0), bias.curve[0]))
    first, second = ((row[0].item(), row[-1].item()) for row in rows)
    return [
        Row("weight of the oldest of 10 keys, slope 1/2", first[0], second[0]),
        Row("weight of the newest", first[1], second[1]),
    ]


@erratum(
    "ALiBi's slopes are not fixed",
    "the alpha_i are learned, not a fixed sequence",
    "they are not learned: a fixed geometric sequence (and the paper extrapolates to 2048, not 2046)",
)
def alibi_fixed() -> list[Row]:
    """The scheme has no weights, so that nothing can drift away from what extrapolates."""
    scheme = build_position("alibi", Heads(count=8, key_dim=4, causal=True), 32)
    slopes = ", ".join(f"1/{round(1 / slope)}" for slope in scheme.slopes)  # pyright: ignore[reportAttributeAccessIssue]
    return [Row("weights of 8 heads", "", str(sum(x.numel() for x in scheme.parameters()))), Row("slopes", "", slopes)]


@erratum(
    "Distance-aware attention without its bound",
    "f(R) rises with R; extra time O(2h), extra memory O(L^2)",
    "f(R) = (1 + exp(beta)) / (1 + exp(beta - R)) rises to 1 + exp(beta), and no further; extra time O(L^2), memory 2h",
)
def bounded_distance() -> list[Row]:
    """f was right, and its property lost a word. Its literal form overflows: the gradient of w at a far key is NaN."""
    slope = torch.tensor(-1.0, requires_grad=True)
    literal = (1 + torch.exp(torch.tensor(0.0))) / (1 + torch.exp(0.0 - slope * 800))
    eight, one = (regard.build("distance_aware", Heads(count=count, key_dim=1)) for count in (8, 1))
    with torch.no_grad():
        one.slope.fill_(-1.0)
    q = torch.ones(1, 1, 801, 1)
    ours = one(q, q, draw(1, 1, 801, 1).float()).values[0, 0, 0, 0]
    slopes = (torch.autograd.grad(out, w)[0] for out, w in ((literal, slope), (ours, one.slope)))
    far = [2 / (1 + math.exp(-r)) for r in (1.0, 10.0, 100.0)]
    return [
        Row("f(1), f(10), f(100) at beta = 0", "", ", ".join(f"{x:.4f}" for x in far)),
        Row("gradient of w, -1, with a key 800 away", *("finite" if x.isfinite().all() else "NaN" for x in slopes)),
        Row("weights of 8 heads", "", str(sum(weight.numel() for weight in eight.parameters()))),
    ]


def number(x: float | str) -> str:
    """As the table shows it."""
    if isinstance(x, str):
        return x
    return f"{x:.3g}" if abs(x) >= 1e-10 else "0" if x == 0 else f"{x:.0e}"


def write(folder: Path) -> None:
    """Write what `errata.md` includes."""
    (folder / "errata.inc").write_text(page(), encoding="utf-8")


def page() -> str:
    """Every erratum: what is written, what is meant, both measured now, and the code that did."""
    lines: list[str] = []
    for each in ERRATA:
        lines += [f"## {each.title}", "", "Written:", "", "```text", each.article, "```", ""]
        lines += [
            "Meant:",
            "",
            "```text",
            each.meant,
            "```",
            "",
            " ".join((inspect.getdoc(each.run) or "").split()),
            "",
        ]
        lines += ["| measured | as written | here |", "|---|---|---|"]
        lines += [
            f"| {row.what.replace('|', chr(92) + '|')} | {number(row.literal)} | {number(row.ours)} |"
            for row in each.run()
        ]
        source = textwrap.dedent(inspect.getsource(each.run)).split("\n")
        start = next(at for at, line in enumerate(source) if line.startswith("def "))
        lines += ["", "```python", *source[start:], "```", ""]
    return "\n".join(lines)
