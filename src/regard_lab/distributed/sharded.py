"""Sharded training: every process keeps a share of each weight, and gathers those of a block while it computes."""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from regard.core.errors import UnsupportedError
from regard.distributed.group import Group
from regard.models.apart import blocks_apart
from regard_lab.distributed import shards
from regard_lab.distributed.several import SharedExamples
from regard_lab.training.checkpoint import Checkpoint, Progress
from regard_lab.training.config import TrainingConfig


class Sharded(SharedExamples):
    """Processes of which each keeps 1 / count of the weights, their gradients and what the optimizer remembers of them.

    A block's weights are gathered before its call and given back after it, and again in the backward pass, after which
    its gradients are added up and each process keeps its share; so for the rest of the model as one. Blocks whose
    weights are read elsewhere too (`regard.models.apart`) are part of that rest.

    Cost: what is sent is the weights three times for every part of a step, where replicas send gradients twice for a
    whole step; for an evaluation every process gathers all of the weights.

    Source: Rajbhandari et al. 2020, ZeRO, section 5; Zhao et al. 2023, PyTorch FSDP (torch.distributed.fsdp).
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise UnsupportedError(
                f"--parallel.shard needs torch 2.13 or newer, and this is {torch.__version__}: leave it out"
            )
        self._units: list[FSDPModule] = []
        self._names: dict[nn.Parameter, str] = {}
        self._reached: set[str] = set()
        self._model: nn.Module | None = None

    def require(self, config: TrainingConfig) -> None:
        super().require(config)
        if config.compile:
            raise UnsupportedError("training.compile does not go with --parallel.shard; leave one of them out")

    def require_model(self, model: nn.Module) -> None:
        small = [name for name, x in model.named_parameters() if not x.ndim]
        if small:
            raise UnsupportedError(
                f"--parallel.shard cannot cut {small[0]}, a number without a dimension; give it the shape (1,), or "
                "leave the option out"
            )

    def placed(self, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                self.group.exchange(functools.partial(dist.broadcast, tensor, 0))
        self.count_calls(model)
        with self.group.watching():
            mesh = dist.device_mesh.init_device_mesh(next(model.parameters()).device.type, (self.count,))
            for block in blocks_apart(model):
                fully_shard(block, mesh=mesh, reshard_after_forward=True)
            fully_shard(model, mesh=mesh, reshard_after_forward=False)
        assert isinstance(model, FSDPModule)
        self._model, self._names, self._reached = model, {}, set()
        self._units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        model.set_reduce_scatter_unused_params(True)
        for unit in self._units:  # the objective is already divided by what all processes have
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            unit.register_forward_pre_hook(self._watch)  # type: ignore[attr-defined]
        return model

    def _watch(self, unit: nn.Module, given: object) -> None:
        """Note from now on which of the weights that a call of this unit has gathered get a gradient."""
        del given
        assert self._model is not None
        for name, parameter in self._model.named_parameters() if unit is self._model else self._inside(unit):
            if not isinstance(parameter, DTensor) and parameter.requires_grad and parameter not in self._names:
                self._names[parameter] = name
                parameter.register_post_accumulate_grad_hook(self._reach)

    def _inside(self, unit: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        assert self._model is not None
        prefix = next(name for name, module in self._model.named_modules() if module is unit)
        return unit.named_parameters(prefix)

    def _reach(self, parameter: Tensor) -> None:
        self._reached.add(self._names[parameter])  # type: ignore[index]

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[None]:
        assert isinstance(model, FSDPModule)
        root, *blocks = self._units
        with self.group.watching():
            for unit in self._units:
                unit.unshard()
            model.set_reshard_after_forward(False)
            yield
            for block in blocks:
                block.set_reshard_after_forward(True, recurse=False)
            for unit in (root, *blocks):
                unit.reshard()

    def replicated(self, model: nn.Module) -> Callable[..., Any]:
        return model

    @contextmanager
    def adding(self, last: bool) -> Iterator[None]:
        with self.group.watching(), warnings.catch_warnings():
            # Nothing here changes an output in place, which is what torch warns of.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            yield
            if last:
                self._leave_out()

    def _leave_out(self) -> None:
        """No gradient for weights that got none in any process, as in one process: what was gathered has zeros."""
        assert self._model is not None
        parameters = [(name, x) for name, x in self._model.named_parameters() if x.requires_grad]
        reached = torch.tensor([float(name in self._reached) for name, _ in parameters], device=self.group.device)
        dist.all_reduce(reached, op=dist.ReduceOp.MAX)
        for (_, parameter), there in zip(parameters, reached.tolist(), strict=True):
            if not there:
                parameter.grad = None
        self._reached.clear()

    def norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        own = torch.nn.utils.get_total_norm([_own(x.grad).double() for x in parameters if x.grad is not None])
        (total,) = self.group.reduced([float(own) ** 2], dist.ReduceOp.SUM)
        return torch.tensor(total**0.5, dtype=torch.float64)

    def clip(self, parameters: Sequence[nn.Parameter], most: float, norm: Tensor) -> None:
        factor = min(1.0, most / (float(norm) + 1e-6))
        torch._foreach_mul_([_own(x.grad) for x in parameters if x.grad is not None], factor)

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
        return shards.save(self, folder, progress, model, optimizer, memory, random)

    def read(self, path: Path) -> Checkpoint:
        return shards.read(self, path)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Checkpoint) -> None:
        shards.restore(self, model, optimizer, saved)


def _own(x: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return x.to_local() if isinstance(x, DTensor) else x
