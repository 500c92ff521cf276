"""What the attention mechanisms of a network are called with, seen by hooks while it reads."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.models import Encoder, LanguageModel
from regard.models.generate import evaluation

Readable = LanguageModel | Encoder


@dataclass(frozen=True)
class Watched:
    """A call of the mechanism of a layer, as the layer makes it: positions are in q and k, or in the bias.

    layer: counted from 0. own_rows: some rows are replaced afterwards, by projections of their own for global tokens.
    """

    layer: int
    mechanism: Attention
    q: Float[Tensor, "batch heads length query_dim"]
    k: Float[Tensor, "batch kv_heads length key_dim"]
    bias: ScoreBias | None
    inputs: Mapping[str, Tensor]
    own_rows: bool


@torch.no_grad()
def watch(model: Readable, tokens: Int[Tensor, "batch length"], each: Callable[[Watched], None]) -> None:
    """Let a network read tokens, in evaluation mode, and call `each` before every layer's mechanism.

    `each` may call the mechanism itself. Nothing of a layer is kept once it returns.

    Raises:
        InputError, LimitError: as the network.
    """
    layers, seen, inside, thread = model.layers, list[int](), False, threading.get_ident()

    def look(module: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        nonlocal inside
        if inside or threading.get_ident() != thread:  # `each` asks, or somebody else who reads meanwhile
            return
        layer = layers[len(seen)]
        seen.append(len(seen))
        assert isinstance(module, Attention)
        inside = True
        try:
            each(
                Watched(
                    layer=seen[-1],
                    mechanism=module,
                    q=arguments[0],
                    k=arguments[1],
                    bias=named.get("bias"),
                    inputs=named.get("inputs") or {},
                    own_rows=layer.projections.global_rows is not None,
                )
            )
        finally:
            inside = False

    different = dict.fromkeys(model.mechanisms)  # layers may share one
    hooks = [mechanism.register_forward_pre_hook(look, with_kwargs=True) for mechanism in different]
    try:
        with evaluation(model):
            if isinstance(model, LanguageModel):
                model.hidden(tokens)
            else:
                model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
