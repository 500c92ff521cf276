"""Counts what every mechanism costs, without a clock: `python docs/costs.py` records it for the pages."""

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard import Attention, Heads, catalog
from regard_lab.benchmark.cost import Cost, counted

RECORDED = Path(__file__).parent / "recorded" / "costs.json"
LENGTHS = (1024, 4096)
"""tokens at which operations and memory are counted"""
KEPT = (1_000, 65_000)
"""tokens after which the state is measured"""
HEADS, DIM = 2, 64
EXACT = "softmax"


class Skipped(TorchDispatchMode):
    """Operations that are counted of torch's fused kernel and not done: pairs behind a causal diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            q, k = args[:2]
            if given.get("is_causal", args[4] if len(args) > 4 else False):
                length = q.shape[-2]
                self.operations += 4 * q.shape[0] * q.shape[1] * q.shape[-1] * (length * k.shape[-2] - visible(length))
        return func(*args, **given)


def visible(length: int) -> int:
    """Pairs on and before the diagonal."""
    return length * (length + 1) // 2


def write() -> None:
    """Record every mechanism, and exact attention in both forms."""
    exact = {form: cost(EXACT, causal=form == "causal") for form in ("causal", "bidirectional")}
    found = {"exact": exact, "mechanisms": {name: cost(name) for name in catalog.names()}}
    parts = (f'"{key}": {{\n{lines(each)}\n}}' for key, each in found.items())
    RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def lines(found: Mapping[str, Any]) -> str:
    """JSON with a line for each name."""
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())


def recorded(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was counted of a mechanism, and of exact attention in the same form."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    one = found["mechanisms"][name]
    return one, found["exact"]["causal" if one["causal"] else "bidirectional"]


def options(cls: type[Attention]) -> dict[str, object]:
    """None where every option has a default, else those of the first sample."""
    signature = inspect.signature(cls).parameters.values()
    needed = [each for each in signature if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    return dict(cls.samples[0]) if needed else {}


def cost(name: str, lengths: tuple[int, ...] = LENGTHS, *, causal: bool | None = None) -> dict[str, Any]:
    """A forward pass of two heads of width 64, and the bytes of the state; causal=None: where there is such a form.

    `operations`: multiply-adds counted twice, over those of exact attention on the visible pairs alone (4 dim each).
    `written`: numbers written by all operators together, and `peak`, most of them alive at one time, both over the
    numbers of q, k and v.
    """
    cls, _ = catalog.resolve(name)
    given = options(cls)
    causal = cls.describe(given).supports.causal if causal is None else causal
    operations, written, peak = [], [], []
    for length in lengths:
        made, done = spent(cls, given, length, causal=causal)
        pairs = visible(length) if causal else length * length
        operations.append(round(done / (4 * DIM * HEADS * pairs), 3))
        written.append(round(made.elements / (3 * HEADS * length * DIM), 2))
        peak.append(round(made.peak / (3 * HEADS * length * DIM), 2))
    # The bytes follow from the layout, so no weights are drawn for the longest: a matrix of all pairs would fill 34 GB.
    built = cls(Heads(count=HEADS, key_dim=DIM, causal=causal, max_length=min(KEPT)), **given)
    state = [built.state_nbytes(1, each, torch.float32) for each in KEPT] if built.info.supports.state else None
    text = {key: str(value) for key, value in given.items()}
    counts = {"operations": operations, "written": written, "peak": peak}
    return {"options": text, "causal": causal, **counts, "state_bytes": state}


def spent(cls: type[Attention], given: dict[str, object], length: int, *, causal: bool) -> tuple[Cost, int]:
    """What was counted of a call on random input, and the operations that it really did."""
    with Skipped() as skipped:
        made = counted(forward(cls, given, length, causal=causal))
    return made, made.operations - skipped.operations


def forward(cls: type[Attention], given: dict[str, object], length: int, *, causal: bool) -> Any:
    """A call on random input that can be counted."""
    mechanism = cls(Heads(count=HEADS, key_dim=DIM, causal=causal, max_length=length), **given).eval()
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, DIM, generator=draw)
    inputs = {}
    for name, each in mechanism.info.inputs.items():
        count, width = each.shape(mechanism.heads)
        inputs[name] = torch.zeros(1, count, length, width).clamp(each.low, each.high)

    def call() -> None:
        with torch.no_grad():
            mechanism(q, q if mechanism.info.shares_query_key else k, v, inputs=inputs)

    return call


if __name__ == "__main__":
    write()
