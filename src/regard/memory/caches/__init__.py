"""Cache policies by name: what the state of a decoder may drop or round. One file each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from regard import specs

if TYPE_CHECKING:
    from torch import nn

    from regard.core.attention import Attention
    from regard.memory.caches._base import Cache, Eviction

PACKAGE = "regard.memory.caches"

__all__ = ["PACKAGE", "Cache", "Eviction", "build_cache", "cache_class", "compressing", "names"]


_CACHES: "specs.Registry[Cache]" = specs.Registry("cache", PACKAGE)
names, cache_class = _CACHES.names, _CACHES.find


def build_cache(spec: str, attention: "Attention") -> "Cache":
    """Build a policy for the state of a mechanism from a specification such as `h2o(budget=256)`.

    Raises:
        ConfigError: an unknown name or option.
        UnsupportedError: the mechanism keeps no list of slots that the policy could drop from.
    """
    cache = _CACHES.build(spec, attention.heads)
    cache.check(attention)
    return cache


@contextmanager
def compressing(model: "nn.Module") -> Iterator[None]:
    """Within it, every call of the model ends with a compression of its state, under policies that wait to be told so.

    The caller names the point, so that what is kept never depends on the length of a call; nothing later is seen.

    Example:
        >>> import torch
        >>> from regard.models import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(dim=32)).eval()
        >>> model.reduce_cache("snapkv(budget=16, window=8)")
        >>> prompt = torch.arange(40)[None]
        >>> with compressing(model):
        ...     state = model(prompt, state=model.initial_state(1)).state
        >>> model(prompt[:, :1], state=state).state["layers"]["0"]["slots"].kept  # 16, and the new one
        17
    """
    from regard.memory.caches.snapkv import Snapkv

    policies = [module for module in model.modules() if isinstance(module, Snapkv)]
    for policy in policies:
        policy.due = True
    try:
        yield
    finally:
        for policy in policies:
            policy.due = False


def __getattr__(name: str) -> object:
    if name not in ("Cache", "Eviction"):
        raise AttributeError(f"module 'regard.memory.caches' has no attribute {name!r}")
    from regard.memory.caches import _base

    return getattr(_base, name)
