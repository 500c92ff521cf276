"""Laws of memories: what they keep, in which order, for how long, and what reaches them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.core.info import Heads
from regard.layer import AttentionLayer
from regard.memory import Memory, MemoryState
from regard.memory.compressive import Compressive
from regard.memory.memorizing import Memorizing
from regard.memory.recent import Recent
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import here, randn
from regard.testing.registry import check

DIM, HEADS, SEGMENT, LENGTH = 8, 2, 6, 24


def _layer(part: type[Memory], options: Mapping[str, object], spec: str) -> Any:
    """A layer in float64 with the memory, whose weights are off their initial values."""
    memory = part(Heads(count=HEADS, key_dim=DIM // HEADS, causal=True), DIM, **options).to(here())
    with torch.no_grad():
        for name, weight in memory.named_parameters():
            weight.add_(0.3 * randn(*weight.shape, seed=name))
    layer = AttentionLayer(DIM, spec, heads=HEADS, causal=True, memory=memory, position="rotary")
    return layer.to(here()).double().eval()


def _sampled(part: type[Memory], *specs: str) -> Iterator[tuple[Any, str]]:
    """A layer for every option set and mechanism, softmax where none is named, and what to call it."""
    for options in part.samples:
        for spec in specs or ("softmax",):
            name = f"{part.__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"
            yield _layer(part, options, spec), name if spec == "softmax" else f"{name} of {spec}"


def _read(
    layer: Any, x: Tensor, key_mask: Tensor | None = None, memory: MemoryState | None = None
) -> tuple[Tensor, MemoryState]:
    """The outputs of every segment, and the memory after the last."""
    memory = layer.memory.initial_state(len(x), dtype=x.dtype, device=here()) if memory is None else memory
    pieces: list[Tensor] = []
    for first in range(0, x.shape[1], SEGMENT):
        cut = slice(first, first + SEGMENT)
        got = layer(x[:, cut], key_mask=None if key_mask is None else key_mask[:, cut], memory=memory)
        memory, _ = got.memory, pieces.append(got.hidden)
    assert memory is not None
    return torch.cat(pieces, 1), memory


def _input(length: int = LENGTH, seed: str = "text") -> Tensor:
    return randn(2, length, DIM, seed=seed, dtype=torch.float64)


@check(kind=Memory)
def earlier_segments_are_read(part: type[Memory]) -> None:
    """What a segment gives depends on the segment before it, and on none after it."""
    for layer, what in _sampled(part):
        x = _input()
        other = torch.cat([x[:, :SEGMENT], _input(seed="another")[:, SEGMENT : 2 * SEGMENT], x[:, 2 * SEGMENT :]], 1)
        with torch.no_grad():
            one, two = _read(layer, x)[0], _read(layer, other)[0]
        assert_identical(two[:, :SEGMENT], one[:, :SEGMENT], what=f"{what}: a later segment replaced")
        third = slice(2 * SEGMENT, 3 * SEGMENT)
        require(not torch.equal(two[:, third], one[:, third]), f"{what}: the segment before is not read")


@check(kind=Memory)
def no_gradient_reaches_earlier_segments(part: type[Memory]) -> None:
    """The memory is cut from the graph: no gradient of a segment reaches the inputs of an earlier one."""
    for layer, what in _sampled(part):
        x, later = _input().requires_grad_(), _input(SEGMENT, "later").requires_grad_()
        memory = _read(layer.train(), x)[1]
        graph = [name for name, kept in memory.tensors().items() if kept.requires_grad]
        require(not graph, f"{what}: {graph} keep the graph of earlier segments")
        layer(later, memory=memory).hidden.square().sum().backward()
        require(x.grad is None or not x.grad.any(), f"{what}: a gradient reaches what is remembered")
        require(later.grad is not None and bool(later.grad.any()), f"{what}: no gradient reaches the segment itself")


@check(kind=Memory)
def what_is_masked_is_not_remembered(part: type[Memory]) -> None:
    """Masked positions have no influence on later segments, whatever they hold; a segment of them leaves nothing."""
    for layer, what in _sampled(part):
        x, keep = _input(), torch.ones(2, LENGTH, dtype=torch.bool, device=here())
        keep[0, [1, 8, 9]] = keep[1, [0, 10, 11, 12]] = False
        with torch.no_grad():
            wanted = _read(layer, x.masked_fill(~keep[..., None], 0), keep)[0][keep]
            for content in (1e4, float("nan")):
                got = _read(layer, x.masked_fill(~keep[..., None], content), keep)[0][keep]
                assert_identical(got, wanted, what=f"{what}: {content} under the mask")
            keep[1, :SEGMENT] = False
            got, wanted = _read(layer, x, keep)[0][1:, SEGMENT:], _read(layer, x[:, SEGMENT:], keep[:, SEGMENT:])[0][1:]
            assert_close(
                got[keep[1:, SEGMENT:]], wanted[keep[1:, SEGMENT:]], tolerance=1e-12, what=f"{what}: a segment"
            )


@check(kind=Memory)
def forgotten_rows_begin_anew(part: type[Memory]) -> None:
    """Rows whose document ended are as before the first segment, and the others go on as if nothing had happened.

    Of `linear` too, whose scores of rotated queries and keys depend on where they are, and not on distances alone.
    """
    for layer, what in _sampled(part, "softmax", "linear"):
        x, after, rows = _input(), _input(4 * SEGMENT, "after"), torch.tensor([False, True], device=here())
        for masked in (False, True):
            keep = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
            keep[:, 3 : 3 + masked] = False
            with torch.no_grad():
                memory = _read(layer, x, keep if masked else None)[1]
                got = _read(layer, after, memory=layer.memory.forget(memory, rows))[0]
                assert_close(got[:1], _read(layer, after, memory=memory)[0][:1], tolerance=1e-12, what=f"{what}: kept")
                assert_close(got[1:], _read(layer, after)[0][1:], tolerance=1e-12, what=f"{what}: forgotten")


@check(kind=Memory)
def memories_are_bounded(part: type[Memory]) -> None:
    """The bytes of a memory do not depend on how long the text is that was read, beyond what fills it."""
    for layer, what in _sampled(part):
        memory, sizes = layer.memory.initial_state(2, dtype=torch.float64, device=here()), []
        with torch.no_grad():
            for at in range(60):
                memory = layer(_input(SEGMENT, f"segment {at}"), memory=memory).memory
                sizes.append(sum(x.untyped_storage().nbytes() for x in memory.tensors().values()))
        early, late = max(sizes[20:40]), max(sizes[40:])
        require(late <= early, f"{what}: {early} bytes after 40 segments, {late} after 60")
        require(memory.length == 60 * SEGMENT, f"{what}: counts {memory.length} of {60 * SEGMENT} positions")


@check(kind=Memory)
def a_memory_is_a_value(part: type[Memory]) -> None:
    """Writing a segment changes nothing of the memory that it was given."""
    for layer, what in _sampled(part):
        memory = _read(layer, _input(2 * LENGTH))[1]
        before = {name: x.clone() for name, x in memory.tensors().items()}
        with torch.no_grad():
            layer(_input(SEGMENT, "later"), memory=memory)
        for name, x in memory.tensors().items():
            assert_identical(x, before[name], what=f"{what}: {name} after a later segment")


@check(kind=Recent)
def the_recent_past_in_order(part: type[Recent]) -> None:
    """A memory of all of the past is one long sequence; a shorter one leads with the last positions, oldest first."""
    for layer, what in _sampled(part):
        x = _input()
        with torch.no_grad():
            got, memory = _read(layer, x)
            leading, _ = layer.memory.leading(memory)
            wanted = x[:, -layer.memory.length :]
            assert_identical(leading, wanted, what=f"{what}: what leads")
            if layer.memory.length >= LENGTH:
                assert_close(got, layer(x).hidden, tolerance=1e-12, what=f"{what}: one sequence")


@check(kind=Compressive)
def slots_are_blocks_in_order(part: type[Compressive]) -> None:
    """Slots of whole blocks lead, oldest first, then the positions that are in none; of means, by a queue."""
    for options in part.samples:
        layer, x = _layer(part, {**options, "function": "mean"}, "softmax"), _input()
        memory, kept, slots = layer.memory, list[int](), list[Tensor]()
        for at in range(LENGTH):
            kept.append(at)
            while at % SEGMENT == SEGMENT - 1 and len(kept) >= memory.length + memory.rate:
                block, kept = kept[: memory.rate], kept[memory.rate :]
                slots = [*slots, x[:, block].mean(1, keepdim=True)][-memory.compressed :]
        with torch.no_grad():
            leading, _ = memory.leading(_read(layer, x)[1])
        wanted = torch.cat([*slots, x[:, kept]], 1)
        assert_close(leading, wanted, tolerance=1e-12, what=f"{memory.options}: what leads")


@check(kind=Compressive)
def the_loss_trains_the_compression(part: type[Compressive]) -> None:
    """The memory's loss has a gradient for its own weights alone, and the loss of the task has none for them."""
    for loss in ("attention", "auto_encoding"):
        layer = _layer(part, {"length": 4, "compressed": 3, "rate": 2, "loss": loss}, "softmax").train()
        memory = _read(layer, _input())[1]
        later = _input(SEGMENT, "later").requires_grad_()
        got = layer(later, memory=memory)
        (term,) = got.losses.values()
        for end, whose in ((term, "the loss of the memory"), (got.hidden.square().sum(), "that of the task")):
            layer.zero_grad()
            later.grad = None
            end.backward(retain_graph=True)
            ours = whose == "the loss of the memory"
            require((later.grad is None or not later.grad.any()) is ours, f"{whose} ({loss}) and the segment's inputs")
            for name, weight in layer.named_parameters():
                reached = weight.grad is not None and bool(weight.grad.any())
                own = name.startswith("memory.")
                require(reached is (own is ours), f"{loss}: {whose} {'reaches' if reached else 'misses'} {name}")


@check(kind=Memorizing)
def found_by_sorting(part: type[Memorizing]) -> None:
    """A query finds the largest cosines among the last pairs, and a gate mixes their average with the mechanism's."""
    for layer, what in _sampled(part):
        memory, x, later = layer.memory, _input(), _input(SEGMENT, "later")
        with torch.no_grad():
            state = _read(layer, x)[1]
            k, v = layer.projections(x[:, -memory.pairs :])
            q, local = layer.projections.queries(later), randn(2, HEADS, SEGMENT, DIM // HEADS, seed="local").double()
            cosines = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT
            order = cosines.argsort(dim=-1, descending=True)[..., : memory.top]
            seen = torch.zeros_like(cosines, dtype=torch.bool).scatter_(-1, order, True)
            logits = cosines * memory.log_gain.exp()[:, None, None]
            average = logits.masked_fill(~seen, float("-inf")).softmax(-1) @ v
            gate = memory.gates.sigmoid()[:, None, None]
            wanted = gate * average + (1 - gate) * local
            assert_close(memory.read(q, local, state), wanted, tolerance=1e-10, what=f"{what}: {LENGTH} positions")
