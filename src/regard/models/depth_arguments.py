"""What a call tells the scheme that runs the blocks about its tokens: what to learn from, and how deep to go."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from regard.core.errors import InputError, ShapeError, UnsupportedError, kind_of
from regard.models.config import ModelConfig
from regard.models.depth import Depth, Readout


def arguments(
    depth: Depth,
    config: ModelConfig,
    tokens: Int[Tensor, "batch length"],
    key_mask: Bool[Tensor, "batch length"] | None,
    targets: Int[Tensor, "batch length"] | None,
    depths: Int[Tensor, "batch length"] | None,
    readout: Readout,
) -> Mapping[str, Any]:
    """`targets`, `depths` and `readout` of `Depth.forward`, where the scheme takes them.

    Args:
        depth: the scheme.
        config: of the model.
        tokens, key_mask: that it reads.
        targets: what each position should predict, negative where nothing counts; None: the next token. Only a scheme
            that learns reads them, in training.
        depths: after how many blocks each token leaves; None: the scheme decides.
        readout: of the model.

    Raises:
        ShapeError, InputError: targets or depths of the wrong shape or out of range; no targets, and outputs that are
            no tokens.
        UnsupportedError: depths for a scheme that does not take them.
    """
    given: dict[str, Any] = {"readout": readout} if depth.reads_out else {}
    if depths is not None:
        if not depth.obeys:
            raise UnsupportedError(f"depth={config.depth!r} takes no depths of tokens; use depth='early_exit'")
        _require(depths, tokens, "depths", 1, config.layers)
        given["depths"] = depths
    if depth.learns and depth.training:
        if targets is None:
            if config.targets is not None:
                raise InputError(
                    f"depth={config.depth!r} learns from targets, which are no tokens in this model; give targets"
                )
            targets = next_tokens(tokens, key_mask)
        else:
            _require(targets, tokens, "targets", None, (config.targets or config.vocab_size) - 1)
        given["targets"] = targets
    return given


def next_tokens(
    tokens: Int[Tensor, "batch length"], key_mask: Bool[Tensor, "batch length"] | None
) -> Int[Tensor, "batch length"]:
    """The token after each, -1 where there is no real one.

    Example:
        >>> next_tokens(torch.tensor([[5, 6, 7]]), None).tolist()
        [[6, 7, -1]]
    """
    if key_mask is not None:
        tokens = tokens.masked_fill(~key_mask, -1)
    return F.pad(tokens[:, 1:], (0, 1), value=-1)


def _require(given: Tensor, tokens: Tensor, name: str, low: int | None, high: int) -> None:
    if not isinstance(given, Tensor) or given.shape != tokens.shape or given.dtype != torch.long:
        raise ShapeError(f"{name} must be int64 {tuple(tokens.shape)}, as the tokens, got {kind_of(given)}")
    if torch.compiler.is_compiling() or not given.numel():
        return
    least, most = (int(x) for x in given.aminmax())
    if most > high or (low is not None and least < low):
        wrong = most if most > high else least
        allowed = f"at most {high}" if low is None else f"from {low} to {high}"
        raise InputError(f"{name}: {wrong} is out of range, they are {allowed}")
