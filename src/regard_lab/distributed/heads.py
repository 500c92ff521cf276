"""Heads over processes: each computes some heads of every layer and a part of every MLP, of the same examples."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.core.errors import ConfigError, UnsupportedError
from regard.core.head_parts import cut_at, head_part, piece
from regard.core.options import registered_name
from regard.distributed.group import Group
from regard.layer import AttentionLayer, Projections
from regard.models.parts import Mlp
from regard_lab.distributed.several import InSets, merged_scores
from regard_lab.training import checkpoint
from regard_lab.training.checkpoint import Checkpoint, Progress
from regard_lab.training.config import TrainingConfig
from regard_lab.training.evaluation import Scores

Part = TypeVar("Part", bound=nn.Module)


class SharedHeads(InSets):
    """Processes of which `size` side by side each have the weights of some heads and of a part of every MLP.

    All have the rest. x W^q, x W^k, x W^v and the MLP's first products are cut by columns, those with W^o and the MLP's
    last one by rows, whose results are added up; so are gradients of x. A step is that of one process up to rounding.
    Dropout draws the same elements in every process of a set: of attention weights, those of the heads of one process
    are those of another.

    Cost: hidden states are sent four times for each layer and pass, twice forward and twice backward, and those of
    queries, keys and values apart; between sets the gradients of what a process has, once for a step. Every process has
    all the activations between layers.

    Source: Shoeybi et al. 2019, Megatron-LM, section 3.
    """

    option = "--parallel.heads"

    def __init__(self, group: Group, size: int) -> None:
        super().__init__(group, size)
        every = range(group.count)
        self._among = group.among([every[first : first + size] for first in every[::size]])
        self._peers = group.among([every[place::size] for place in range(size)])
        """processes of the other sets with the same heads"""
        self.cuts: dict[str, int] = {}
        """by the names of weights and buffers, the dimension in which this process has a slice"""
        self._weights: list[nn.Parameter] = []
        self._partial: set[nn.Parameter] = set()
        """whole weights of mechanisms, whose gradients are those of this process's heads"""
        self._cut: set[nn.Parameter] = set()

    def require(self, config: TrainingConfig) -> None:
        super().require(config)
        if config.carry and self.sets > 1:
            raise UnsupportedError("training.carry keeps what each row remembers in one set of processes; leave it out")

    def require_model(self, model: nn.Module) -> None:
        layers, mlps = _named(model, AttentionLayer), _named(model, Mlp)
        if not layers:
            raise UnsupportedError("--parallel.heads: this model has no heads; leave it out")
        _require_own(layers)
        for name, layer in layers.items():
            self._require(name, layer)
        for name, mlp in mlps.items():
            if mlp.up.out_features % self.size:
                raise ConfigError(
                    f"--parallel.heads {self.size}: the width {mlp.up.out_features} of {name} does not divide; choose "
                    "another mlp_dim, or other processes"
                )

    def placed(self, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                self.group.exchange(functools.partial(dist.broadcast, tensor, 0))
        self.cuts, self._partial = {}, set()
        for name, layer in _named(model, AttentionLayer).items():
            self._share(name, layer)
        for name, mlp in _named(model, Mlp).items():
            self._columns(f"{name}.", mlp, [each for each in ("gate", "up") if getattr(mlp, each) is not None])
            self._rows(f"{name}.", mlp, "down")
        self._cut = {x for name, x in model.named_parameters() if name in self.cuts}
        self._weights = [x for x in model.parameters() if x.requires_grad]
        return model

    def _require(self, name: str, layer: AttentionLayer) -> None:
        """Refuse a layer whose heads need each other, or are needed together.

        Raises:
            UnsupportedError: by the facts of its mechanism and its parts. ConfigError: heads that do not divide.
        """
        attention, info, scheme = layer.attention, layer.attention.info, layer.position
        learns = scheme is not None and scheme.transforms and any(True for _ in scheme.parameters())
        reasons = {
            "its heads need each other, or their numbers (info.heads_apart)": not info.heads_apart,
            "it has losses, which are of all heads": bool(info.losses),
            "it learns from calls, of all heads": bool(attention.row_sums),
            "its features are drawn again, for all heads; set redraw_interval=None": (
                attention.options.get("redraw_interval") is not None
            ),
            "it takes inputs that all heads share": any(
                isinstance(x.heads, int) for x in attention.raw_inputs.values()
            ),
            "its position scheme has terms for each head": scheme is not None and (scheme.biased or learns),
            "it has a memory": layer.memory is not None,
            "its projections are not the usual ones (projections='all')": type(layer.projections) is not Projections,
        }
        for reason, there in reasons.items():
            if there:
                raise UnsupportedError(
                    f"--parallel.heads: {registered_name(type(attention))} in {name}: {reason}. Leave the option out, "
                    "or choose --parallel.shard"
                )
        head_part(attention, 0, self.size)

    def _share(self, name: str, layer: AttentionLayer) -> None:
        """Leave this process's heads of a layer."""
        whole = layer.attention
        part = head_part(whole, self.place, self.size)
        for key, cut in cut_at(whole, part).items():
            if cut is not None:
                self.cuts[f"{name}.attention.{key}"] = cut
        weights = dict(part.named_parameters())
        self._partial |= {x for key, x in weights.items() if f"{name}.attention.{key}" not in self.cuts}
        layer.attention, layer.heads, layer.projections.heads = part, part.heads, part.heads
        projections = layer.projections
        made = [each for each in ("query", "key", "value") if getattr(projections, each) is not None]
        self._columns(f"{name}.projections.", projections, made)
        self._rows(f"{name}.projections.", projections, "output")
        self._columns(f"{name}.inputs.", layer.inputs, list(layer.inputs))

    def _columns(self, prefix: str, owner: nn.Module, names: Sequence[str]) -> None:
        for name in names:
            whole = owner.get_submodule(name)
            assert isinstance(whole, nn.Linear)
            owner.register_module(name, Columns(whole, self.place, self.size, self._among))
            self.cuts[f"{prefix}{name}.weight"] = 0
            if whole.bias is not None:
                self.cuts[f"{prefix}{name}.bias"] = 0

    def _rows(self, prefix: str, owner: nn.Module, name: str) -> None:
        whole = owner.get_submodule(name)
        assert isinstance(whole, nn.Linear)
        owner.register_module(name, Rows(whole, self.place, self.size, self._among))
        self.cuts[f"{prefix}{name}.weight"] = 1

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[None]:
        del model
        with self.group.watching():
            yield

    def stopped(self, asked: bool) -> bool:
        return bool(self.group.reduced([asked], dist.ReduceOp.MAX, self._among)[0])

    @contextmanager
    def adding(self, last: bool) -> Iterator[None]:
        with self.group.watching():
            yield
            if last:
                self._add_up()

    def _add_up(self) -> None:
        """Gradients: of a set's heads, of what other sets have with the same heads."""
        summed = [x for x in self._weights if self.sets > 1 or x in self._partial]
        there = self.group.reduced([x.grad is not None for x in summed], dist.ReduceOp.MAX)
        for parameter, anywhere in zip(summed, there, strict=True):
            if anywhere:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad, group=None if parameter in self._partial else self._peers)

    def total(self, numbers: Mapping[str, float]) -> dict[str, float]:
        return dict(
            zip(numbers, self.group.reduced(list(numbers.values()), dist.ReduceOp.SUM, self._peers), strict=True)
        )

    def merged(self, scores: Scores | None) -> Scores | None:
        return merged_scores(self.group.gathered(scores)[:: self.size])

    def norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        squares = {True: 0.0, False: 0.0}
        for parameter in parameters:
            if parameter.grad is not None:
                squares[parameter in self._cut] += float(parameter.grad.double().square().sum())
        (others,) = self.group.reduced([squares[True]], dist.ReduceOp.SUM, self._among)
        return torch.tensor((others + squares[False]) ** 0.5, dtype=torch.float64)

    @property
    def draws(self) -> tuple[int, int]:
        return self.number, self.sets

    def save(
        self,
        folder: Path,
        progress: Progress,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        memory: dict[str, Tensor],
        random: dict[str, Tensor],
    ) -> Path | None:
        del device
        weights, means = {}, {}
        if not self.number:
            weights = self._joined(checkpoint.own_tensors(model))
            means = self._joined(checkpoint.optimizer_tensors(model, optimizer))
        with self.together():
            if self.main:
                return checkpoint.write(folder, progress, weights, means, memory, random)
        return None

    def _joined(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors, of the slices of a set, asked for in one order: files are read in another one each time."""
        whole = {}
        for name in sorted(tensors):
            x = tensors[name]
            cut = self._cut_of(name) if x.ndim else None
            if cut is None:
                whole[name] = x
                continue
            pieces = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
            gather = functools.partial(dist.all_gather, pieces, x.detach().contiguous(), group=self._among)
            self.group.exchange(gather)
            whole[name] = torch.cat(pieces, cut)
        return whole

    def _cut_of(self, name: str) -> int | None:
        """Of a weight, or of what the optimizer remembers of it."""
        return self.cuts.get(name.rpartition("/")[0] or name)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Checkpoint) -> None:
        def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:  # the fused optimizer overlooks strides
            cuts = {key: self._cut_of(key) if x.ndim else None for key, x in tensors.items()}
            return {key: self._piece(x, cuts[key]) for key, x in tensors.items()}

        super().restore(model, optimizer, replace(saved, model=own(saved.model), optimizer=own(saved.optimizer)))

    def _piece(self, x: Tensor, cut: int | None) -> Tensor:
        """This process's slice; of what cannot be cut, all, which does not fit the model and is refused as such."""
        fits = cut is not None and cut < x.ndim and x.shape[cut] % self.size == 0
        return piece(x, cut, self.place, self.size).contiguous() if fits else x


def _named(model: nn.Module, kind: type[Part]) -> dict[str, Part]:
    """Modules of a kind by their names."""
    return {name: x for name, x in model.named_modules() if isinstance(x, kind)}


def _require_own(layers: Mapping[str, AttentionLayer]) -> None:
    """Refuse layers that share weights of their mechanisms.

    Raises:
        UnsupportedError: two do.
    """
    owners: dict[nn.Parameter, str] = {}
    for name, layer in layers.items():
        for parameter in layer.attention.parameters():
            if owners.setdefault(parameter, name) != name:
                raise UnsupportedError(
                    f"--parallel.heads: {registered_name(type(layer.attention))} in {name} shares weights with "
                    f"{owners[parameter]}; leave it out, or choose --parallel.shard"
                )


class Columns(nn.Linear):
    """A slice of the outputs of a linear layer, whose inputs all processes have.

    Args:
        whole: the layer.
        rank, count: which slice, of how many.
        among: the processes that have the others.
    """

    def __init__(self, whole: nn.Linear, rank: int, count: int, among: dist.ProcessGroup) -> None:
        super().__init__(whole.in_features, whole.out_features // count, bias=False, device="meta")
        self.weight = _parameter(whole.weight, 0, rank, count)
        self.bias = None if whole.bias is None else _parameter(whole.bias, 0, rank, count)
        self._among = among

    def forward(self, input: Tensor) -> Tensor:
        """Of the inputs, whose gradients are added up."""
        return nn.functional.linear(_Entering.apply(input, self._among), self.weight, self.bias)  # type: ignore[arg-type]


class Rows(nn.Linear):
    """A linear layer of whose inputs every process has a slice; outputs are those of all.

    Args:
        whole: the layer.
        rank, count: which slice, of how many.
        among: the processes that have the others.
    """

    def __init__(self, whole: nn.Linear, rank: int, count: int, among: dist.ProcessGroup) -> None:
        super().__init__(whole.in_features // count, whole.out_features, bias=False, device="meta")
        self.weight = _parameter(whole.weight, 1, rank, count)
        self.bias, self._among = whole.bias, among

    def forward(self, input: Tensor) -> Tensor:
        """Of the slice, added up."""
        whole: Tensor = _Leaving.apply(nn.functional.linear(input, self.weight), self._among)  # type: ignore[assignment]
        return whole if self.bias is None else whole + self.bias


def _parameter(whole: Tensor, cut: int, rank: int, count: int) -> nn.Parameter:
    own = piece(whole.detach(), cut, rank, count).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(own, requires_grad=whole.requires_grad)


class _Entering(torch.autograd.Function):
    """x; its gradient is the sum of those of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, among: dist.ProcessGroup) -> Tensor:
        ctx.among = among
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _summed(slope, ctx.among), None


class _Leaving(torch.autograd.Function):
    """The sum of x of all processes; the gradient of each is that of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, among: dist.ProcessGroup) -> Tensor:
        del ctx
        return _summed(x, among)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        del ctx
        return slope, None


def _summed(x: Tensor, among: dist.ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=among)
    return x
