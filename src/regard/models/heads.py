"""Heads on an encoder: masked tokens, classes, numbers."""

from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError
from regard.core.randomness import drawn_on_cpu
from regard.core.types_of import typed
from regard.layer import linear
from regard.models.contrast import alone, contrast
from regard.models.decoder import ModelOutput
from regard.models.encoder import Encoded, Encoder
from regard.models.encoder_config import Pooling
from regard.models.parts import ACTIVATIONS, build_norm

Activation = Literal["gelu", "gelu_tanh", "relu", "tanh"]


def pooled(encoded: Encoded, pooling: Pooling) -> Float[Tensor, "batch dim"]:
    """One vector for a sequence: its first position, or the mean over the real ones (0 where there is none).

    Example:
        >>> hidden = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> pooled(Encoded(hidden, torch.tensor([[True, True, False]]), {}), "mean")
        tensor([[2.]])
    """
    hidden, mask = encoded.hidden, encoded.key_mask
    if pooling == "first":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(1)
    return hidden.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


class MaskedLanguageModel(nn.Module):
    """p(token_i | all the others) = softmax(E norm(gelu(W x_i + b)) + c), E the encoder's embedding table.

    With `cpc_weight`, the global token of a sentence that is hidden as a whole is trained to be near what the same
    encoder makes of the sentence alone, and far from other sentences: the loss `cpc`, see `contrast`.

    Args:
        encoder: over tokens.
        activation: the function in the place of gelu; BERT and BigBird have that of their MLP here.

    Raises:
        ConfigError: an encoder over vectors; a `cpc_weight` without a mechanism that knows segments.

    Example:
        >>> from regard.models.encoder_config import EncoderConfig
        >>> model = MaskedLanguageModel(Encoder(EncoderConfig(dim=32))).eval()
        >>> one, other = (model(torch.tensor([[72, 101, last]])).logits for last in (108, 7))
        >>> (one != other).any(-1).tolist()  # every position reads all the others
        [[True, True, True]]

    Source: Devlin et al. 2019, section 3.1; the transform before the output layer is the released code's. Hidden
    sentences: Ainslie et al. 2020, section 3.4.
    """

    @typed
    @drawn_on_cpu
    def __init__(self, encoder: Encoder, *, activation: Activation = "gelu") -> None:
        super().__init__()
        config = encoder.config
        if encoder.embeddings.table is None:
            raise ConfigError("a masked language model needs an encoder over tokens, this one reads vectors")
        self.encoder = encoder
        self.activation: Activation = activation
        self.reads_marks = encoder.reads_marks
        self.loss_weights = dict(encoder.loss_weights)
        if config.cpc_weight:
            if self.reads_marks != "segments":
                raise ConfigError(
                    f"cpc_weight={config.cpc_weight} is for global tokens that summarise segments, and none of the "
                    f"mechanisms ({', '.join(dict.fromkeys(config.specs))}) has any; use etc, or cpc_weight=0"
                )
            self.loss_weights["cpc"] = config.cpc_weight
        draw = generator(config.seed, "masked language model")
        self.transform = linear(config.dim, config.dim, bias=config.bias, draw=draw)
        self.norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        token_types: Int[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
        contents: Int[Tensor, "batch length"] | None = None,
    ) -> ModelOutput:
        """Logits (batch, length, vocab_size); arguments and errors as `Encoder.forward`.

        Args:
            contents: of sentences that are hidden as a whole, their tokens; negative elsewhere. In training they add
                the loss `cpc`, where the configuration gives it a weight.

        Raises:
            InputError: contents without marks that say whose they are.
        """
        encoded = self.encoder(tokens, key_mask=key_mask, token_types=token_types, positions=positions, marks=marks)
        hidden = encoded.hidden[:, 1:] if self.encoder.config.cls_token else encoded.hidden
        if contents is not None and self.training and self.encoder.config.cpc_weight:
            if marks is None:
                raise InputError("contents of hidden sentences need marks: which tokens are of which sentence")
            encoded.losses["cpc"] = self._contrast(hidden, tokens, contents, marks)
        hidden = self.norm(ACTIVATIONS[self.activation](self.transform(hidden)))
        table = cast(nn.Embedding, self.encoder.embeddings.table)
        return ModelOutput(F.linear(hidden, table.weight, self.bias), None, encoded.losses)

    def _contrast(self, hidden: Tensor, tokens: Tensor, contents: Tensor, marks: Tensor) -> Tensor:
        """The loss of this batch. What is said of hidden sentences, and what is in them, come from one encoder."""
        segments = alone(tokens, contents, marks)
        if not len(segments.row):
            return hidden.sum() * 0
        seen = self.encoder(segments.tokens, key_mask=segments.key_mask, marks=segments.marks).hidden
        return contrast(hidden[segments.row, segments.place], seen[:, int(self.encoder.config.cls_token)])


class SequenceHead(nn.Module):
    """outputs = W dropout(pool(x)) + b, where pool ends in tanh(V x + c) if the encoder's configuration says `pooler`.

    Args:
        encoder: whose `pooling` and `pooler` say what is read.
        outputs: numbers per sequence.
        activation: the function in the place of tanh; BigBird has that of its MLP here.
    """

    @typed
    @drawn_on_cpu
    def __init__(self, encoder: Encoder, *, outputs: int, activation: Activation = "tanh") -> None:
        super().__init__()
        if outputs < 1:
            raise ConfigError(f"{type(self).__name__}: a head has at least 1 output, got {outputs}")
        config = encoder.config
        self.encoder = encoder
        self.activation: Activation = activation
        self.reads_marks = encoder.reads_marks
        self.loss_weights = encoder.loss_weights
        draw = generator(config.seed, "head")
        self.pooler = linear(config.dim, config.dim, bias=True, draw=draw) if config.pooler else None
        self.dropout = nn.Dropout(config.dropout)
        self.output = linear(config.dim, outputs, bias=True, draw=draw)

    def forward(
        self,
        inputs: Shaped[Tensor, "batch *given"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        token_types: Int[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*rows length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
    ) -> ModelOutput:
        """Logits (batch, outputs); arguments and errors as `Encoder.forward`."""
        encoded = self.encoder(inputs, key_mask=key_mask, token_types=token_types, positions=positions, marks=marks)
        x = pooled(encoded, self.encoder.config.pooling)
        x = x if self.pooler is None else ACTIVATIONS[self.activation](self.pooler(x))
        return ModelOutput(self.output(self.dropout(x)), None, encoded.losses)


class Classifier(SequenceHead):
    """p(class | sequence) = softmax(logits).

    Args:
        encoder: as `SequenceHead`.
        classes: number of classes.
        activation: as `SequenceHead`.

    Example:
        >>> from regard.models.encoder_config import EncoderConfig
        >>> config = EncoderConfig(dim=32, vocab_size=0, input_dim=16, cls_token=True)
        >>> model, patches = Classifier(Encoder(config), classes=10).eval(), torch.randn(2, 49, 16)
        >>> padded = model(patches, key_mask=torch.arange(49).expand(2, 49) < 40)
        >>> torch.allclose(padded.logits, model(patches[:, :40]).logits, atol=1e-5)
        True

    Source: Devlin et al. 2019, section 4.1 (pooler); Dosovitskiy et al. 2021, equation 4 (none).
    """

    @typed
    @drawn_on_cpu
    def __init__(self, encoder: Encoder, *, classes: int, activation: Activation = "tanh") -> None:
        super().__init__(encoder, outputs=classes, activation=activation)


class Regressor(SequenceHead):
    """Numbers for a sequence: the logits themselves, for a squared loss.

    Args:
        encoder: as `SequenceHead`.
        targets: how many numbers.

    Example:
        >>> from regard.models.encoder_config import EncoderConfig
        >>> model = Regressor(Encoder(EncoderConfig(dim=32, pooling="mean", position="none"))).eval()
        >>> one, other = (model(torch.tensor([tokens])).logits for tokens in ([72, 101, 108], [108, 72, 101]))
        >>> torch.allclose(one, other, atol=1e-5)  # a mean of positions that are not numbered has no order
        True
    """

    @typed
    @drawn_on_cpu
    def __init__(self, encoder: Encoder, *, targets: int = 1) -> None:
        super().__init__(encoder, outputs=targets)
