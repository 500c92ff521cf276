"""torch's multi-head attention with any mechanism inside, and the attention of existing models replaced by it."""

import fnmatch
import sys
from typing import NamedTuple, cast

from torch import Tensor, nn

from regard.core.attention import Attention, generator
from regard.core.errors import ConfigError, UnsupportedError
from regard.integrations._multihead import MultiheadAttention, forms, keep_forward
from regard.integrations._replacement import Replacement, Request, note_training

__all__ = ["MultiheadAttention", "Replaced", "losses", "replace_attention"]

PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v")


class Replaced(NamedTuple):
    """The places that `replace_attention` replaced: how many, and their names in the module."""

    count: int
    names: tuple[str, ...]


def replace_attention(
    module: nn.Module,
    spec: str,
    *,
    causal: bool | None = None,
    pattern: str = "*",
    dropout: float | None = None,
    max_length: int | None = None,
    seed: int = 0,
) -> Replaced:
    """Replace the attention inside a model by any mechanism, keeping the weights: the very same parameters.

    Every `nn.MultiheadAttention` becomes a `MultiheadAttention` of this module. In Hugging Face models (types llama,
    mistral, qwen2, gpt2, bert, roberta, t5, bart) the projections, positions and caches stay, and the mechanism takes
    the place of the softmax; see `regard.integrations.huggingface`. Either all places are replaced or, if one cannot
    be, none.

    Args:
        module: a model, changed in place.
        spec: the mechanism, such as `local(window=128)`.
        causal: as `MultiheadAttention`. Cross-attention of `nn.TransformerDecoderLayer` never is. A Hugging Face model
            says itself what is causal, so there it is None, or agrees.
        pattern: shell-style pattern on the names of places, such as `*.self_attn`.
        dropout: of the attention weights; None: the model's own, which not every mechanism has.
        max_length: longest sequence, for mechanisms that need to know.
        seed: of the mechanisms' own weights, which differ from place to place.

    Returns:
        Replaced(count, names).

    Raises:
        UnsupportedError: the mechanism cannot serve a place. Nothing was changed.
        ConfigError: nothing to replace, or an unknown mechanism or option.

    Example:
        >>> import torch
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, batch_first=True), 2).eval()
        >>> x = torch.randn(2, 9, 32)
        >>> before = model(x)
        >>> replace_attention(model, "softmax")
        Replaced(count=2, names=('layers.0.self_attn', 'layers.1.self_attn'))
        >>> torch.allclose(model(x), before, atol=1e-5)
        True
    """
    request = Request(spec, max_length, dropout, seed, causal, pattern)
    replacements = [_replacement(module, request)]
    transformers = sys.modules.get("transformers")
    if transformers is not None and any(isinstance(part, transformers.PreTrainedModel) for part in module.modules()):
        from regard.integrations import huggingface

        replacements.append(huggingface.replacement(module, request))
    names = tuple(name for one in replacements for name in one.names)
    if not names:
        raise ConfigError(
            f"{type(module).__name__} holds no attention that can be replaced under pattern={pattern!r}: neither an "
            "nn.MultiheadAttention nor an attention module of a Hugging Face model. If it is itself an "
            "nn.MultiheadAttention, build MultiheadAttention instead"
        )
    for one in replacements:
        one.carry_out()
    mechanism = next(one for one in module.get_submodule(names[0]).modules() if isinstance(one, Attention))
    note_training({spec: mechanism})
    return Replaced(len(names), names)


def _replacement(module: nn.Module, request: Request) -> Replacement:
    """A `MultiheadAttention` for each of torch's."""
    spec, max_length, dropout, seed, causal, pattern = request
    matches: list[tuple[nn.Module, str, str, nn.MultiheadAttention]] = []
    for path, parent in module.named_modules(remove_duplicate=False):
        for child, old in parent.named_children():
            name = f"{path}.{child}" if path else child
            if isinstance(old, nn.MultiheadAttention) and fnmatch.fnmatchcase(name, pattern):
                matches.append((parent, child, name, old))
    new: dict[int, MultiheadAttention] = {}
    for parent, child, name, old in matches:
        if id(old) not in new:
            cross = isinstance(parent, nn.TransformerDecoderLayer) and child == "multihead_attn"
            try:
                new[id(old)] = _like(
                    old,
                    spec,
                    causal=False if cross else causal,
                    dropout=old.dropout if dropout is None else dropout,
                    max_length=max_length,
                    seed=generator(seed, name).initial_seed(),
                )
                form = cast(Attention, next(iter(new[id(old)].attention.values())))
                if cross and not form.info.supports.cross:
                    form.refuse("cross-attention; leave it as it is with pattern='*.self_attn'", "cross")
            except UnsupportedError as error:
                raise UnsupportedError(f"{name}: {error}") from error

    def carry_out() -> None:
        for parent, child, _, old in matches:
            setattr(parent, child, new[id(old)])

    return Replacement(tuple(name for _, _, name, _ in matches), carry_out)


def _like(
    old: nn.MultiheadAttention, spec: str, *, causal: bool | None, dropout: float, max_length: int | None, seed: int
) -> MultiheadAttention:
    """Ours with the parameters of theirs."""
    if type(old) not in (nn.MultiheadAttention, MultiheadAttention):
        raise UnsupportedError(f"{type(old).__name__} has a forward of its own, which would be lost")
    hooks = (old._forward_hooks, old._forward_pre_hooks, old._backward_hooks, old._backward_pre_hooks)
    if any(hook is not keep_forward for kind in hooks for hook in kind.values()):
        raise UnsupportedError("it has hooks, which would be lost: remove them, and add them to the new module")
    # On the meta device its own projections cost nothing and leave the global random state alone.
    new = MultiheadAttention(
        old.embed_dim,
        old.num_heads,
        dropout,
        old.in_proj_bias is not None,
        old.bias_k is not None,
        old.add_zero_attn,
        old.kdim,
        old.vdim,
        old.batch_first,
        "meta",
        spec=spec,
        causal=causal,
        max_length=max_length,
        seed=seed,
    )
    weight = old.out_proj.weight
    new.attention = forms(spec, new.heads, causal).to(device=weight.device, dtype=weight.dtype)
    for name in PARAMETERS:
        setattr(new, name, getattr(old, name))
    new.out_proj = old.out_proj
    return new.train(old.training)


def losses(module: nn.Module) -> dict[str, Tensor]:
    """The auxiliary losses of the last call in training, those of one name added up over the model; unweighted.

    Their default weights are `regard.describe(spec).losses`: objective = task + sum(weight x loss).

    Example:
        >>> import torch
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, batch_first=True), 2)
        >>> _ = replace_attention(model, "vector_quantized(num_codes=8)", dropout=0.0)
        >>> _ = model(torch.randn(2, 9, 32))
        >>> list(losses(model))
        ['commitment']
    """
    total: dict[str, Tensor] = {}
    for part in module.modules():
        values = getattr(part, "losses", None)
        if isinstance(values, dict):
            for name, loss in values.items():
                total[name] = total[name] + loss if name in total else loss
    return total
