"""What a trained model decides for itself: how far its heads look, and how many blocks its tokens take."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.core.attention import Attention, registered_name
from regard.head_mix import HeadMix
from regard.layer import AttentionLayer
from regard.models.depth import Depth
from regard.models.depth.fixed import Fixed
from regard.models.depth.universal import Universal
from regard_lab.tasks.base import IGNORE, Task
from regard_lab.training.batches import Batch
from regard_lab.training.evaluation import Sums, score


@runtime_checkable
class Spanned(Protocol):
    """A mechanism whose heads, or tokens, look back as far as they have learned: distances up to z at full weight, none
    from z + `ramp` on or beyond `max_span`."""

    max_span: int
    ramp: int

    def spans(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """z of every head (heads,), or of every token (batch, heads, queries) from the declared inputs."""
        ...

    def kept_slots(self, length: int) -> int:
        """Slots that the state keeps of so many."""
        ...


@dataclass(frozen=True)
class Looker:
    """A mechanism with spans. layer: from 0. first: its first head in that layer, from 0."""

    layer: int
    first: int
    mechanism: Attention

    @property
    def spanned(self) -> Spanned:
        """The same, as what has spans."""
        return cast(Spanned, self.mechanism)

    @property
    def by_token(self) -> bool:
        """Whether a span depends on what is read."""
        return bool(self.mechanism.info.inputs)


@dataclass(frozen=True)
class HeadSpan:
    """z of one head in tokens; of tokens that choose, the mean over tokens, and what a tenth of them stays below and
    above. layer and head: from 0. kept: slots of the keys and values that the state keeps at most.
    """

    layer: int
    head: int
    mechanism: str
    span: float
    low: float
    high: float
    max_span: int
    ramp: int
    kept: int


@dataclass
class Observed:
    """A model on some examples.

    total: nats, tokens, right answers and bytes. taken: targets by the blocks (steps of `universal`) that their token
    took, from 1 on; empty where every token takes all. spans: of every head that has one.
    """

    total: Sums
    taken: list[int] = field(default_factory=list)
    spans: list[HeadSpan] = field(default_factory=list)


def body(model: nn.Module) -> Any:
    """What has the blocks of a model: itself, or its encoder."""
    return model if hasattr(model, "depth") else getattr(model, "encoder", model)


def most_steps(model: nn.Module) -> int | None:
    """The most blocks, or steps of `universal`, that a token may take; None where all tokens take the same."""
    depth = getattr(body(model), "depth", None)
    if not isinstance(depth, Depth) or isinstance(depth, Fixed):
        return None
    if isinstance(depth, Universal):
        return depth.steps if depth.halting else None
    return len(body(model).blocks)


def lookers(model: nn.Module) -> list[Looker]:
    """The mechanisms of a model that have spans, layer by layer and head by head."""
    layers = [module for module in model.modules() if isinstance(module, AttentionLayer)]
    return [
        Looker(at, first, mechanism)
        for at, layer in enumerate(layers)
        for first, mechanism in _parts(layer.attention)
        if isinstance(mechanism, Spanned)
    ]


def _parts(mechanism: Attention) -> Iterator[tuple[int, Attention]]:
    """(first head, mechanism) of the parts of a mix, or the mechanism alone."""
    if isinstance(mechanism, HeadMix):
        yield from ((heads.start, part) for _, part, heads, _ in mechanism.shares())
    else:
        yield 0, mechanism


def learned_spans(model: nn.Module) -> list[HeadSpan]:
    """The spans that follow from the weights alone; those of tokens are `observe`d."""
    return [one for each in lookers(model) if not each.by_token for one in _spans(each, each.spanned.spans({})[None])]


@torch.no_grad()
def _spans(looker: Looker, z: Float[Tensor, "tokens heads"]) -> list[HeadSpan]:
    """Of every head, over the tokens."""
    z, mechanism = z.detach().cpu().double(), looker.spanned
    tenths = torch.quantile(z, torch.tensor([0.1, 0.9], dtype=z.dtype), 0)
    kept = mechanism.kept_slots(2**62)
    name = registered_name(type(looker.mechanism))
    return [
        HeadSpan(
            layer=looker.layer,
            head=looker.first + head,
            mechanism=name,
            span=z[:, head].mean().item(),
            low=tenths[0, head].item(),
            high=tenths[1, head].item(),
            max_span=mechanism.max_span,
            ramp=mechanism.ramp,
            kept=kept,
        )
        for head in range(z.shape[1])
    ]


def observe(model: nn.Module, task: Task, *, limit: int, batch_size: int = 16, split: str = "valid") -> Observed:
    """Score a model on examples of a task, and see what its depth and its spans decide there.

    Decisions are counted where there is a target, or of models with one target for an example at every real position.

    Args:
        model: of any task.
        task: the data.
        limit: as many examples, evenly spaced; 0: all.
        batch_size: examples at a time.
        split: train, valid or test.

    Raises:
        DataError: the split has no target.
    """
    watch = _Watch(model)
    with watch.inside():
        scores = score(
            model,
            task.examples(cast(Any, split)),
            task.vocab_size,
            limit=limit,
            batch_size=batch_size,
            device=next(model.parameters()).device,
            num_targets=task.num_targets,
            each=watch.each,
        )
    assert scores is not None
    spans = [one for each in watch.lookers for one in _spans(each, watch.of(each))]
    return Observed(scores.total, watch.taken(), spans)


class _Watch:
    """Remembers what a depth and mechanisms with spans decide in each call of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.most, self.lookers = model, most_steps(model), lookers(model)
        self._counts = torch.zeros((self.most or 0) + 1, dtype=torch.long)
        self._steps: Tensor | None = None
        self._of_batch: list[list[Tensor]] = [[] for _ in self.lookers]
        self._z: list[list[Tensor]] = [[] for _ in self.lookers]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """With hooks."""
        with ExitStack() as hooks:
            if self.most is not None:
                hooks.callback(body(self.model).depth.register_forward_hook(self._decided).remove)
            for at, looker in enumerate(self.lookers):
                if looker.by_token:
                    hook = partial(self._looked, at)
                    hooks.callback(looker.mechanism.register_forward_pre_hook(hook, with_kwargs=True).remove)
            yield

    def _decided(self, depth: nn.Module, arguments: object, looped: Any) -> None:
        self._steps = looped.steps

    def _looked(self, at: int, mechanism: nn.Module, arguments: object, named: Mapping[str, Any]) -> None:
        self._of_batch[at].append(self.lookers[at].spanned.spans(named["inputs"]).detach().transpose(1, 2))

    def each(self, batch: Batch, logits: Tensor) -> None:
        """Keep what was decided of the targets of a batch."""
        if self._steps is not None:
            steps = self._steps[_counted(batch, self._steps)]
            self._counts += torch.bincount(steps.cpu(), minlength=len(self._counts))
        for kept, found in zip(self._z, self._of_batch, strict=True):
            kept += [z[_counted(batch, z[..., 0])] for z in found]
            found.clear()

    def taken(self) -> list[int]:
        """Targets by the blocks of their tokens, from 1 on."""
        return [] if self.most is None else self._counts[1:].tolist()

    def of(self, looker: Looker) -> Tensor:
        """z (tokens, heads) of what was read."""
        if not looker.by_token:
            return looker.spanned.spans({})[None]
        return torch.cat(self._z[self.lookers.index(looker)])


def _counted(batch: Batch, decided: Tensor) -> Bool[Tensor, "batch length"]:
    """The positions whose decisions count."""
    if batch.targets.shape == decided.shape:
        return batch.targets != IGNORE
    return torch.ones_like(decided, dtype=torch.bool) if batch.key_mask is None else batch.key_mask
