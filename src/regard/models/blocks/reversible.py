"""The block whose inputs follow from its outputs, so that a stack of them keeps no activations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook  # pyright: ignore[reportPrivateUsage]
from torch.utils.checkpoint import get_device_states, set_device_states

from regard.core.errors import ConfigError, UnsupportedError
from regard.core.randomness import choosing_again, noting
from regard.core.state import State
from regard.core.transforms import forward_mode
from regard.layer import AttentionLayer, LayerOutput
from regard.memory import MemoryState
from regard.models.block_config import BlockConfig
from regard.models.blocks._base import Block
from regard.models.config import ModelConfig
from regard.models.parts import build_norm
from regard.models.recompute import Left


@final
class Reversible(Block):
    """Two streams, y1 = x1 + attention(norm(x2)), y2 = x2 + mlp(norm(y1)), of which x2, then x1 follow by subtraction.

    Both streams begin as the embeddings, and their mean, or both side by side, is what the output layer reads. A stack
    of such blocks keeps its last streams alone: the backward pass computes the streams of each block from those after
    it, and the block once more. Dropout draws the same elements again; routed mechanisms make the same choices
    (buckets, clusters, codes, lists), find their codebooks as the first pass left them, and learn once; `quantized`
    rounds again. With a state, without gradients, compiled or under a transform it is an ordinary stack, which keeps
    its activations; so it is where a block has hooks (of its parts they run in both passes), where modules have global
    ones, and where any block is of another kind, such as one that is compiled by itself.

    Cost: activations of one block, whatever the depth, for the time of one more forward pass; of its MLP only those of
    one of `mlp_chunks` pieces of the sequence; for every block two states of torch's random numbers, 5 KB each on a
    CPU. Lost: digits, since every block rounds the recomputed streams again.

    Raises:
        ConfigError: post-norm, which nothing undoes; no MLP; a part that is to be computed again besides.
        UnsupportedError: positions for every layer; in the backward pass, a weight or an argument that was changed in
            place since, and a second derivative (`create_graph=True`).

    Source: Gomez et al. 2017, section 3; Kitaev, Kaiser, Levskaya 2020 (Reformer), section 3.
    """

    places = ("pre",)

    def __init__(self, config: BlockConfig, attention: AttentionLayer, *, seed: int) -> None:
        wrong = {
            "mlp='none', where the second stream would never change; set an mlp": config.mlp == "none",
            f"checkpoint={config.checkpoint!r}, where nothing is kept; leave it out": config.checkpoint != "none",
        }
        for reason, present in wrong.items():
            if present:
                raise ConfigError(f"block='reversible' has no use for {reason}")
        super().__init__(config, attention, seed=seed)
        self.both_streams = isinstance(config, ModelConfig) and config.both_streams
        self.mlp_norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)

    @classmethod
    def enter(cls, x: Tensor) -> Tensor:
        """Both streams, side by side."""
        return torch.cat([x, x], -1)

    def leave(self, stream: Tensor) -> Tensor:
        """The mean of both, or both as they are."""
        if self.both_streams:
            return stream
        first, second = stream.chunk(2, -1)
        return (first + second) / 2

    @classmethod
    def stack(cls, calls: Sequence[tuple[Block, Mapping[str, Any]]], x: Tensor) -> tuple[Tensor, list[LayerOutput]]:
        """All blocks in order; without states nothing is kept but what the last one gives."""
        plain = torch.compiler.is_compiling() or forward_mode() or not torch.is_grad_enabled()
        if plain or any(given.get("state") is not None for _, given in calls):
            return super().stack(calls, x)
        ours = [(block, given) for block, given in calls if isinstance(block, Reversible) and not _watched(block)]
        if len(ours) < len(calls):
            return super().stack(calls, x)
        passes = [_Pass(block, given) for block, given in ours]
        stream, *losses = _Stack.apply(passes, x, *(weight for one in passes for weight in one.weights))
        rest = iter(losses)
        outputs = [LayerOutput(stream, None, one.memory, {name: next(rest) for name in one.losses}) for one in passes]
        return stream, outputs

    @property
    def called(self) -> bool:
        """No: the backward pass computes it again without a call."""
        return False

    def placed(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """The streams as they are.

        Raises:
            UnsupportedError: positions for every layer.
        """
        del positions
        if self.position is not None:
            raise UnsupportedError("reversible blocks have no positions of their own: leave out per_layer=True")
        return x

    def attended(self, x: Tensor) -> Tensor:
        """norm(x2)."""
        return self.attention_norm(x.chunk(2, -1)[1])

    def fed(self, x: Tensor) -> Tensor:
        """mlp(norm(x)) of some positions, dropped."""
        assert self.mlp is not None
        return self.dropped(self.mlp(self.mlp_norm(x)))

    def second(self, x: Tensor, first: Tensor) -> Tensor:
        """The second stream after the block, from that before it and the first one after it."""
        pieces = zip(*(each.chunk(self.mlp_chunks, 1) for each in (x, first)), strict=True)
        return torch.cat([piece + self.fed(y) for piece, y in pieces], 1)

    def run(self, x: Tensor, *, state: State | None, only: Tensor | None, **given: Any) -> LayerOutput:
        """Both branches, one stream after the other."""
        del only
        output = self.attention(self.attended(x), **given, state=state)
        first, second = x.chunk(2, -1)
        first = first + self.dropped(output.hidden)
        return output._replace(hidden=torch.cat([first, self.second(second, first)], -1))


def _watched(block: nn.Module) -> bool:
    """Whether a call of the block, which a stack that is undone never makes, would run hooks besides."""
    own = (block._forward_hooks, block._forward_pre_hooks, block._backward_hooks, block._backward_pre_hooks)
    return any(own) or bool(_has_any_global_hook())


class _Draws(NamedTuple):
    """torch's random numbers before a branch: the state on the CPU, and those of the branch's device."""

    cpu: Tensor
    devices: list[int]
    states: list[Tensor]


class _Pass:
    """One block in one call, which can be undone.

    Attributes:
        block, given: the block, and the arguments of its attention layer besides hidden states.
        weights: of the block, those that learn.
        losses, memory: the names of auxiliary losses, and what the attention layer remembers.
        draws: before attention and MLP.
        left: the block after the first pass.
        choices: discrete ones of the mechanism.
    """

    losses: tuple[str, ...] = ()
    memory: MemoryState | None = None
    left: Left

    def __init__(self, block: Reversible, given: Mapping[str, Any]) -> None:
        block.placed(torch.empty(0))
        self.block, self.given = block, {name: x for name, x in given.items() if name != "state"}
        self.weights = [weight for weight in block.parameters() if weight.requires_grad]
        self.draws: list[_Draws] = []
        self.choices: list[object] = []

    @contextmanager
    def drawing(self, which: int, x: Tensor) -> Iterator[None]:
        """Within it, this branch draws what it drew in the first pass, whichever module does."""
        if which == len(self.draws):
            self.draws.append(_Draws(torch.get_rng_state(), *get_device_states(x)))
            yield
            return
        cpu, devices, states = self.draws[which]
        kind = "cuda" if x.device.type == "cpu" else x.device.type
        with torch.random.fork_rng(devices=devices, device_type=kind):
            torch.set_rng_state(cpu)
            set_device_states(devices, states, device_type=kind)
            yield

    def attend(self, x: Tensor) -> tuple[Tensor, LayerOutput]:
        """The first branch, of the second stream."""
        with self.drawing(0, x):
            output = self.block.attention(self.block.attention_norm(x), **self.given)
            return self.block.dropped(output.hidden), output

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The streams after the block, and the losses."""
        with noting(self.choices):
            branch, output = self.attend(second)
        self.losses, self.memory = tuple(output.losses), output.memory
        first = first + branch
        with self.drawing(1, first):
            second = self.block.second(second, first)
        self.left = Left(self.block, self.given)
        return first, second, list(output.losses.values())

    def backward(
        self, streams: "Streams", slopes: "Streams", of_losses: Sequence[Tensor]
    ) -> "tuple[Streams, Streams, list[Tensor]]":
        """The streams before the block, and the slopes of streams and weights."""
        first, before, more = streams.first, [], []
        weights = {id(weight): torch.zeros_like(weight) for weight in self.weights}
        with self.drawing(1, first):
            parts = (x.chunk(self.block.mlp_chunks, 1) for x in (first, streams.second, slopes.second))
            for y, piece, slope in zip(*parts, strict=True):
                with torch.enable_grad():
                    leaf = y.detach().requires_grad_()
                    branch = self.block.fed(leaf)
                before.append(piece - branch.detach())
                more.append(self._pull([branch], [slope], leaf, weights))
        second, slope = torch.cat(before, 1), slopes.first + torch.cat(more, 1)
        with choosing_again(self.choices), torch.enable_grad():
            leaf = second.detach().requires_grad_()
            branch, output = self.attend(leaf)
        ends = [branch, *output.losses.values()], [slope, *of_losses]
        slope_second = slopes.second + self._pull(*ends, leaf, weights)
        return Streams(first - branch.detach(), second), Streams(slope, slope_second), list(weights.values())

    def _pull(
        self, ends: Sequence[Tensor], slopes: Sequence[Tensor], leaf: Tensor, weights: dict[int, Tensor]
    ) -> Tensor:
        """The slope of `leaf`; those of the weights are added to `weights`."""
        pairs = [(end, slope) for end, slope in zip(ends, slopes, strict=True) if end.requires_grad]
        ends, slopes = [end for end, _ in pairs], [slope.to(end.dtype) for end, slope in pairs]
        of_leaf, *of_weights = torch.autograd.grad(ends, [leaf, *self.weights], slopes, allow_unused=True)
        for weight, change in zip(self.weights, of_weights, strict=True):
            if change is not None:
                weights[id(weight)] += change
        return torch.zeros_like(leaf) if of_leaf is None else of_leaf


class Streams(NamedTuple):
    """Both streams, or their slopes."""

    first: Tensor
    second: Tensor


class _Stack(torch.autograd.Function):
    """The streams after all blocks, then every auxiliary loss."""

    @staticmethod
    def forward(ctx: Any, passes: list[_Pass], x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        del weights
        streams, losses = x.chunk(2, -1), []
        for one in passes:
            *streams, more = one.forward(*streams)
            losses += more
        stream = torch.cat(streams, -1)
        ctx.passes, ctx.autocast = passes, torch.is_autocast_enabled(x.device.type)
        ctx.autocast_dtype = torch.get_autocast_dtype(x.device.type)
        ctx.save_for_backward(stream)
        return stream, *losses

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            found = _Stack.undo(ctx, *slopes)
        # The slopes depend on the streams even where nothing that came in here does: all refuse to be differentiated.
        again = _Once.apply(*(x.requires_grad_() for x in found)) if torch.is_grad_enabled() else found
        return None, *again

    @staticmethod
    def undo(ctx: Any, slope: Tensor, *of_losses: Tensor) -> tuple[Tensor, ...]:
        """The slopes of what entered, and of the weights."""
        (stream,) = ctx.saved_tensors
        streams, slopes = Streams(*stream.chunk(2, -1)), Streams(*slope.chunk(2, -1))
        end, of_weights = len(of_losses), []
        with torch.autocast(stream.device.type, enabled=ctx.autocast, dtype=ctx.autocast_dtype):
            for one in reversed(ctx.passes):
                start = end - len(one.losses)
                with one.left.again():
                    streams, slopes, weights = one.backward(streams, slopes, of_losses[start:end])
                end, of_weights = start, [*weights, *of_weights]
        return torch.cat(slopes, -1), *of_weights


class _Once(torch.autograd.Function):
    """Slopes that have no derivative."""

    @staticmethod
    def forward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        del ctx
        return tuple(x.view_as(x) for x in slopes)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        del ctx, slopes
        raise UnsupportedError(
            "block='reversible' has a first derivative only (create_graph=True), since it keeps no activations; for "
            "further ones take block='residual'"
        )
