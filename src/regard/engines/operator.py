"""Declaration of an operator: one node to a compiler, and so is its backward pass.

An operator is a function of one NamedTuple of arguments, which also gives its schema; it returns a tensor, or a
NamedTuple of tensors. Its backward pass is a function too, of those arguments. Neither sees autograd:

    class Scaled(NamedTuple):
        x: Tensor
        gain: Tensor | None
        power: int

    def forward(a: Scaled) -> Tensor: ...
    def backward(a: Scaled, out: None, of: Tensor, wanted: Wanted) -> tuple[Tensor | None, ...]: ...
    scaled = operator("scaled", forward, backward, fake=lambda a: a.x.new_empty(a.x.shape), wrt=("x", "gain"))
    y = scaled(Scaled(x, None, 2))

`regard::scaled` and `regard::scaled_backward` are what torch knows. Both refuse forward-mode differentiation.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.utils.flop_counter import register_flop_formula

from regard.core.transforms import guarded

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R", bound=Tensor | tuple[Tensor, ...])
Wanted = Mapping[str, Any]
"""For each argument in `wrt` whether its gradient is wanted; for a list of tensors, a list."""


def without_gradient(name: str, *, fake: Callable[..., Any], changes: Sequence[str] = ()) -> Callable[..., Any]:
    """Declare the operator `regard::name`, through which no gradient flows, by a decorator of its body.

    Args:
        name: after `regard::`.
        fake: of the same arguments; unwritten results of the right shapes.
        changes: arguments that it changes in place.
    """

    def declare(body: Callable[..., Any]) -> Any:
        op = torch.library.custom_op(f"regard::{name}", body, mutates_args=changes)
        op.register_fake(fake)
        return op

    return declare


def operator(
    name: str,
    forward: Callable[[A], R],
    backward: Callable[[A, R, R, Wanted], Sequence[Any]],
    *,
    fake: Callable[[A], R],
    wrt: Sequence[str],
    of: Sequence[str] = ("values",),
    keeps: Sequence[str] = (),
    unread: Sequence[str] = (),
    holds: Callable[[A], object] = lambda _: None,
    flops: tuple[Callable[[A], int], Callable[[A], int]] | None = None,
) -> Callable[[A], R]:
    """Declare the operators `regard::name` and `regard::name_backward`, and return the function that calls the first.

    Args:
        name: after `regard::`.
        forward: the body.
        backward: (arguments, outputs, gradients of the outputs, `Wanted`) -> gradients of `wrt`. An output that is not
            kept is None, as is the gradient of one that has none. A gradient may have another dtype than its argument;
            one that is not wanted is ignored.
        fake: unwritten results of the right shapes.
        wrt: arguments that get gradients.
        of: outputs that gradients come from; the others are constants. A single tensor is called `values`.
        keeps: outputs that the backward pass reads.
        unread: tensors that the backward pass does not read: it gets their shapes, not their numbers.
        holds: what must live until the backward pass.
        flops: of both, from arguments that are shapes where they were tensors, for `torch.utils.flop_counter`.
    """
    one = _Declared(forward, backward, fake, wrt, of, keeps, unread, holds)
    returned = Tensor if one.single else tuple[(Tensor,) * len(one.outputs)]  # type: ignore[misc]
    op = _defined(name, one.run, one.inputs, returned, one.run_shapes)
    came = dict.fromkeys((f"of_{n}" for n in of), Tensor | None) | dict.fromkeys((f"kept_{n}" for n in keeps), Tensor)
    read = came | one.inputs | {"wanted": list[bool]}
    backward_op = _defined(f"{name}_backward", one.pull, read, list[Tensor], one.pull_shapes)
    pulled = guarded(backward_op)
    op.register_autograd(lambda ctx, *slopes: one.gradients(pulled, ctx, slopes), setup_context=one.setup)
    if flops is not None:
        ahead, behind = flops
        packet, backward_packet = (getattr(torch.ops.regard, n) for n in (name, f"{name}_backward"))
        register_flop_formula(packet)(lambda *given, **_: ahead(one.takes(*given)))
        register_flop_formula(backward_packet)(lambda *given, **_: behind(one.takes(*given[len(came) : -1])))
    called, gives = guarded(op), one.gives
    return (lambda x: called(*x)) if one.single else (lambda x: gives(*called(*x)))


class _Declared:
    """What torch calls, in terms of what was declared."""

    def __init__(self, forward, backward, fake, wrt, of, keeps, unread, holds) -> None:  # type: ignore[no-untyped-def]
        self.forward, self.backward, self.fake, self.holds = forward, backward, fake, holds
        self.wrt, self.of, self.keeps, self.unread = wrt, of, keeps, unread
        hints = get_type_hints(forward)
        self.gives = hints.pop("return")
        (self.takes,) = hints.values()
        self.inputs = get_type_hints(self.takes)
        self.single = self.gives is Tensor
        self.outputs = ("values",) if self.single else self.gives._fields

    def run(self, *arguments: Any) -> Any:
        made = self.forward(self.takes(*arguments))
        return made if self.single else tuple(made)

    def run_shapes(self, *arguments: Any) -> Any:
        made = self.fake(self.takes(*arguments))
        return made if self.single else tuple(made)

    def pull(self, *arguments: Any) -> list[Tensor]:
        """The gradients that are wanted."""
        slopes, kept, x, wanted = self._parted(arguments)
        each = iter(wanted)
        flags = {n: [next(each) for _ in y] if isinstance(y, list) else next(each) for n, y in self._learning(x)}
        found = self.backward(x, self._bundle(self.keeps, kept), self._bundle(self.of, slopes), flags)
        likes = _flat(y for _, y in self._learning(x))
        return [g.to(y.dtype) for g, y, flag in zip(_flat(found), likes, wanted, strict=True) if flag]

    def pull_shapes(self, *arguments: Any) -> list[Tensor]:
        _, _, x, wanted = self._parted(arguments)
        likes = zip(_flat(y for _, y in self._learning(x)), wanted, strict=True)
        return [torch.empty_like(like, memory_format=torch.contiguous_format) for like, flag in likes if flag]

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, made = self.takes(*inputs), dict(zip(self.outputs, (output,) if self.single else output, strict=True))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(y for n, y in made.items() if n not in self.of))
        given = (_shape_only(y) if n in self.unread else y for n, y in zip(x._fields, x, strict=True))
        tensors: list[Tensor] = []
        ctx.given = [_put(y, tensors) for y in (*(made[n] for n in self.keeps), *given)]
        ctx.held = self.holds(x)
        ctx.save_for_backward(*tensors)

    def gradients(self, pulled: Callable[..., list[Tensor]], ctx: Any, slopes: tuple[Tensor | None, ...]) -> Any:
        """Gradients of all arguments, None where there is none."""
        fields, came = self.takes._fields, dict(zip(self.outputs, slopes, strict=True))
        needs = dict(zip(fields, ctx.needs_input_grad, strict=True))
        wanted = [flag and any(y is not None for y in slopes) for flag in _flat(needs[n] for n in self.wrt)]
        found: Iterator[Tensor] = iter(())
        if any(wanted):
            tensors = ctx.saved_tensors
            found = iter(pulled(*(came[n] for n in self.of), *(_get(y, tensors) for y in ctx.given), wanted))
        each = (next(found) if flag else None for flag in wanted)
        every = {n: [next(each) for _ in needs[n]] if isinstance(needs[n], list) else next(each) for n in self.wrt}
        return tuple(every.get(n) for n in fields)

    def _parted(self, arguments: tuple[Any, ...]) -> tuple[Any, Any, Any, list[bool]]:
        """Gradients of outputs, kept outputs, arguments, and what is wanted, from what the backward operator gets."""
        start, end = len(self.of), len(self.of) + len(self.keeps)
        return arguments[:start], arguments[start:end], self.takes(*arguments[end:-1]), arguments[-1]

    def _learning(self, x: Any) -> Iterator[tuple[str, Any]]:
        return ((n, getattr(x, n)) for n in self.wrt)

    def _bundle(self, names: Sequence[str], tensors: Iterable[Any]) -> Any:
        known = dict(zip(names, tensors, strict=True))
        return known.get("values") if self.single else self.gives(*map(known.get, self.outputs))


def _defined(
    name: str, body: Callable[..., Any], takes: Mapping[str, Any], returns: Any, fake: Callable[..., Any]
) -> CustomOpDef:
    """An operator of a body without a signature."""

    def typed(*arguments: Any) -> Any:
        return body(*arguments)

    order = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=t) for n, t in takes.items()]
    typed.__signature__ = inspect.Signature(order, return_annotation=returns)  # type: ignore[attr-defined]
    op = torch.library.custom_op(f"regard::{name}", typed, mutates_args=())
    op.register_fake(fake)
    return op


def _flat(xs: Iterable[Any]) -> Iterator[Any]:
    """The elements, and those of lists among them."""
    for x in xs:
        yield from x if isinstance(x, list) else (x,)


def _shape_only(x: Tensor | None) -> Tensor | None:
    """A tensor of this shape that stores one number."""
    return None if x is None else x.new_empty(1).expand(x.shape)


class _Place(int):
    """The place of a tensor among those that autograd keeps."""


def _put(x: Any, tensors: list[Tensor]) -> Any:
    """Move tensors, also in lists, to `tensors`, and leave their places."""
    if isinstance(x, list):
        return [_put(y, tensors) for y in x]
    if not isinstance(x, Tensor):
        return x
    tensors.append(x)
    return _Place(len(tensors) - 1)


def _get(x: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(x, list):
        return [_get(y, tensors) for y in x]
    return tensors[x] if isinstance(x, _Place) else x
