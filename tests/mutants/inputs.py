"""Mutants that get declared inputs wrong: bounds, slots, the neutral value, gradients."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.attention import Attended, Call
from regard.core.info import Heads, Input
from tests.mutants import mutant
from tests.mutants.toys import ToyDecay, ToyGated


@mutant("reads")
class IgnoresTheGate(ToyGated):
    """Asks for a gate, and does without."""

    def gates(self, call: Call) -> Tensor:
        return 0 * super().gates(call)


@mutant("causality")
class GateOfTheNextKey(ToyGated):
    """Reads the gate one slot late, so that a query knows the gate of a key to come."""

    def gates(self, call: Call) -> Tensor:
        return super().gates(call).roll(-1, -1)


@mutant("reference")
class GateOfThePreviousKey(ToyGated):
    """Reads the gate one slot early."""

    def gates(self, call: Call) -> Tensor:
        return F.pad(super().gates(call)[..., :-1], (1, 0))


@mutant("reference")
class StrengthOfTheValue(ToyDecay):
    """Writes every channel of a key with the mean of their strengths."""

    def effective(self, call: Call) -> dict[str, Tensor]:
        given = super().effective(call)
        return {**given, "strength": given["strength"].mean(-1, keepdim=True)}


@mutant("state_splits")
class StateForgetsTheGates(ToyGated):
    """Keeps the keys of earlier pieces as if their gates had been open."""

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        k, v, grown = super().remember(k, v, call)
        gates = grown.inputs["log_gate"].clone()
        gates[..., : call.past] = 0
        return k, v, grown._replace(inputs={"log_gate": gates})


@mutant("grouped_heads")
class GateOfTheGroup(ToyGated):
    """Gives all query heads of a group the gate of the first."""

    def gates(self, call: Call) -> Tensor:
        return super().gates(call)[:, :: self.heads.group].repeat_interleave(self.heads.group, 1)


@mutant("masked_content")
class PaddingIsGated(ToyGated):
    """Takes the gates of hidden keys as they come."""

    def _neutral(self, name: str, x: Tensor, hidden: Tensor) -> Tensor:
        del name, hidden
        return x


@mutant("key_mask")
class PaddingDecays(ToyDecay):
    """Declares half a decay as what padding gets, so that hidden slots forget what came before them."""

    default_info = replace(
        ToyDecay.default_info,
        inputs={
            **ToyDecay.default_info.inputs,
            "log_decay": replace(ToyDecay.default_info.inputs["log_decay"], neutral=-0.5),
        },
    )


@mutant("reference_gradients")
class GateWithoutGradient(ToyGated):
    """Detaches the gate."""

    def gates(self, call: Call) -> Tensor:
        return super().gates(call).detach()


@mutant("parameter_gradients")
class ActivatesWithConstants(ToyGated):
    """Holds a weight for its gates, and does not use it."""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"log_gate": F.logsigmoid(raw["log_gate"] + 1.1)}


@mutant("finite_differences")
class GateOfDetachedProjections(ToyGated):
    """Passes no gradient from its gates to the projections they are made of, in algorithm and definition alike."""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return super().activate({name: x.detach() + 0 * x for name, x in raw.items()})


@mutant("input_bounds")
class ActivatesBeyondItsBounds(ToyDecay):
    """Lets a write strength exceed 1."""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {**super().activate(raw), "strength": F.softplus(raw["strength"])}


class _ActivatesFrom(ToyGated):
    """Opens its gates by a function of the raw ones."""

    def raw(self, x: Tensor) -> Tensor:
        return x

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return super().activate({"log_gate": self.raw(raw["log_gate"])})


@mutant("activation")
class ActivatesFromTheSlotBefore(_ActivatesFrom):
    """Shifts the raw gates by a slot."""

    def raw(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :-1], (0, 0, 1, 0))


@mutant("activation")
class ActivatesByLength(_ActivatesFrom):
    """Divides by the number of slots."""

    def raw(self, x: Tensor) -> Tensor:
        return x / x.shape[2]


@mutant("activation")
class ActivatesFromTheBatch(_ActivatesFrom):
    """Subtracts the mean over the rows of the batch."""

    def raw(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


@mutant("activation")
class ActivatesInPlace(_ActivatesFrom):
    """Writes to the raw gates."""

    def raw(self, x: Tensor) -> Tensor:
        return x.mul_(2.0) if not x.requires_grad else 2 * x


@mutant("activation")
class ActivatesAndTakesAway(ToyGated):
    """Removes the raw gates from what it was given."""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return super().activate({"log_gate": dict.pop(cast(dict[str, Tensor], raw), "log_gate")})


@mutant("activation")
class ActivatesByChance(_ActivatesFrom):
    """Adds noise to the raw gates."""

    def raw(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@mutant("activation")
class ActivatesKeysWithQueries(ToyDecay):
    """Makes the strength of a key with the gate of its query, which a memory and a prepared source do not have."""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        beside = raw["gate"][:, :1] if raw["gate"].shape[2] == raw["strength"].shape[2] else 0
        return super().activate({**raw, "strength": raw["strength"] + beside})


@mutant("activation")
class ActivatesNoNan(ToyGated):
    """Spreads a NaN of any head and slot, by a product with 0."""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return super().activate({"log_gate": raw["log_gate"] + 0 * raw["log_gate"].sum()})


@mutant("input_bounds")
class AcceptsAnyNumber(ToyGated):
    """Takes gates above 1 for open ones."""

    def setup(self) -> None:
        super().setup()
        wider = {name: replace(each, high=math.inf) for name, each in self.info.inputs.items()}
        self.info = replace(self.info, inputs=wider)

    def gates(self, call: Call) -> Tensor:
        return super().gates(call).clamp(max=0)


class _AnyCount(int):
    """A number that every number equals."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    __hash__ = int.__hash__


class _AnyHeads(Input):
    def shape(self, heads: Heads) -> tuple[int, int]:
        count, width = super().shape(heads)
        return _AnyCount(count), width


@mutant("input_shapes")
class BroadcastsInputs(ToyGated):
    """Takes one gate for all heads."""

    def setup(self) -> None:
        super().setup()
        loose = {name: _AnyHeads(**vars(each)) for name, each in self.info.inputs.items()}
        self.info = replace(self.info, inputs=loose)

    def gates(self, call: Call) -> Tensor:
        return super().gates(call)[:, : self.heads.count].expand(-1, self.heads.count, -1)


@mutant("state_splits")
class GateOfTheQueryBefore(ToyDecay):
    """Gives each query the output gate of the one before, in algorithm and definition alike."""

    @staticmethod
    def shifted(call: Call) -> Call:
        gate = call.inputs["gate"]
        return call._replace(inputs={**call.inputs, "gate": torch.cat([gate[:, :, :1], gate[:, :, :-1]], 2)})

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, self.shifted(call))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return super().reference(q, k, v, self.shifted(call))


@mutant("facts")
class InputNamedAsAKey(ToyGated):
    """Calls its gate k."""

    default_info = replace(ToyGated.default_info, inputs={"k": ToyGated.default_info.inputs["log_gate"]})
