"""Queries, keys and values to measure approximations on: random ones of a stated norm, and those of networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, UnsupportedError
from regard.layer import AttentionLayer
from regard.models import EncoderDecoder


@dataclass(frozen=True, eq=False)
class Vectors:
    """The queries, keys and values that a mechanism is given: float64, a batch of one.

    Attributes:
        source: where they come from, such as random or smollm2.
        label: the part of that source: a norm, or a layer.
        causal: each query sees its own position and earlier ones only.
        q, k, v: queries, keys and values; fewer heads of keys are shared by groups.
    """

    source: str
    label: str
    causal: bool
    q: Float[Tensor, "1 heads length dim"]
    k: Float[Tensor, "1 kv_heads length dim"]
    v: Float[Tensor, "1 kv_heads length value"]

    @property
    def logits(self) -> Float[Tensor, "1 heads length length"]:
        """q . k / sqrt(dim), -inf where a key is not seen."""
        logits = self.q @ self.k.repeat_interleave(self.q.shape[1] // self.k.shape[1], 1).mT / self.q.shape[3] ** 0.5
        hidden = torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1)
        return logits.masked_fill(hidden, float("-inf")) if self.causal else logits

    def facts(self) -> dict[str, Any]:
        """Facts that explain an error: how sharp exact softmax is here, and how large the vectors are.

        With x' = x dim^(-1/4), so that a logit is q' . k': `query_norm` and `key_norm` are root mean squares of |q'|
        and |k'|, and `sum_square` the mean of |q' + k'|^2 over the pairs that are seen, the exponent in the variance of
        positive random features (Choromanski et al. 2021, Lemma 2). `effective_keys` is exp of the entropy of a row of
        softmax, and `visible_keys` what it would be if all weights were equal, as means over the rows. The relative
        errors of such equal weights are those of knowing nothing about q and k.
        """
        scale = self.q.shape[3] ** -0.25
        logits, q, k = self.logits, self.q * scale, self.k * scale
        seen = logits > float("-inf")
        weights, equal = logits.softmax(-1), seen.double() / seen.sum(-1, keepdim=True)
        v = self.v.repeat_interleave(q.shape[1] // self.v.shape[1], 1)
        squares = (
            q.square().sum(-1)[..., None]
            + k.square().sum(-1).repeat_interleave(q.shape[1] // k.shape[1], 1)[..., None, :]
            + 2 * logits.masked_fill(~seen, 0)
        )
        return {
            "source": self.source,
            "label": self.label,
            "causal": self.causal,
            "length": q.shape[2],
            "heads": q.shape[1],
            "kv_heads": k.shape[1],
            "key_dim": q.shape[3],
            "visible_keys": seen.sum(-1).double().mean().item(),
            "effective_keys": effective_keys(weights),
            "logit_mean": logits[seen].mean().item(),
            "logit_deviation": logits[seen].std().item(),
            "logit_largest": logits[seen].abs().max().item(),
            "query_norm": q.square().sum(-1).mean().sqrt().item(),
            "key_norm": k.square().sum(-1).mean().sqrt().item(),
            "sum_square": squares[seen].mean().item(),
            "equal_output_error": ((equal @ v - weights @ v).norm() / (weights @ v).norm()).item(),
            "equal_matrix_error": ((equal - weights).norm() / weights.norm()).item(),
        }


def effective_keys(weights: Float[Tensor, "*rows keys"]) -> float:
    """exp of the entropy of the absolute weights of a row, divided by their sum; the mean over rows.

    Example:
        >>> effective_keys(torch.tensor([[0.5, 0.5, 0.0], [0.0, -2.0, 0.0]]))
        1.5
    """
    share = weights.abs()
    share = share / share.sum(-1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
    return torch.special.entr(share).sum(-1).exp().mean().item()


def random_vectors(
    norm: float, *, length: int, causal: bool, heads: int = 8, key_dim: int = 64, seed: int = 0
) -> Vectors:
    """Queries and keys in random directions with |q'| = |k'| = norm, x' = x dim^(-1/4), and normal values.

    Logits then lie within -norm^2 and norm^2. The same directions serve every norm, causal or not.

    Raises:
        ConfigError: a norm that is not positive.

    Example:
        >>> x = random_vectors(2.0, length=6, causal=False, key_dim=16)
        >>> x.facts()["query_norm"], bool(x.logits.abs().max() <= 4)
        (2.0, True)
    """
    if not norm > 0:
        raise ConfigError(f"random queries and keys need a positive norm, got {norm}")
    draw = generator(seed, "random vectors", length)
    q, k, v = (torch.randn(1, heads, length, key_dim, generator=draw, dtype=torch.float64) for _ in range(3))
    q, k = (nn.functional.normalize(x, dim=-1) * norm * key_dim**0.25 for x in (q, k))
    return Vectors("random", f"norm {norm:g}", causal, q, k, v)


@torch.no_grad()
def layer_vectors(
    model: nn.Module, ids: Tensor, *, source: str, layers: Sequence[int] | None = None, bidirectional: bool = False
) -> list[Vectors]:
    """The inputs of a network's attention mechanisms for one text: after projections and rotary positions.

    Args:
        model: an encoder or decoder whose layers are `AttentionLayer`s.
        ids: (length,) tokens of one text.
        source: the name of the network.
        layers: their numbers, counted from 0; None: the first, the middle and the last.
        bidirectional: measure a causal network's vectors as if every position saw every other.

    Raises:
        ConfigError: layers that the network has not.
        UnsupportedError: a network with a source and a target, or one that adds a bias to the logits, which no
            estimate of softmax from q and k alone could serve.
    """
    if isinstance(model, EncoderDecoder):
        raise UnsupportedError(f"{source} has an encoder and a decoder; give a network that reads one text")
    attention_layers = [module for module in model.modules() if isinstance(module, AttentionLayer)]
    chosen = sorted({0, len(attention_layers) // 2, len(attention_layers) - 1}) if layers is None else list(layers)
    wrong = [str(at) for at in chosen if not 0 <= at < len(attention_layers)]
    if wrong or not attention_layers:
        raise ConfigError(
            f"{source} has {len(attention_layers)} layers, counted from 0; there is no layer {', '.join(wrong)}"
        )
    vectors: dict[int, Vectors] = {}

    def keep(at: int, inputs: tuple[Tensor, ...], options: Mapping[str, Any]) -> None:
        attention = attention_layers[at].attention
        if options.get("bias") is not None:
            raise UnsupportedError(f"{source} adds a bias to the logits; give a network without one")
        q, k, v = (x.double() for x in inputs)
        # a logit is q . k / sqrt(dim) from here on, whatever the network's own scale
        q = q * getattr(attention, "factor", q.shape[3] ** -0.5) * q.shape[3] ** 0.5
        causal = attention.heads.causal and not bidirectional
        vectors[at] = Vectors(source, f"layer {at}", causal, q, k, v)

    hooks = [
        attention_layers[at].attention.register_forward_pre_hook(
            lambda _, inputs, options, at=at: keep(at, inputs, options), with_kwargs=True
        )
        for at in chosen
    ]
    try:
        model.eval()(ids[None])
    finally:
        for hook in hooks:
            hook.remove()
    return [vectors[at] for at in chosen]
