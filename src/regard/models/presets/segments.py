"""Decoders that remember earlier segments, look up neighbours, or choose their depth."""

from typing import Literal

from regard.core.errors import ConfigError
from regard.models.config import ModelConfig
from regard.models.presets._preset import Fields, preset


@preset(ModelConfig, Fields(vocab_size=267735, dim=410, layers=16, heads=10, mlp_dim=2100, max_length=150, dropout=0.1))
def transformer_xl(memory_length: int = 150) -> Fields:
    """The WikiText-103 base decoder: segments, each of which sees the hidden states of the one before in every layer.

    A layer reaches `memory_length` positions back, the model as many times `layers`. The two biases of the position
    scheme are shared by all layers. Published with adaptive embeddings; here it is one table. A longer memory may be
    used in evaluation than in training (published: 640).

    Args:
        max_length: tokens of a segment.
        memory_length: hidden states that a layer remembers.

    Source: Dai et al. 2019, section 3 and appendix; sizes of the authors' WikiText-103 base model.
    """
    return Fields(
        position="transformer_xl",
        memory=f"recent(length={memory_length})",
        mlp="relu",
        norm="post",
        bias=True,
        projection_bias=False,
    )


@preset(transformer_xl, Fields(vocab_size=256, dim=1024, layers=24, heads=8, mlp_dim=3072, max_length=768))
def compressive_transformer(
    memory_length: int = 768,
    compressed_length: int = 1152,
    rate: int = 3,
    function: Literal["max", "mean", "convolution", "dilated_convolution", "most_used"] = "convolution",
    loss: Literal["attention", "auto_encoding", "none"] = "attention",
) -> Fields:
    """The decoder of bytes (enwik8): what leaves the memory of Transformer-XL is kept in one slot for `rate` positions.

    Lengths and rate are the paper's for enwik8; other sizes are those of its 24 layers as far as they were at hand. The
    compression is trained by its own loss, of which no gradient reaches the rest, see `compressive`.

    Args:
        max_length: tokens of a segment.
        memory_length, compressed_length, rate, function, loss: as the memory `compressive`.

    Source: Rae et al. 2020, section 3 and 5.2.
    """
    sizes = f"length={memory_length}, compressed={compressed_length}, rate={rate}"
    return Fields(memory=f"compressive({sizes}, function={function}, loss={loss})")


@preset(transformer_xl, Fields(neighbours=4, neighbour_temperature=None))
def spalm(memory_length: int = 150) -> Fields:
    """A decoder with the memory of Transformer-XL beside a datastore: a gate mixes in what came after similar contexts.

    The output layer reads z = (1 - g) m + g h: h the hidden state, m the embeddings of the neighbours' tokens, weighted
    by a softmax of their products with h, g = sigmoid(w . h). Neighbours are found by another decoder, which made the
    datastore and is not trained: a run takes `--datastore` and `--datastore-model`, and evaluation and generation read
    them too. The shape around it is that of `transformer_xl`, and 4 neighbours are a choice of ours.

    Args:
        max_length, memory_length: as `transformer_xl`.
        neighbours, neighbour_temperature: as `ModelConfig`; with a temperature, distances count too.

    Source: Yogatama, de Masson d'Autume & Kong 2021, section 2; shape: Dai et al. 2019, WikiText-103 base.
    """
    return Fields(memory=f"recent(length={memory_length})")


@preset(
    ModelConfig,
    Fields(vocab_size=32000, dim=1024, layers=12, heads=8, head_dim=128, mlp_dim=4096, max_length=512, dropout=0.0),
)
def memorizing_transformer(
    layers: int,
    memory_length: int = 512,
    pairs: int = 8192,
    top: int = 32,
    index: Literal["exact", "ivf"] = "exact",
    memory_layer: int | None = None,
) -> Fields:
    """A decoder with the memory of Transformer-XL in every layer, one of which also searches the keys of its document.

    That layer compares by normalised queries and keys in its segment too (`cosine`), as it does in its memory. Which
    layer it is, of 12, and the lengths are the paper's; activation and dropout are ours.

    Args:
        max_length: tokens of a segment.
        memory_length: hidden states that a layer remembers as its past.
        pairs, top, index: as the memory `memorizing`; published: up to 262,144 pairs.
        memory_layer: the one that searches, from 1; None: three quarters of the way, the 9th of 12.

    Raises:
        ConfigError: there is no such layer.

    Source: Wu et al. 2022, sections 3 and 4.
    """
    at = -(-3 * layers // 4) if memory_layer is None else memory_layer
    if not 1 <= at <= layers:
        raise ConfigError(f"memorizing_transformer has layers 1 to {layers}, got memory_layer={memory_layer}")
    searches = [layer == at for layer in range(1, layers + 1)]
    options = f"pairs={pairs}, top={top}, recent={memory_length}" + ("" if index == "exact" else f", index={index}")
    recent, searched = f"recent(length={memory_length})", f"memorizing({options})"
    return Fields(
        attention=tuple("cosine" if here else "softmax" for here in searches),
        position="t5_bias",
        memory=tuple(searched if here else recent for here in searches),
    )


@preset(ModelConfig, Fields(vocab_size=32768, dim=1024, heads=16, mlp_dim=None, max_length=512, dropout=0.1))
def universal_transformer(
    mlp_dim: int | None,
    steps: int = 8,
    halting: bool = True,
    transition: Literal["mlp", "convolution"] = "mlp",
) -> Fields:
    """The language model that applies one block again and again, as often as each token asks for.

    Post-norm, so that the coordinates of slot and step are part of the residual stream. The transition is an MLP with
    ReLU, or separable convolutions with as many channels. Sizes are ours.

    Args:
        steps, halting, transition: as the depth `universal`.

    Source: Dehghani et al. 2019, Universal Transformers, section 2.
    """
    convolves = transition == "convolution"
    further = "" if halting else ", halting=False"
    further += f", transition={transition!r}" if convolves else ""
    further += f", width={mlp_dim}" if convolves and mlp_dim is not None else ""
    return Fields(
        layers=1,
        depth=f"universal(steps={steps}{further})",
        position="none",
        mlp="none" if convolves else "relu",
        mlp_dim=None if convolves else mlp_dim,
        norm="post",
        bias=True,
    )


@preset(ModelConfig, Fields(vocab_size=10000, dim=512, layers=6, heads=4, mlp_dim=1024, max_length=512, dropout=0.3))
def depth_adaptive(
    classifier: Literal["sequence", "multinomial", "geometric"] = "geometric",
    oracle: Literal["likelihood", "correctness"] = "likelihood",
    penalty: float = 0.1,
    smoothing: float = 0.0,
    threshold: float = 0.5,
) -> Fields:
    """The language model that learns how many blocks each token needs from an oracle that knows its target.

    The published model is an encoder-decoder; here is its decoder without a source, so that `sequence` reads what the
    text was so far. Exits are trained together and share the output layer.

    Args:
        classifier: who decides, as `confidence` of the depth `early_exit`.
        oracle, penalty, smoothing, threshold: as the depth `early_exit`.

    Source: Elbayad et al. 2020, Depth-Adaptive Transformer, sections 3 and 4 (the model of IWSLT'14).
    """
    learnt = f"exits='aligned', penalty={penalty}"
    learnt += "" if oracle == "likelihood" else f", oracle={oracle!r}"
    learnt += f", smoothing={smoothing}" if smoothing else ""
    depth = f"early_exit(threshold={threshold}, confidence={classifier!r}, {learnt})"
    return Fields(depth=depth, position="sinusoidal", mlp="relu", norm="post", bias=True)


@preset(
    ModelConfig,
    Fields(vocab_size=32128, dim=512, layers=8, heads=6, head_dim=64, mlp_dim=1024, max_length=512, dropout=0.1),
)
def calm(
    max_length: int,
    confidence: Literal["softmax", "saturation", "classifier"] = "softmax",
    threshold: float = 1.0,
    decaying: bool = True,
) -> Fields:
    """The language model whose exits are all trained, the deeper the more, so that each token may stop once it is sure.

    The published model is an encoder-decoder with T5's positions; here is its decoder without a source, with rotary
    positions. At threshold 1 it takes every block; what to set it to is measured, and depends on the text.

    Args:
        confidence, threshold, decaying: as the depth `early_exit`.

    Source: Schuster et al. 2022, sections 3 and 5 (the shape of T5 1.1 small).
    """
    falls = f", decaying=True, horizon={max_length}" if decaying else ""
    choice = f"threshold={threshold}, confidence={confidence!r}"
    depth = f"early_exit({choice}, exits='aligned', weights='rising'{falls})"
    return Fields(depth=depth, mlp="geglu_tanh", norm_kind="rms", tied=False)
