"""Encoders of text: BERT and what was built on it, and two small ones."""

from typing import Literal

from regard.core.errors import ConfigError, nearest
from regard.models.encoder_config import EncoderConfig
from regard.models.fusion_config import FusionConfig
from regard.models.presets._preset import Fields, preset


@preset(EncoderConfig, Fields(vocab_size=30522, dim=768, layers=12, heads=12, max_length=512, dropout=0.1))
def bert(dropout: float) -> Fields:
    """BERT base, 110 million weights: post-norm encoder, learned positions, two types of tokens, pooled first token.

    The large model is (dim, layers, heads) = (1024, 24, 16). `dropout` also drops attention weights.

    Source: Devlin et al. 2019, section 3; norm of the embeddings and epsilon as in the released code.
    """
    return Fields(
        position="learned",
        token_types=2,
        embedding_norm=True,
        mlp="gelu",
        norm="post",
        norm_eps=1e-12,
        pooler=True,
        attention_dropout=dropout,
    )


@preset(bert, Fields(vocab_size=50265))
def roberta() -> Fields:
    """RoBERTa base, 125 million weights: BERT without the second type of tokens, over byte pairs.

    Positions count real tokens alone. The position table has two rows before the first token's; padding has the second.
    The large model is (dim, layers, heads) = (1024, 24, 16). `dropout` also drops attention weights.

    Source: Liu et al. 2019, section 3; the rows of the position table as in the released code.
    """
    return Fields(position_offset=2, skip_padding=True, token_types=1, norm_eps=1e-5)


@preset(bert, Fields())
def rope() -> Fields:
    """RoFormer: BERT base with rotary positions in every layer instead of a table.

    `llama` is a decoder with them. `dropout` also drops attention weights.

    Source: Su et al. 2021, section 4.2.
    """
    return Fields(position="rotary(layout=interleaved)")


@preset(bert, Fields())
def blockbert(heads: int, blocks: int = 2, shifted: int = 2) -> Fields:
    """BERT base whose heads see one block of the sequence each: most their own, some another one.

    A block is max_length / blocks positions. Of the heads `shifted` see the next block, as many the one after it, and
    so on through the blocks; those that remain see their own. Published: 10 and 2 of 12 heads for two blocks, 8, 2 and
    2 for three. Sequences of 1024 have three. No attention weights are dropped unless `attention_dropout` says so.

    Args:
        blocks: n of the paper.
        shifted: heads for every permutation but the identity.

    Raises:
        ConfigError: fewer than one head for every permutation.

    Source: Qiu et al. 2020, sections 3.1 and 4.1.
    """
    unshifted = heads - shifted * (blocks - 1)
    if blocks < 1 or shifted < 1 or unshifted < 1:
        raise ConfigError(
            f"blockbert needs at least 1 block and 1 head for every permutation, got heads={heads}, blocks={blocks}, "
            f"shifted={shifted}: {unshifted} would see their own block; lower blocks or shifted"
        )
    counts = [unshifted, *[shifted] * (blocks - 1)]
    maps = tuple(
        tuple((block + shift) % blocks for block in range(blocks)) for shift, n in enumerate(counts) for _ in range(n)
    )
    return Fields(attention=(f"blockwise(blocks={blocks}, permutations={maps})",), attention_dropout=0.0)


_FORMS = {"itc": (64, 1, 3), "etc": (84, 256, 0)}
"""form -> block size, global blocks at each end or global tokens in front, random blocks: table 8 of the paper"""


@preset(bert, Fields(vocab_size=50358, max_length=4096))
def bigbird(
    form: Literal["itc", "etc"] = "itc",
    block_size: int | None = None,
    num_global: int | None = None,
    num_random: int | None = None,
) -> Fields:
    """BERT base over blocks: neighbours, global ones and random ones (`itc`), or extra global tokens (`etc`).

    The large model is (dim, layers, heads) = (1024, 24, 16). No attention weights are dropped unless
    `attention_dropout` says so.

    Args:
        form: `itc`: the first blocks and the last one are global. `etc`: the first tokens are, and the input begins
            with as many that summarise it, such as those of `--task.summaries`.
        block_size: positions in a block; None: 64 (itc), 84 (etc).
        num_global: global blocks at the start (itc) or global tokens (etc); None: 1 and 256.
        num_random: random blocks for every block and head; None: 3; `etc` has none.

    Raises:
        ConfigError: an unknown form; random blocks in form etc.

    Source: Zaheer et al. 2020, section 4 and table 8; activation, vocabulary and epsilon as in the released code.
    """
    if form not in _FORMS:
        raise ConfigError(f"bigbird has no form {form!r}: {nearest(form, _FORMS)}")
    if form == "etc" and num_random:
        raise ConfigError(f"bigbird in form etc has no random blocks, got num_random={num_random}; use form='itc'")
    given = {"block_size": block_size, "num_global": num_global, "num_random": num_random}
    sizes = [
        f"{name}={published if size is None else size}"
        for (name, size), published in zip(given.items(), _FORMS[form], strict=True)
    ]
    spec = f"bigbird({', '.join(sizes)}, form={form!r})"
    return Fields(attention=(spec,), mlp="gelu_tanh", attention_dropout=0.0)


@preset(bert, Fields(projections="all", cpc_weight=0.25, max_length=4608))
def etc(window: int = 84, max_distance: int = 12, num_global: int = 0) -> Fields:
    """BERT base over two streams: global tokens that summarise sentences, and 4096 tokens of text after them.

    Where a token is, is known from relative labels alone. Which tokens are global and what they summarise is said by
    marks. The large model is (dim, layers, heads, window, max_distance) = (1024, 24, 16, 169, 24). No attention weights
    are dropped unless `attention_dropout` says so.

    Args:
        window: the paper's local radius.
        max_distance: further distances share a label.
        num_global: the first tokens that are global without a mark.
        projections: of queries, keys and values; all: the streams share theirs, as in the published shared model;
            separate: four sets.
        cpc_weight: weight of the loss of hidden sentences beside that of masked tokens; published 0.2 to 0.8.

    Source: Ainslie et al. 2020, sections 3 and 4, appendix A.
    """
    spec = f"etc(window={window}, max_distance={max_distance}, num_global={num_global})"
    return Fields(attention=(spec,), position="none", token_types=1, attention_dropout=0.0)


@preset(roberta, Fields(max_length=4096))
def longformer(layers: int, window: int = 256, last_window: int | None = None, num_global: int = 1) -> Fields:
    """RoBERTa base with windows of 512 positions, and global tokens that have projections of their own.

    Windows may grow from `window` in the first layer to `last_window` in the last one, by the same factor from layer to
    layer, as in the published models of characters: there from 32 to 512. Those are decoders, whose configuration takes
    the specifications as they are. The large model is (dim, layers, heads) = (1024, 24, 16). No attention weights are
    dropped unless `attention_dropout` says so.

    Args:
        window: keys on either side, half of the published number; in a decoder that many past keys.
        last_window: of the last layer; None: all layers have `window`.
        num_global: the first tokens that are global without a mark. Published are marks alone, on the first token in
            classification.

    Raises:
        ConfigError: windows below 1.

    Source: Beltagy et al. 2020, sections 3.1, 4.2 (windows that grow) and 5 (the encoder).
    """
    ends = (window, window if last_window is None else last_window)
    if min(ends) < 1:
        raise ConfigError(f"longformer needs windows of at least 1, got window={window}, last_window={last_window}")
    sizes = [round(ends[0] * (ends[1] / ends[0]) ** (at / max(layers - 1, 1))) for at in range(layers)]
    specs = tuple(f"longformer(window={size}, num_global={num_global})" for size in sizes)
    attention = specs if last_window is not None else specs[:1]
    return Fields(attention=attention, attention_dropout=0.0, projections="global")


@preset(roberta, Fields())
def linformer(
    layers: int,
    rank: int | tuple[int, ...] = 256,
    share: Literal["none", "head", "key_value", "layer"] | None = None,
    projection: Literal["learned", "mean", "max", "convolution"] = "learned",
) -> Fields:
    """RoBERTa base whose keys and values are projected to `rank` slots, O(length).

    Every projection has one column per position, so there are no sequences beyond max_length, and no decoder.

    Args:
        rank: of every layer, or of each, first to last: the paper's non-uniform dimensions.
        share: as the mechanism `linformer`; None: one matrix for all layers, heads, keys and values, the paper's most
            economical form, and `none` where a projection has no weights.
        projection: as the mechanism `linformer`.

    Raises:
        ConfigError: ranks for another number of layers.

    Source: Wang et al. 2020, sections 4 and 5.
    """
    ranks = (rank,) if isinstance(rank, int) else rank
    if not isinstance(rank, int) and len(ranks) != layers:
        raise ConfigError(f"linformer takes one rank, or one for each of {layers} layers; got {len(ranks)}: {ranks}")
    if share is None:
        share = "layer" if projection in ("learned", "convolution") else "none"
    specs = tuple(f"linformer(rank={each}, share={share!r}, projection={projection!r})" for each in ranks)
    return Fields(attention=specs)


@preset(bert, Fields())
def nystromformer(
    num_landmarks: int = 64, pinv: Literal["iterative", "exact"] = "iterative", convolution: int | None = 33
) -> Fields:
    """BERT base whose softmax is rebuilt from 64 landmarks, with smoothed values beside it, O(length).

    No attention weights are dropped, since none are made: `dropout` drops hidden numbers alone. Landmarks are means
    over the whole sequence, so there is no decoder.

    Args:
        num_landmarks, pinv, convolution: as the mechanism `nystrom`; widths of 33, 35 and 65 are published.

    Source: Xiong et al. 2021, section 4.
    """
    spec = f"nystrom(num_landmarks={num_landmarks}, pinv={pinv!r}, convolution={convolution})"
    return Fields(attention=(spec,), attention_dropout=0.0)


@preset(EncoderConfig, Fields(vocab_size=30522, dim=256, layers=1, heads=16, mlp_dim=None, max_length=512, dropout=0.2))
def da_transformer() -> Fields:
    """A classifier of texts whose heads rescale their logits by the distance, each with a preference of its own.

    The paper classifies texts with small encoders over pretrained word vectors; the sizes, the table of embeddings and
    the mean over positions are this library's choice.

    Source: Wu, Wu, Huang 2021, section 3.
    """
    return Fields(attention=("distance_aware",), position="none", mlp="relu", norm="post", pooling="mean")


@preset(FusionConfig, Fields(hidden=None, dropout=0.0))
def fusion(
    dropout: float,
    seed: int,
    input_dim: int = 49,
    modalities: int = 2,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    mlp_dim: int | None = None,
    max_length: int = 64,
) -> Fields:
    """Views of an image as squares of 7 x 7 pixels: a small pre-norm encoder for each, learned positions, mean pooling.

    The fusion is the published one; its encoders are ours, since it prescribes none. Encoders over tokens, or of
    different kinds, make a `FusionConfig` as well.

    Args:
        input_dim: width of the vectors of every modality.
        modalities: number of them.
        dim, layers, heads, mlp_dim, max_length: of every encoder.
        hidden: width of the network that scores a modality.
        dropout, seed: of everything; every encoder draws weights of its own.

    Source: Yang et al. 2016, equations 5 to 7, over modalities.
    """
    views = (
        EncoderConfig(
            vocab_size=0,
            input_dim=input_dim,
            dim=dim,
            layers=layers,
            heads=heads,
            mlp_dim=mlp_dim,
            position="learned",
            pooling="mean",
            max_length=max_length,
            dropout=dropout,
            seed=seed * modalities + at,
        )
        for at in range(modalities)
    )
    return Fields(encoders=tuple(views))
