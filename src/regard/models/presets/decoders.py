"""Decoders of text whose layers see one segment: softmax, patterns, hashing, kernels, learned depth."""

from typing import Literal

from regard.core.errors import ConfigError, nearest
from regard.models.config import ModelConfig
from regard.models.presets._preset import Fields, preset


@preset(ModelConfig, Fields(vocab_size=50257, dim=768, layers=12, heads=12, max_length=1024, dropout=0.1))
def gpt(dropout: float) -> Fields:
    """GPT-2 small, 124 million weights: pre-norm blocks, exact softmax attention, learned positions, tied embeddings.

    The other published sizes are (dim, layers, heads) = (1024, 24, 16), (1280, 36, 20), (1600, 48, 25). `dropout` also
    drops attention weights.

    Source: Radford et al. 2019, section 2.3 and table 2; dropout and initial weights as in the released code.
    """
    return Fields(position="learned", mlp="gelu_tanh", attention_dropout=dropout, bias=True)


@preset(
    ModelConfig, Fields(vocab_size=32000, dim=4096, layers=32, heads=32, kv_heads=None, mlp_dim=None, max_length=2048)
)
def llama(dim: int, mlp_dim: int | None) -> Fields:
    """LLaMA 7B: RMSNorm before every branch, rotary positions, SwiGLU, no bias terms, separate output layer.

    The other published sizes are (dim, layers, heads) = (5120, 40, 40), (6656, 60, 52), (8192, 80, 64).

    Args:
        mlp_dim: width of the gated unit; None: the published rule, 8/3 dim rounded up to a multiple of 256.

    Source: Touvron et al. 2023, section 2.2 and table 2; grouped `kv_heads` as in LLaMA 2 (Touvron et al. 2023b).
    """
    return Fields(
        position="rotary(layout=halves)",
        mlp="swiglu",
        mlp_dim=-(-8 * dim // (3 * 256)) * 256 if mlp_dim is None else mlp_dim,
        norm_kind="rms",
        tied=False,
    )


@preset(ModelConfig, Fields(vocab_size=267744, dim=1024, layers=16, heads=8, mlp_dim=None, max_length=512, dropout=0.3))
def alibi(dropout: float) -> Fields:
    """The WikiText-103 decoder of the paper: pre-norm, ReLU, and no positions but a penalty for distance in each head.

    Published with a vocabulary of words in adaptive embeddings; here it is one table. It may be read at lengths beyond
    `max_length`, which nothing in it depends on. Attention weights are dropped a third as often as hidden numbers.

    Source: Press et al. 2022, section 4.1, on the model of Baevski and Auli 2019, section 4.
    """
    return Fields(position="alibi", mlp="relu", attention_dropout=dropout / 3, bias=True)


@preset(
    ModelConfig,
    Fields(
        vocab_size=267744,
        dim=1024,
        layers=16,
        heads=16,
        mlp_dim=4096,
        max_length=3072,
        dropout=0.3,
        attention_dropout=0.1,
    ),
)
def knn_lm() -> Fields:
    """The WikiText-103 decoder that kNN-LM looks things up for: train it, then put a datastore beside it.

    Neighbours are no part of its weights or its training. `regard knn build` makes the datastore with the trained run,
    `regard knn sweep` finds their weight, and `regard evaluate` and `regard generate` mix them in with `--datastore`;
    in Python `regard_lab.retrieval.KnnLm` stands around it. Any other decoder whose last block has an MLP serves as
    well, published weights among them. Published with adaptive embeddings; here it is one table.

    Source: Khandelwal et al. 2020, section 4; the network of Baevski & Auli 2019.
    """
    return Fields(position="sinusoidal", mlp="relu", bias=True)


_PATTERN_PARTS = {"strided": ("window", "stride"), "fixed": ("block", "summary")}
"""The two sets of each pattern, in the order in which layers must follow: `fixed` reaches everything only so."""


@preset(ModelConfig, Fields(vocab_size=256, dim=512, layers=30, heads=8, max_length=12288, dropout=0.4))
def sparse_transformer(
    layers: int,
    pattern: Literal["strided", "fixed"] = "fixed",
    combine: Literal["union", "alternate", "heads"] = "union",
    stride: int = 128,
    columns: int | None = None,
) -> Fields:
    """The model of enwik8, 95 million weights: pre-norm decoder over bytes, whose blocks are computed again.

    `strided`: the last `stride` positions, and every `stride`-th one; for images and sound, whose width it is. `fixed`:
    the own block of `stride` positions, and the last `columns` of every block; for text. Both sets together reach every
    position in two steps. `combine` says how: every head sees the `union`; layers `alternate` between them; or the two
    are split over the `heads`, which the paper finds best where heads are many.

    That of CIFAR-10 is (dim, layers, heads) = (256, 128, 2) with pattern strided and dropout 0.25, that of ImageNet at
    64 x 64 (512, 48, 16) with dropout 0.01. The published queries and keys are half as wide as here there.

    Args:
        pattern, combine: as said.
        stride: l of the paper, near the root of the length.
        columns: c of the paper, of fixed only; None: 32.

    Raises:
        ConfigError: a pattern or a way of combining that does not exist, columns of strided.

    Source: Child et al. 2019, sections 4.3 (patterns), 5.2 (combining), 5.4 (recomputation), 7.1 and 7.2 (shapes).
    """
    parts = _PATTERN_PARTS
    if pattern not in parts:
        raise ConfigError(f"sparse_transformer has no pattern {pattern!r}: {nearest(pattern, parts)}")
    if pattern == "strided" and columns is not None:
        raise ConfigError(
            f"sparse_transformer: columns belongs to pattern='fixed', got {columns=}, {pattern=}; leave it out"
        )
    sizes = f"stride={stride}" + (f", columns={32 if columns is None else columns}" if pattern == "fixed" else "")
    ways = {
        "union": (f"{pattern}_union({sizes})",),
        "alternate": tuple(f"{pattern}({sizes}, part={parts[pattern][at % 2]!r})" for at in range(layers)),
        "heads": (f"{pattern}({sizes}, part='heads')",),
    }
    if combine not in ways:
        raise ConfigError(f"sparse_transformer cannot combine by {combine!r}: {nearest(combine, ways)}")
    return Fields(attention=ways[combine], position="learned", tied=False, bias=True, checkpoint="block")


@preset(ModelConfig, Fields(vocab_size=256, dim=512, layers=12, heads=8, mlp_dim=2048, max_length=8192, dropout=0.3))
def adaptive_span(max_span: int = 8192, ramp: int = 32, dynamic: bool = False) -> Fields:
    """The character language model whose heads learn how far they look; most learn to look at their neighbours.

    The published positions are vectors of relative distances, one for each of up to `max_span`; here they are
    rotary, which reach as far without a table.

    Args:
        max_span, ramp: as the mechanism `adaptive_span`.
        dynamic: every token chooses its span (`dynamic_span`), instead of every head.

    Source: Sukhbaatar et al. 2019, section 3 (the small model of enwik8).
    """
    name = "dynamic_span" if dynamic else "adaptive_span"
    return Fields(attention=(f"{name}(max_span={max_span}, ramp={ramp})",), mlp="relu", bias=True)


@preset(
    ModelConfig,
    Fields(vocab_size=320, dim=1024, layers=6, heads=8, mlp_dim=None, mlp_chunks=8, max_length=65536, dropout=0.0),
)
def reformer(layers: int, rounds: int = 4, bucket_size: int = 64, window: int = 64) -> Fields:
    """A reversible language model that alternates windows of local attention with locality-sensitive hashing.

    Activations do not grow with depth, and those of the MLP are of one of `mlp_chunks` pieces at a time. Hashing is the
    strictly causal form, see `lsh`; positions are sinusoidal (published: learned for two axes of the position). The
    paper trains with 4 rounds and evaluates with 8, on up to 64 K tokens; the other sizes here are ours.

    Args:
        rounds, bucket_size: as the mechanism `lsh`.
        window: tokens that a local layer sees.

    Source: Kitaev, Kaiser, Levskaya 2020, sections 2 to 5.
    """
    local, hashed = f"local(window={window})", f"lsh(rounds={rounds}, bucket_size={bucket_size})"
    attention = tuple(hashed if at % 2 else local for at in range(layers))
    return Fields(attention=attention, position="sinusoidal", block="reversible", mlp="relu", bias=True)


@preset(ModelConfig, Fields(vocab_size=98304, dim=1024, layers=22, heads=8, mlp_dim=None, max_length=8192, dropout=0.0))
def routing_transformer(
    layers: int, heads: int, window: int = 512, num_clusters: int | None = None, routing_layers: int = 2
) -> Fields:
    """The language model of books: windows of local attention, and in the last layers half of the heads routed.

    O(n^1.5 d) where tokens spread evenly over sqrt(n) clusters. Routing is strictly causal here (`form="exact"`); the
    published one, which gives every centroid as many tokens as another, lets later tokens take earlier ones' places.
    Layers, length, and which heads are routed are the paper's; its other sizes were not at hand, and those here are
    ours. So are the positions, sinusoidal, since a routed query knows no distance (the paper's are relative). A layer
    with routed heads has one projection for queries and keys, of its local heads too.

    Args:
        window: tokens that a local head sees.
        num_clusters: c of a routed head; None: the square root of `max_length`.
        routing_layers: how many of the last layers have routed heads, the second half of each.

    Raises:
        ConfigError: a single head, or more routing layers than layers.

    Source: Roy, Saffar, Vaswani, Grangier 2021, abstract and section 5 (PG-19).
    """
    if heads < 2 or not 0 <= routing_layers <= layers:
        raise ConfigError(
            "routing_transformer routes half of the heads of its last layers: it needs 2 heads and at most "
            f"{layers} routing layers, got {heads=}, {routing_layers=}"
        )
    local = f"local(window={window})"
    routing = "routing" if num_clusters is None else f"routing(num_clusters={num_clusters})"
    mix = f"{local}:{heads // 2} + {routing}:{heads - heads // 2}"
    attention = (local,) * (layers - routing_layers) + (mix,) * routing_layers
    return Fields(attention=attention, position="sinusoidal", mlp="relu", bias=True)


@preset(ModelConfig, Fields(vocab_size=256, dim=256, layers=8, heads=8, max_length=784, dropout=0.1))
def linear_transformer(
    feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor"] = "elu_plus_one",
) -> Fields:
    """The image generator of the paper (MNIST, 784 pixels of 256 values): linear attention with elu + 1, O(length).

    Post-norm blocks with ReLU and dropout 0.1 as in the authors' library. The paper predicts a mixture of logistics;
    here the output is a categorical over the pixel values, which is also what text needs. Its positions are
    absolute; the sinusoids have no table, so that sequences may be longer than those in training. An encoder is
    `build("bert", attention=("linear",), attention_dropout=0.0)`.

    Args:
        feature_map: phi of queries and keys, as the mechanism `linear`.

    Source: Katharopoulos et al. 2020, section 4.2.1 (CIFAR-10: 16 layers, 3,072 positions).
    """
    attention = (f"linear(feature_map={feature_map!r})",)
    return Fields(attention=attention, position="sinusoidal", mlp="relu", norm="post", tied=False, bias=True)


@preset(ModelConfig, Fields(vocab_size=256, dim=512, layers=6, heads=8, mlp_dim=None, max_length=12288, dropout=0.1))
def performer(
    num_features: int = 256, feature_map: Literal["positive", "hyperbolic", "trigonometric", "relu"] = "positive"
) -> Fields:
    """The ImageNet64 model of the paper (64 x 64 x 3 pixel values in a row), causal FAVOR+ attention, O(length).

    The paper's deeper variant has 12 layers. Positions are sinusoidal, without a table. An encoder is
    `build("bert", attention=("performer(num_features=256)",), attention_dropout=0.0)`.

    Args:
        num_features: random features per head; the error against softmax falls as it grows.
        feature_map: the estimates of softmax, and relu, the paper's other kernel, as the mechanism `performer`.

    Source: Choromanski et al. 2021, section 4.4: (heads, mlp_dim, dim) = (8, 2048, 512), 6 or 12 layers.
    """
    spec = f"performer(num_features={num_features}, feature_map={feature_map!r})"
    return Fields(attention=(spec,), position="sinusoidal", bias=True)


@preset(ModelConfig, Fields(vocab_size=267735, dim=512, layers=6, heads=8, mlp_dim=None, max_length=512, dropout=0.1))
def rfa(
    num_features: int = 128,
    feature_map: Literal["trigonometric", "arc_cosine"] = "trigonometric",
    gate: bool = True,
) -> Fields:
    """The small language model of WikiText-103, gated, O(length): decoding keeps one sum per head and no cache.

    The big one is (dim, layers, heads) = (1024, 16, 16). Published embeddings are narrower for rarer words, which makes
    38 million weights; here they are one table of `dim` columns, tied to the output. Positions are sinusoidal, without
    a table. An encoder is `build("bert", attention=("rfa",), attention_dropout=0.0)`; it has no gate.

    Args:
        num_features: features per head, 2 D of the paper, whose D is 64.
        feature_map: the paper's two kernels, the Gaussian and the arc-cosine one.
        gate: the recency gate.

    Source: Peng et al. 2021, section 4.1 and its hyperparameters in the appendix.
    """
    spec = f"rfa(num_features={num_features}, feature_map={feature_map!r}, gate={gate})"
    return Fields(attention=(spec,), position="sinusoidal", mlp="relu", bias=True)


_COMBINATIONS = ("layers", "window", "gate")


@preset(
    ModelConfig,
    Fields(vocab_size=256, dim=256, layers=8, heads=8, short_convolution=4, max_length=2048, dropout=0.0),
)
def hybrid_retrieval(
    layers: int,
    combine: Literal["layers", "window", "gate"] = "layers",
    linear: str | None = None,
    period: int | None = None,
    window: int | None = None,
    feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor"] | None = None,
) -> Fields:
    """A pre-norm decoder of exact and linear attention together: by layers, or by distance in every layer.

    `layers`: every `period`-th layer is softmax and finds any token again, at the price of a state that grows; the
    others are `linear`. `window`: in every layer softmax over the last `window` tokens and linear attention beyond,
    under one normaliser, with a constant state: exact retrieval reaches as far as the window. `gate`: the same, as two
    averages that a gate mixes. The shape is that of `linear_transformer`, as the article gives none; a convolution over
    the embeddings lets a layer compare a token with those before it, which retrieval needs.

    Args:
        combine: as said.
        linear: specification of the linear layers, of `layers` only; None: linear.
        period: the last of so many layers is exact, of `layers` only; None: 2.
        window, feature_map: as the mechanism `local_linear`, of `window` and `gate` only; None: 128, elu_plus_one.

    Raises:
        ConfigError: a way of combining that does not exist, an option of another one, or a period that leaves no exact
            or no linear layer.

    Source: the hybrids of the exact-retrieval article; shape: Katharopoulos et al. 2020, section 4.2.1.
    """
    if combine not in _COMBINATIONS:
        raise ConfigError(f"hybrid_retrieval cannot combine by {combine!r}: {nearest(combine, _COMBINATIONS)}")
    by_layers, by_distance = {"linear": linear, "period": period}, {"window": window, "feature_map": feature_map}
    foreign, owner = (by_distance, "'window' or 'gate'") if combine == "layers" else (by_layers, "'layers'")
    for name, value in foreign.items():
        if value is not None:
            raise ConfigError(
                f"hybrid_retrieval: {name} belongs to combine={owner}, got {name}={value!r}, {combine=}; leave it out"
            )
    if combine == "layers":
        linear, period = "linear" if linear is None else linear, 2 if period is None else period
        if not 2 <= period <= layers:
            raise ConfigError(
                f"hybrid_retrieval needs a period from 2 to the number of layers, {layers}, to have both kinds of "
                f"layers, got {period}; choose another period, or combine='window'"
            )
        attention = tuple("softmax" if (at + 1) % period == 0 else linear for at in range(layers))
    else:
        window, feature_map = 128 if window is None else window, feature_map or "elu_plus_one"
        shared = "share" if combine == "window" else "gate"
        attention = (f"local_linear(window={window}, feature_map={feature_map!r}, combine={shared!r})",)
    return Fields(attention=attention, position="sinusoidal", bias=True)
