"""Hugging Face models with any mechanism in the place of their softmax.

transformers looks up an attention function by the name in a model's configuration, and a mask function by the same
name. Both are registered here as `regard`. Without a mask function of its own, a registered attention function is given
no mask at all: a causal model then sees the future, and padding counts. Ours keeps padding as one row per sample, and
causality a fact of the place, so that nothing of queries x keys is made.
"""

# transformers is no dependency and is imported when it is needed: whoever has such a model has it.
# pyright: reportMissingImports=false

import fnmatch
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard import specs
from regard.catalog import build, refuse_inputs
from regard.core.attention import Attention, generator
from regard.core.bias import ScoreBias
from regard.core.errors import CheckpointError, ConfigError, UnsupportedError
from regard.core.info import Heads
from regard.files import consent
from regard.integrations import _replaced, architectures
from regard.integrations import folder as _folder
from regard.integrations._masks import STATIC_CACHE_REFUSED, key_mask_and_table
from regard.integrations._multihead import effective_weights
from regard.integrations._replacement import Replacement, Request
from regard.integrations.architectures import AttentionModule

NAME = "regard"
LEFT = "regard_left"
"""attribute of every attention module of a model that was replaced; without it a module was loaded, not replaced"""


class Place(nn.Module):
    """The mechanism of one attention module, which holds it under the name `regard`.

    Args:
        mechanism: built for the module's heads.
        spec: what it was built from.
        cross: it reads another sequence.
    """

    losses: dict[str, Tensor]
    """auxiliary losses of the last call in training; see `regard.integrations.torch.losses`"""

    def __init__(self, mechanism: Attention, *, spec: str, cross: bool) -> None:
        super().__init__()
        self.mechanism, self.spec, self.cross = mechanism, spec, cross
        self.losses = {}


def replacement(module: nn.Module, request: Request) -> Replacement:
    """The mechanisms for the attention modules of every Hugging Face model in `module`.

    Positions that the pattern leaves out keep their softmax, computed by torch's `scaled_dot_product_attention`.

    Raises:
        UnsupportedError: a model of another type, or a place that the mechanism cannot serve.
        ConfigError: `causal` says something else than the model.
    """
    from transformers import PreTrainedModel

    replacements: list[tuple[Any, str, nn.Module, Place]] = []
    roots: list[str] = []
    served = {one.name: one.modules for one in architectures.every() if one.modules}
    for path, part in module.named_modules():
        if not isinstance(part, PreTrainedModel) or any(path.startswith(root) for root in roots):
            continue
        roots.append(f"{path}." if path else "")
        model = cast(Any, part)
        kind = model.config.model_type
        parts = _parts(model, path, request.pattern, served=kind in served)
        if parts and (kind not in served or not type(model)._can_set_attn_implementation()):
            raise UnsupportedError(
                f"{f'{path}: ' if path else ''}{type(model).__name__} ({kind}) is a Hugging Face model of a type that "
                f"is not served; these are: {', '.join(served)}"
            )
        for name, inner in parts:
            own = request._replace(seed=generator(request.seed, name).initial_seed())
            place = _place(inner, name, own, served[kind])
            replacements.append((model, name, inner, place))

    def carry_out() -> None:
        register()
        for model in {id(model): model for model, *_ in replacements}.values():
            model.set_attn_implementation(NAME)
            for _, part in _parts(model, "", "*"):
                setattr(part, LEFT, True)
        for _, _, part, place in replacements:
            setattr(part, NAME, place.train(part.training))
        for model in {id(model): model for model, *_ in replacements}.values():
            _note(model)

    return Replacement(tuple(name for _, name, _, _ in replacements), carry_out)


def _note(model: Any) -> None:
    """Write into a model's configuration what its places are, and that transformers alone cannot load it.

    transformers refuses a folder whose `attn_implementation` it does not know; without it, it would load softmax.
    """
    named = {name: getattr(part, NAME, None) for name, part in _parts(model, "", "*")}
    model.config.attn_implementation = NAME
    places = {name: cast(Place, place) for name, place in named.items() if place is not None}
    kept = {name: place.mechanism.heads for name, place in places.items()}
    setattr(
        model.config,
        _folder.REPLACED,
        {
            name: {"spec": place.spec, **{key: getattr(kept[name], key) for key in ("max_length", "dropout", "seed")}}
            for name, place in places.items()
        },
    )


def load_replaced(kind: Any, folder: str | Path, *, trust: bool = False) -> Any:
    """A Hugging Face model that `save_pretrained` wrote after `replace_attention`, with its mechanisms.

    transformers' own `from_pretrained` refuses such a folder, or, once regard has been told to it, loads a model that
    refuses to run.

    Args:
        kind: a class of transformers with `from_pretrained`, such as `AutoModelForCausalLM`.
        folder: what was written; nothing is downloaded.
        trust: as `regard.load`.

    Returns:
        The model, in evaluation mode.

    Raises:
        ConfigError: a folder without such attention, or an import path that is not trusted.
        CheckpointError: a setting or a weight of a mechanism is damaged or missing.
        Others: as `replace_attention`.

    Example:
        >>> load_replaced(transformers.AutoModelForCausalLM, "my/folder")  # doctest: +SKIP
    """
    folder = Path(folder)
    saved = _replaced.settings(folder)
    consent.require(specs.paths([built.spec for built in saved.values()]), str(folder), trust=trust)
    stored = _folder.read_tensors(folder)
    register()
    model = _replaced.plain(kind, folder)
    parts = dict(_parts(model, "", "*"))
    architecture = architectures.by_name(model.config.model_type, str(folder))
    absent = sorted(saved.keys() - parts.keys())
    if absent:
        raise CheckpointError(
            f"{folder / _folder.CONFIG}: {_folder.REPLACED} names {', '.join(absent)}, which the model has not"
        )
    for part in parts.values():
        setattr(part, LEFT, True)
    for name, built in saved.items():
        place = _place(parts[name], name, built, architecture.modules)
        setattr(parts[name], NAME, place.eval())
    _note(model)
    _replaced.fill(model, stored, folder, f".{NAME}.", architecture)
    return model


def _parts(model: nn.Module, path: str, pattern: str, *, served: bool = True) -> list[tuple[str, nn.Module]]:
    """The attention modules of a model under a pattern, with their full names; torch's own are not among them."""
    named = [(f"{path}.{name}" if path else name, part) for name, part in model.named_modules()]
    return [
        (name, part)
        for name, part in named
        if fnmatch.fnmatchcase(name, pattern)
        and type(part).__name__.endswith("Attention")
        and (hasattr(part, "scaling") or not (served or isinstance(part, nn.MultiheadAttention)))
    ]


def _place(part: Any, name: str, request: Request, kinds: Mapping[str, AttentionModule]) -> Place:
    spec, max_length, dropout, seed, causal, _ = request
    kind = kinds.get(type(part).__name__)
    if kind is None:
        raise UnsupportedError(f"{name}: {type(part).__name__} is not served; these are: {', '.join(kinds)}")
    window = getattr(part, "sliding_window", getattr(part.config, "sliding_window", None))
    if window is not None:
        raise UnsupportedError(
            f"{name}: the model has a window of its own, sliding_window={window}, which would hide keys from any "
            f"mechanism: set sliding_window=None in its configuration before it is built; local(window={window - 1}) "
            "is then what it was"
        )
    widths, cross = kind.widths(part), kind.cross(part)
    is_causal = bool(part.is_causal and getattr(part.config, "is_causal", True))
    if causal is not None and not cross and causal != is_causal:
        raise ConfigError(
            f"{name}: the model is {'' if is_causal else 'not '}causal here, got {causal=}: leave it None, or choose "
            "places with pattern"
        )
    heads = Heads(
        count=widths.count,
        kv_count=None if widths.kv_count == widths.count else widths.kv_count,
        key_dim=widths.key_dim,
        causal=is_causal,
        max_length=max_length,
        dropout=_own_dropout(part) if dropout is None else dropout,
        seed=seed,
    )
    try:
        mechanism = build(spec, heads)
        refuse_inputs(mechanism.info, spec, "Hugging Face's attention")
        if mechanism.info.shares_query_key:
            mechanism.refuse("keys of a projection of their own, which caches keep", "cross")
        if cross and not mechanism.info.supports.cross:
            mechanism.refuse("cross-attention; leave it out with pattern", "cross")
        if kind.biased and not cross and not mechanism.info.supports.bias:
            network = type(part).__name__.removesuffix("Attention")
            mechanism.refuse(f"a bias on the logits, which is how {network} knows positions", "bias")
    except UnsupportedError as error:
        hint = f" (dropout={heads.dropout} is the model's own; dropout=0.0 does without)" if heads.dropout else ""
        raise UnsupportedError(f"{name}: {error}{hint}") from error
    weight = next(part.parameters())
    return Place(mechanism.to(device=weight.device, dtype=weight.dtype), spec=spec, cross=cross)


def _own_dropout(part: Any) -> float:
    """The probability of dropping an attention weight: a number or a module, under one of three names."""
    named = (getattr(part, name, None) for name in ("attention_dropout", "attn_dropout", "dropout"))
    dropout: Any = next(x for x in named if x is not None)
    return float(dropout.p if isinstance(dropout, nn.Dropout) else dropout)


def _collects_weights() -> bool:
    """Whether this call of a model returns attention weights: models keep `output_attentions` to themselves."""
    from transformers.utils.output_capturing import _active_collector

    return any("attentions" in kind for kind in _active_collector.get() or ())


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **further: object,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls: (batch, heads, length, dim) in, (batch, length, heads, dim) out.

    Queries arrive with the model's own scale (1 in T5), which is kept: they are multiplied so that a mechanism's
    1/sqrt(dim) gives it.

    Raises:
        UnsupportedError: a request that the mechanism does not support, or an argument that would change the result.
    """
    place = getattr(module, NAME, None)
    if place is None:
        if not hasattr(module, LEFT):
            raise UnsupportedError(
                "this model was saved with attention of regard in it, and loaded without: load it with "
                "regard.integrations.huggingface.load_replaced"
            )
        options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, "position_bias": position_bias}
        return _softmax(module, query, key, value, attention_mask, options)
    place, form = cast(Place, place), cast(Attention, place.mechanism)
    for name in ("softcap", "sliding_window", "s_aux", "cache"):
        if further.get(name) is not None:
            raise UnsupportedError(f"{form.info.title} in a Hugging Face model does not support {name}")
    if is_causal is not None and is_causal != form.heads.causal:
        raise UnsupportedError(f"this place was built with causal={form.heads.causal}, and this call has {is_causal=}")
    dim = query.shape[-1]
    if scaling is not None and scaling != dim**-0.5:
        query = query * (scaling * dim**0.5)
    key_mask, table = key_mask_and_table(attention_mask, form, query, key, further)
    if position_bias is not None and not place.cross:  # where T5 reads another sequence its bias is zeros
        added = position_bias.to(query.dtype)
        if table is not None and table.dtype == torch.bool:
            table = torch.zeros(table.shape, dtype=added.dtype, device=added.device).masked_fill(~table, float("-inf"))
        table = added if table is None else added + table
    bias = None if table is None else ScoreBias(table=table)
    seen = None
    if _collects_weights():
        seen = effective_weights(form, query, key, key_mask, bias, "output_attentions=False")
    got = form(query, key, value, key_mask=key_mask, bias=bias)
    place.losses = got.losses
    return got.values.transpose(1, 2).contiguous(), seen


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **further: object,
) -> Tensor | None:
    """The mask function that transformers calls: (batch, 1, 1, keys) of padding, True = keep; None without padding.

    Causality is not in it: the place knows. Other patterns (packed sequences, a user's own functions) are (batch, 1,
    queries, keys).

    Raises:
        UnsupportedError: a cache whose last slot is not the last position.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

    del further
    ends = q_offset + q_length
    if isinstance(ends, Tensor) or kv_offset or (mask_function is causal_mask_function and kv_length != ends):
        raise UnsupportedError(STATIC_CACHE_REFUSED)
    padding = attention_mask
    if padding is not None and padding.shape[1] < kv_length:
        padding = nn.functional.pad(padding, (0, kv_length - padding.shape[1]))  # as transformers: what is not said
    if mask_function in (causal_mask_function, bidirectional_mask_function):
        if padding is None or (not torch.compiler.is_compiling() and bool(padding.all())):
            return None
        return padding[:, None, None, :kv_length].to(torch.bool)
    return sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function,
        padding,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )


def _softmax(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, further: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """The softmax of a place that was left as it is."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    queries, keys = query.shape[2], key.shape[2]
    padding = attention_mask is not None and attention_mask.shape[2] == 1
    if (
        bool(getattr(module, "is_causal", False))
        and queries > 1
        and (padding or (attention_mask is None and keys != queries))
    ):
        seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)[None, None]
        attention_mask = seen if attention_mask is None else attention_mask & seen
    return sdpa_attention_forward(module, query, key, value, attention_mask, **further)


def register() -> None:
    """Tell transformers of both functions; a second time changes nothing."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)
