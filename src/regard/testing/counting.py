"""Operations and memory counted without a clock, inside custom operators too."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Count(TorchDispatchMode):
    """Counts what runs inside the `with` block.

    Attributes:
        flops: of matrix products and fused attention.
        produced: numbers written, views excluded.
        peak: most numbers alive at one time in memory that was allocated in the block.
        largest: numbers in the largest single allocation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.produced = self.peak = self.largest = 0
        self._alive: dict[int, int] = {}
        self._total = 0
        # below autograd, where a mode is called, torch.func would not work inside an operator's body
        self._outside = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())

    @property
    def work(self) -> int:
        """Operations and numbers written, as one number."""
        return self.flops + self.produced

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = _kind(func)
        if kind.body is not None:  # a custom operator is one opaque call here: run its body under this mode instead
            with torch._C._ForceDispatchKeyGuard(*self._outside), torch.no_grad(), self:
                return kind.body(*args, **kwargs)
        if kind.composite:
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if kind.flops is not None:
            self.flops += kind.flops(*args, **kwargs, out_val=out)
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.produced += 0 if kind.view else x.numel()
                self._enter(x)
        return out

    def _enter(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key, numbers = storage._cdata, storage.nbytes() // max(x.element_size(), 1)
        if key in self._alive:
            return
        self._alive[key] = numbers
        self._total += numbers
        self.peak, self.largest = max(self.peak, self._total), max(self.largest, numbers)
        weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self._total -= self._alive.pop(key, 0)


@dataclass(frozen=True)
class _Kind:
    """How an operator is counted."""

    body: Callable[..., Any] | None
    composite: bool
    view: bool
    flops: Callable[..., int] | None


@cache
def _kind(func: Any) -> _Kind:
    custom, returned = OPDEFS.get(func._schema.name), func._schema.returns
    flops = flop_registry.get(func._overloadpacket)
    plain = getattr(torch.ops.aten, func._opname.removesuffix("_"), None)
    if func.namespace == "aten" and plain in flop_registry:  # torch's registry has baddbmm, and not baddbmm_
        flops = flop_registry[plain]
    if "scaled_dot_product_flash_attention_for_cpu" in func._schema.name:  # missing in torch's registry
        flops = _fused_backward if "backward" in func._schema.name else _fused
    return _Kind(
        body=None if custom is None else custom._init_fn,
        composite=flops is None and func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd),
        view=func._opname == "_unsafe_view"  # whose schema does not say so
        or (bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)),
        flops=flops,
    )


def _fused(q: Tensor, k: Tensor, v: Tensor, *rest: object, **options: object) -> int:
    return 2 * math.prod(q.shape[:3]) * k.shape[2] * (q.shape[-1] + v.shape[-1])


def _fused_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object, **options: object) -> int:
    return _fused(q, k, v) * 5 // 2


def count(call: Callable[[], object]) -> Count:
    """Run a call and count it."""
    with Count() as counter:
        call()
    return counter
