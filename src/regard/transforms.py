"""What `torch.func` and forward-mode differentiation make of our operators: right, or refused, never silently zero.

torch runs an operator without a rule for a transform below that transform: under `jvp` its tangents are lost and the
result is 0, under `grad` it fails. So an engine calls its operators by what `transformable` returns. Outside of
transforms that is the operator itself; inside, the same operator as an `autograd.Function`, which has the rules:
reverse mode by the same backward, `vmap` by one call for each element, and an error for derivatives that do not exist.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C import _functorch as interpreters  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from regard.errors import UnsupportedError

Answer = TypeVar("Answer")

WAY_OUT = 'build the mechanism with impl="reference", its definition in plain torch'
KERNEL = "the fused kernel of torch"
NO_SECOND = f"has a first derivative only (create_graph=True, torch.func.hessian); for further ones {WAY_OUT}"


def exporting() -> bool:
    """Whether torch.export writes a call down: read from torch's flag, since inside of torch.compile, torch 2.11's own
    `torch.compiler.is_exporting` says True.
    """
    return torch.compiler._is_exporting_flag  # pyright: ignore[reportPrivateUsage]


class _Served(threading.local):
    """The mechanism that this thread is calling, or whose backward pass it runs, for messages."""

    name = ""

    def label(self, part: str) -> str:
        return f"{self.name}: {part}" if self.name else part


SERVED = _Served()


def transformed() -> bool:
    """Whether a transform of `torch.func` or a level of forward-mode differentiation is open."""
    return forward_ad._current_level >= 0 or _are_functorch_transforms_active()


def higher_order(*tensors: Tensor | None) -> bool:
    """Whether a transform asks for more than one derivative in reverse mode: tangents, or a gradient of a gradient."""
    if forward_ad._current_level >= 0 or torch.compiler.is_compiling():  # a compiler cannot follow the stack
        return True
    stack = interpreters.get_interpreter_stack() or ()
    levels = sum(each.key() == interpreters.TransformType.Grad for each in stack)
    return levels + any(x is not None and plain(x).requires_grad for x in tensors) > 1


def plain(x: Tensor) -> Tensor:
    """The numbers of a tensor without the wrappers of transforms, for a test that must hold for all of them.

    Under `vmap` it has one more axis, at any place.
    """
    return torch.func.debug_unwrap(x)


def require(holds: Bool[Tensor, "..."], message: str) -> None:
    """Raise `UnsupportedError` unless all of this holds; a compiled graph asserts it when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds.all(), message)
    elif not bool(plain(holds.all()).all()):
        raise UnsupportedError(message)


def known_within(x: Tensor, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether every number is known to lie in [low, high]: a shorter way may then be taken. NaN lies nowhere.

    One may look where it is cheap and nothing is traced: on a CPU, outside of compilers and transforms.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or transformed():
        return False
    if not x.numel():
        return True
    x = x.detach() if x.requires_grad else x
    return (low == -math.inf or x.amin().item() >= low) and (high == math.inf or x.amax().item() <= high)


def served(name: str, attend: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call, with the name of the mechanism in front of what is refused, now or in a later backward pass."""
    if torch.compiler.is_compiling():
        return named(name, attend, *arguments) if transformed() else attend(*arguments)
    before, SERVED.name = SERVED.name, name
    try:
        return named(name, attend, *arguments) if transformed() else attend(*arguments)
    finally:
        SERVED.name = before


def named(name: str, attend: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call, with the name of the mechanism in front of what the engines refuse under a transform.

    Raises:
        UnsupportedError: what `attend` refuses, and what torch cannot batch because it looks at numbers.
    """
    try:
        return attend(*arguments)
    except UnsupportedError as error:
        message = str(error)
        raise UnsupportedError(message if message.startswith(name) else f"{name}: {message}") from error
    except RuntimeError as error:
        if not str(error).startswith("vmap:"):
            raise
        raise UnsupportedError(
            f"{name}: its choices look at numbers, which torch.func.vmap cannot: call it for each element, or {WAY_OUT}"
        ) from error


def refuse_twice(values: Tensor) -> None:
    """Refuse a second derivative of torch's fused kernel, whose own error would not say what to do."""
    if torch.compiler.is_compiling():
        return
    node = values.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(functools.partial(_refusing, SERVED.label(KERNEL)))
    elif transformed():  # `vmap` calls the kernel for each element, stacks the answers and reshapes them
        _refuse_behind(plain(values).grad_fn, 3)


def _refuse_behind(node: Any, depth: int) -> None:
    """Refuse a second derivative of the fused kernels in a graph, up to so many nodes before its end."""
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(functools.partial(_refusing, SERVED.label(KERNEL)))
    elif node is not None and depth > 1:
        for before, _ in node.next_functions:
            _refuse_behind(before, depth - 1)


def _refusing(
    label: str, gradients: tuple[Tensor | None, ...], outer: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """The same gradients, which refuse to be differentiated; as they are where nobody could."""
    del outer
    if not torch.is_grad_enabled():
        return None
    return tuple(None if x is None else _Once.apply(x, label) for x in gradients)


class _Once(torch.autograd.Function):
    """A gradient that has no derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, label: str) -> Tensor:
        del label
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.label = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedError(f"{ctx.label} {NO_SECOND}")


def transformable(
    op: Any,
    backward: Callable[..., Any] | None = None,
    *,
    setup_context: Callable[..., None] | None = None,
    chooses: bool = False,
) -> Callable[..., Any]:
    """Give an operator its derivative; returns the function by which it is called, under transforms too.

    Args:
        op: made by `torch.library.custom_op`.
        backward, setup_context: as `register_autograd` takes them; None: what would need a derivative is refused.
        chooses: its answers are choices or noise, whose derivative is 0.

    Returns:
        A function of the operator's arguments, by position. It raises UnsupportedError for a derivative in forward
        mode, and for one that the operator does not have.
    """
    label = f"the operator {op._qualname}"
    if backward is None:
        backward = functools.partial(_refuse_reverse, label.removesuffix("_backward"))
    remember, pull = _named_pair(backward, setup_context)
    if not chooses:
        op.register_autograd(pull, setup_context=remember)
    function = _function(op, label, pull, remember)

    def call(*arguments: Any) -> Any:
        if not transformed():
            return op(*arguments)
        if torch.compiler.is_compiling():
            raise UnsupportedError(f"{label} is not compiled inside a transform of torch.func: transform eagerly")
        if chooses:
            arguments = tuple(x.detach() if isinstance(x, Tensor) else x for x in arguments)
        layout = tuple(len(x) if isinstance(x, list) else None for x in arguments)
        return function.apply(layout, *_flat(arguments))

    return call


def _named_pair(
    backward: Callable[..., Any], setup_context: Callable[..., None] | None
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """`setup_context` and `backward`; the second runs under the name of the mechanism that called the first."""

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.of = SERVED.name
        if setup_context is not None:
            setup_context(ctx=ctx, inputs=inputs, output=output)

    def pull(ctx: Any, *gradients: Any) -> Any:
        before, SERVED.name = SERVED.name, ctx.of
        try:
            return backward(ctx, *gradients)
        finally:
            SERVED.name = before

    return remember, pull


def _function(
    op: Any, label: str, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> type[torch.autograd.Function]:
    """The operator with rules for transforms. Lists of tensors are spread out; the first argument says how."""
    answers = op._opoverload._schema.returns
    lists = len(answers) == 1 and isinstance(answers[0].type, torch.ListType)

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(layout: tuple[int | None, ...], *flat: Any) -> Any:
            out = op(*_grouped(layout, flat))
            return tuple(out) if lists else out

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.layout = inputs[0]
            setup_context(ctx=ctx, inputs=tuple(_grouped(inputs[0], inputs[1:])), output=output)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ctx.needs_input_grad = tuple(_grouped(ctx.layout, ctx.needs_input_grad[1:]))
            return None, *_flat(backward(ctx, list(gradients)) if lists else backward(ctx, *gradients))

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise UnsupportedError(
                f"{label} has no derivative in forward mode (torch.func.jvp, jacfwd, torch.autograd.forward_ad); "
                f"reverse mode has one (torch.func.vjp, jacrev), or {WAY_OUT}"
            )

        @staticmethod
        def vmap(info: Any, in_dims: Sequence[int | None], layout: tuple[int | None, ...], *flat: Any) -> Any:
            each = [
                Transformed.apply(
                    layout, *(x if at is None else x.select(at, i) for x, at in zip(flat, in_dims[1:], strict=True))
                )
                for i in range(info.batch_size)
            ]
            if isinstance(each[0], Tensor):
                return torch.stack(each), 0
            return tuple(torch.stack(x) for x in zip(*each, strict=True)), (0,) * len(each[0])

    return Transformed


def _refuse_reverse(label: str, ctx: Any, *gradients: Any) -> Any:
    del ctx, gradients
    raise UnsupportedError(f"{SERVED.label(label)} {NO_SECOND}")


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with lists spread out."""
    return [x for each in arguments for x in (each if isinstance(each, list) else (each,))]


def _grouped(layout: Sequence[int | None], flat: Sequence[Any]) -> list[Any]:
    """What `_flat` spread out."""
    rest = iter(flat)
    return [next(rest) if count is None else [next(rest) for _ in range(count)] for count in layout]
