"""Transforms of functions: forward mode, `torch.func`, `vmap`, second derivatives; right or refused, never just wrong.

torch refuses most of what is not right itself. The same law then holds for `impl="reference"`, which is plain torch;
but `vmap` refuses that too where it looks at numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, func, nn

from regard.core.attention import Attention
from regard.core.errors import ConfigError, UnsupportedError
from regard.testing.compare import assert_close, require
from regard.testing.inputs import LENGTH, Inputs, Subject, as_queries, call, define, here, mask_with_holes, randn
from regard.testing.registry import check
from regard.testing.streams import start

Leaves = Mapping[str, Tensor]
Function = Callable[..., Tensor]
"""(leaves, key_mask=None) -> the values of a call"""


class _Called(nn.Module):
    """A call of a mechanism as a module, so that its parameters can be arguments.

    Args:
        mechanism: called with raw inputs, which it activates.
        x: what is not replaced.
        decodes: the last token alone, behind a state of the others.
        defines: by the definition.
    """

    def __init__(self, mechanism: Attention, x: Inputs, *, decodes: bool = False, defines: bool = False) -> None:
        super().__init__()
        self.of, self.x, self.decodes, self.defines = mechanism, x, decodes, defines

    def forward(self, tensors: Leaves, key_mask: Tensor | None = None) -> Tensor:
        mechanism, tensors = self.of, dict(tensors)
        if self.x.more:
            tensors.update(mechanism.activate({name: tensors[name] for name in self.x.more}))
        if mechanism.info.shares_query_key:
            tensors["q"] = as_queries(tensors.get("k", self.x.k), mechanism.heads, LENGTH)
        x = self.x.replaced(**tensors)
        if self.defines:
            return define(mechanism, x)
        if not self.decodes:
            return call(mechanism, x, key_mask=key_mask).values
        state = call(mechanism, x.slots(0, LENGTH - 1), state=start(mechanism)).state
        return call(mechanism, x.slots(LENGTH - 1, LENGTH), state=state).values

    def function(self) -> Function:
        """The same of every leaf, parameters included."""
        names = dict(self.of.named_parameters())

        def values(leaves: Leaves, key_mask: Tensor | None = None) -> Tensor:
            weights = {f"of.{name}": leaves[name] for name in names}
            inputs = {name: x for name, x in leaves.items() if name not in names}
            return func.functional_call(self, weights, (inputs, key_mask))

        return values


@dataclass(frozen=True)
class _Case:
    """A call, and everything in it that has a gradient."""

    subject: Subject
    called: _Called
    leaves: Leaves
    where: str

    def right_or_refused(self, law: Callable[[Function], None], *, mapped: bool = False) -> None:
        """The law of the call; if it is refused, by us or by torch, of the same call by the definition.

        Args:
            law: of the values as a function of all leaves.
            mapped: the law needs `torch.func.vmap`, which may refuse the definition too.
        """
        try:
            law(self.called.function())
        except RuntimeError as error:  # UnsupportedError is one
            if isinstance(error, UnsupportedError):
                require(mapped or 'impl="reference"' in str(error), f"refused without a way out: {error}")
            definition = self.definition()
            if definition is None:
                return
            try:
                law(definition)
            except UnsupportedError:
                raise
            except NotImplementedError:  # by torch: a score of the user's may use what it cannot differentiate
                pass
            except RuntimeError:
                if not mapped:
                    raise

    def definition(self) -> Function | None:
        """The call of `impl="reference"`; None under options that it does not have, which are those of training."""
        twin = replace(self.subject, options={**self.subject.options, "impl": "reference"})
        try:
            mechanism = twin.build(self.called.of.heads.causal, dtype=torch.float64)
        except ConfigError:
            require(bool(self.subject.info.losses), 'only options of training may exclude impl="reference"')
            return None
        return _Called(mechanism, self.called.x, decodes=self.called.decodes).function()


def _cases(subject: Subject) -> Iterator[_Case]:
    """Calls with whole sequences, and with a token behind a state."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        x = subject.inputs(mechanism, dtype=torch.float64, margin=True)
        x = x.replaced(**{name: randn(*y.shape, seed=f"raw {name}", dtype=y.dtype) for name, y in x.more.items()})
        read = mechanism.info.reads.replace("q", "k") if mechanism.info.shares_query_key else mechanism.info.reads
        leaves = {name: y for name, y in x.named().items() if name in read or name in x.more}
        leaves.update((name, y.detach()) for name, y in mechanism.named_parameters())
        yield _Case(subject, _Called(mechanism, x), leaves, f"{causal=}")
        if causal and subject.info.supports.state:
            yield _Case(subject, _Called(mechanism, x, decodes=True), leaves, f"{causal=}, decoding")


def _weighed(values: Tensor) -> Tensor:
    """A sum with as good as random weights; `vmap` would refuse to draw some."""
    way = torch.arange(1, values.numel() + 1, dtype=values.dtype, device=here()).square().mul(7.3).sin()
    return (values.flatten() * way).sum()


def _slopes(function: Function, leaves: Leaves, *, twice: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradients of a weighed sum of the values by plain reverse mode, and the leaves that they are of."""
    asked = {name: y.clone().requires_grad_() for name, y in leaves.items()}
    slopes = torch.autograd.grad(
        _weighed(function(asked)), list(asked.values()), create_graph=twice, allow_unused=True, materialize_grads=True
    )
    return dict(zip(asked, slopes, strict=True)), asked


def _directions(leaves: Leaves, seed: str) -> dict[str, Tensor]:
    return {name: randn(*y.shape, seed=f"{seed} {name}", dtype=y.dtype) for name, y in leaves.items()}


def _pairs(leaves: Leaves) -> dict[str, Tensor]:
    """Two versions of each, one behind the other."""
    return {name: torch.stack([leaves[name], leaves[name] + 0.1 * y]) for name, y in _directions(leaves, "two").items()}


def _along(each: Leaves, directions: Leaves) -> Tensor:
    """The sum of the inner products."""
    return torch.stack([(each[name] * y).sum() for name, y in directions.items()]).sum()


@check()
def jvp(subject: Subject) -> None:
    """Forward mode (`torch.func.jvp`) along each input and parameter is what reverse mode says, or refused."""
    for case in _cases(subject):
        wanted, _ = _slopes(case.called.function(), case.leaves)
        for name, along in _directions(case.leaves, "along").items():
            case.right_or_refused(partial(_tangent, case, name, along, wanted[name]))


def _tangent(case: _Case, name: str, along: Tensor, wanted: Tensor, function: Function) -> None:
    answer = func.jvp(lambda y: _weighed(function({**case.leaves, name: y})), (case.leaves[name],), (along,))
    tangent, scale = answer[1], max((wanted.norm() * along.norm()).item() / 30, 1e-3)
    off = (tangent - (wanted * along).sum()).abs().item() / scale
    require(off < 1e-9, f"jvp along {name} is {tangent.item():.9g}, off by {off:.1e} of its size, {case.where}")


@check()
def func_grad(subject: Subject) -> None:
    """`torch.func.grad`, alone, inside and around `vmap`, gives the gradients of plain reverse mode, or is refused."""
    for case in _cases(subject):
        for how in ("grad", "vmap of grad", "grad of vmap"):
            case.right_or_refused(partial(_functional, case, how), mapped="vmap" in how)


def _functional(case: _Case, how: str, function: Function) -> None:
    def total(leaves: Leaves) -> Tensor:
        return _weighed(function(leaves))

    both = _pairs(case.leaves)
    match how:
        case "grad":
            answer = {name: y[None] for name, y in func.grad(total)(case.leaves).items()}
        case "vmap of grad":
            answer = func.vmap(func.grad(total))(both)
        case _:
            answer = func.grad(lambda pairs: func.vmap(total)(pairs).sum())(both)
    plain = [_slopes(function, {name: y[at] for name, y in both.items()})[0] for at in (0, 1)]
    for name, got in answer.items():
        wanted = torch.stack([each[name] for each in plain[: len(got)]])
        assert_close(got, wanted, tolerance=1e-9, what=f"{how} with respect to {name}, {case.where}")


@check()
def vmap(subject: Subject) -> None:
    """`torch.func.vmap` over all arguments, each alone, and masks is one call for each element, or refused."""
    for case in _cases(subject):
        both = _pairs(case.leaves)
        over: list[tuple[Leaves, Tensor | None]] = [(both, None), *(({name: y}, None) for name, y in both.items())]
        if subject.info.supports.key_mask and not case.called.decodes:
            over.append((both, torch.stack([mask_with_holes(2, LENGTH), mask_with_holes(2, LENGTH).flip(0)])))
        with torch.no_grad():
            for apart, masks in over:
                case.right_or_refused(partial(_vectorised, case, apart, masks), mapped=True)


def _vectorised(case: _Case, apart: Leaves, masks: Tensor | None, function: Function) -> None:
    def one(apart: Leaves, key_mask: Tensor | None) -> Tensor:
        return function({**case.leaves, **apart}, key_mask)

    got = func.vmap(one, in_dims=(0, None if masks is None else 0))(apart, masks)
    for at in (0, 1):
        wanted = one({name: y[at] for name, y in apart.items()}, None if masks is None else masks[at])
        what = f"element {at} of vmap over {', '.join(apart)}{'' if masks is None else ' and masks'}, {case.where}"
        assert_close(got[at], wanted, tolerance=1e-10, what=what)


@check()
def double_backward(subject: Subject) -> None:
    """A gradient of a gradient is its slope (straight through: the definition's), or refused in the backward pass."""
    for case in _cases(subject):
        case.right_or_refused(partial(_bends, case))


def _bends(case: _Case, function: Function) -> None:
    step, first, second = 1e-5, _directions(case.leaves, "first"), _directions(case.leaves, "second")
    got = _bend(function, case.leaves, first, second)
    if case.subject.info.straight_through:
        if case.called.decodes:
            return
        defined = _Called(case.called.of, case.called.x, defines=True)
        wanted = _bend(defined.function(), case.leaves, first, second)
    else:
        ends = []
        for side in (1, -1, 2, -2):
            moved = {name: y + side * step * second[name] for name, y in case.leaves.items()}
            ends.append(_along(_slopes(function, moved)[0], first))
        wanted = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
    off = (got - wanted).abs().item() / max(wanted.abs().item(), 1.0)
    require(off < 1e-6, f"the second derivative is {got.item():.9g}, should be {wanted.item():.9g}, {case.where}")


def _bend(function: Function, leaves: Leaves, first: Leaves, second: Leaves) -> Tensor:
    """The second derivative along two directions, by plain reverse mode twice."""
    slopes, asked = _slopes(function, leaves, twice=True)
    total = _along(slopes, first)
    if not total.requires_grad:  # linear in everything, or wrong
        return torch.zeros_like(total)
    bends = torch.autograd.grad(total, list(asked.values()), allow_unused=True, materialize_grads=True)
    return _along(dict(zip(asked, bends, strict=True)), second)
