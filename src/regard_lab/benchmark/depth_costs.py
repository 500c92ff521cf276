"""What a token costs by the blocks that it takes, counted without a clock; and which of several is dominated."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from regard.models import LanguageModel
from regard.models.depth.early_exit import PLANNED
from regard.models.depth.universal import Universal
from regard_lab.benchmark.cost import counted
from regard_lab.benchmark.decisions import body, most_steps
from regard_lab.training.batches import Batch

Decides = Callable[..., Tensor]


@contextmanager
def leaving_after(model: nn.Module, blocks: int, *, asks: bool = False) -> Iterator[None]:
    """Every token takes so many blocks inside (steps of `universal`), but for first ones that take all (`whole`).

    Args:
        model: with a depth that decides.
        blocks: from 1 to `most_steps`.
        asks: compute what decides all the same, so that its operations are counted; else nothing is asked.
    """
    depth: Any = body(model).depth
    planned = getattr(depth, "confidence", None) in PLANNED
    universal = isinstance(body(model).depth, Universal)
    name = "odds" if universal else "plan" if planned else "sureness"
    own: Decides = getattr(depth, name)
    yes, no = (1.0, 0.0) if universal else (2.0, -1.0)
    asked = count(1)

    def begin(module: nn.Module, arguments: object) -> None:
        nonlocal asked
        asked = count(1)

    def decided(read: Tensor, *arguments: object, **named: object) -> Tensor:
        if asks:
            own(read, *arguments, **named)
        if planned:
            return torch.full(read.shape[:2], blocks, device=read.device)
        leaves = next(asked) == blocks
        return read.new_full(read.shape[:2], yes if leaves else no, dtype=torch.float32)

    threshold, of_blocks = getattr(depth, "threshold", None), getattr(depth, "thresholds", ())
    hook = depth.register_forward_pre_hook(begin)
    try:
        setattr(depth, name, decided)
        if threshold is not None:
            depth.threshold = 0.5  # at 1 no token is asked
        if of_blocks:
            depth.thresholds = ()
        yield
    finally:
        hook.remove()
        delattr(depth, name)
        if threshold is not None:
            depth.threshold = threshold
        if of_blocks:
            depth.thresholds = of_blocks


def token_operations(model: nn.Module, example: Batch) -> tuple[list[int], list[int]]:
    """Floating-point operations (multiply-adds counted twice, of matrix products) of one token, by its blocks.

    Of a decoder with a state: of one more token behind the first half of the example, as when it generates. Else of the
    whole example, divided by its positions.

    Args:
        model: in evaluation mode.
        example: a batch of one.

    Returns:
        Of a token that takes 1, 2, ... blocks: with what decides about them, and without. Of a model whose tokens all
        take the same number, one entry, twice the same.
    """
    most = most_steps(model)
    if most is None:
        only = _operations(model, example)
        return [only], [only]
    costs: tuple[list[int], list[int]] = ([], [])
    for asks, found in zip((True, False), costs, strict=True):
        for blocks in range(1, most + 1):
            with leaving_after(model, blocks, asks=asks):
                found.append(_operations(model, example))
    return costs


@torch.no_grad()
def _operations(model: nn.Module, example: Batch) -> int:
    if not isinstance(model, LanguageModel) or not model.streams:
        return round(counted(lambda: example.through(model)).operations / example.positions)
    tokens: Tensor = example.inputs
    place = tokens.shape[1] // 2
    before = model(tokens[:, :place], state=model.initial_state(1)).state
    return counted(lambda: model(tokens[:, place : place + 1], state=before)).operations


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of those (cost, loss) that no other one beats in one without being worse in the other; by cost.

    Equal ones beat nothing: all of them are there, or none.

    Example:
        >>> pareto([(3.0, 1.0), (1.0, 2.0), (2.0, 2.0), (4.0, 1.0)])
        [1, 0]
    """
    kept: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: points[at]):
        if not kept or points[at][1] < points[kept[-1]][1] or points[at] == points[kept[-1]]:
            kept.append(at)
    return kept
