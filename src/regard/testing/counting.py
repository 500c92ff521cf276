"""Operations and memory counted without a clock, inside custom operators too."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
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
        kwargs = dict(kwargs or {})
        custom = OPDEFS.get(func._schema.name)
        if custom is not None:  # a custom operator is one opaque call here: run its body under this mode instead
            with torch._C._ForceDispatchKeyGuard(*self._outside), torch.no_grad(), self:
                return custom._init_fn(*args, **kwargs)
        if func not in flop_registry and func is not torch.ops.prim.device.default:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        outputs = [x for x in (out if isinstance(out, tuple | list) else (out,)) if isinstance(x, Tensor)]
        self.flops += _flops(func, args, kwargs, out)
        if not _is_view(func):
            self.produced += sum(x.numel() for x in outputs)
        for x in outputs:
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


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)


def _flops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    packet = func._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    name = str(packet)
    if "scaled_dot_product_flash_attention_for_cpu" in name:  # missing in torch's registry
        q, k, v = args[1:4] if "backward" in name else args[:3]
        pairs = math.prod(q.shape[:3]) * k.shape[2]
        forward = 2 * pairs * (q.shape[-1] + v.shape[-1])
        return forward * 5 // 2 if "backward" in name else forward
    return 0


def count(call: Callable[[], object]) -> Count:
    """Run a call and count it."""
    with Count() as counter:
        call()
    return counter
