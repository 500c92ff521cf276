"""Parts of models that are broken on purpose, each with the check of `check_part` that must catch it."""

# Schemes are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.bias import ScoreBias
from regard.core.state import State
from regard.layer import AttentionLayer, LayerOutput
from regard.layer.global_rows import GlobalRows
from regard.models.blocks.gated_unit import GatedUnit
from regard.models.blocks.parallel import Parallel
from regard.models.blocks.residual import Residual
from regard.models.blocks.reversible import Reversible
from regard.models.encoder_decoder import CrossBlock, EncoderDecoder
from regard.position.alibi import Alibi
from regard.position.learned import Learned
from regard.position.rotary import Rotary
from regard.position.sinusoidal import Sinusoidal
from regard.position.t5_bias import T5Bias
from regard.position.transformer_xl import TransformerXl
from regard_lab.tasks.base import IGNORE, Example
from regard_lab.tasks.text import Windows
from tests.mutants import mutant


@mutant("published_logits")
class WrongBucket(T5Bias):
    """Begins each logarithmic bucket one distance late."""

    def bucket(self, relative: Tensor) -> Tensor:
        far = relative.abs() >= self.share // 2
        return super().bucket(relative - relative.sign() * far)


@mutant("published_logits")
class FutureInThePast(T5Bias):
    """Gives the upper buckets to the past."""

    def bucket(self, relative: Tensor) -> Tensor:
        return super().bucket(relative if self.heads.causal else -relative)


@mutant("published_logits")
class RelativeShiftOffByOne(TransformerXl):
    """Gives each pair the sinusoid of the distance beside its own."""

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        return replace(super().bias(q, low + 1, high + 1), high=high)


@mutant("positions_are_added")
class CountsTheTokensOfTheCall(Sinusoidal):
    """Adds the code of a token's number in the call, wherever the token is."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(x, torch.arange(positions.shape[-1]))


@mutant("positions_are_added")
class ScalesWhatItIsAddedTo(Learned):
    """Shrinks the hidden state that the row of the table is added to."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().embed(0.9 * x, positions)


@mutant("columns_are_distances")
class CountsFromZero(Alibi):
    """Makes the columns of the distances from 0 on, whatever was asked for."""

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        return replace(super().bias(q, 0, high - low), high=high)


class _Turned(nn.Module):
    """A projection whose outputs are rotated by their slots."""

    def __init__(self, inner: nn.Module, layer: AttentionLayer) -> None:
        super().__init__()
        self.inner, self.rotary, self.count = inner, Rotary(layer.heads, layer.dim), layer.heads.kv_heads

    def forward(self, x: Tensor) -> Tensor:
        v = self.inner(x).unflatten(-1, (self.count, -1)).transpose(1, 2)
        slots = torch.arange(x.shape[1])
        return self.rotary.transform(v, v, slots, slots)[0].transpose(1, 2).flatten(2)


@mutant("values_know_no_position")
class RotatesValues(AttentionLayer):
    """Rotates queries, keys and values alike, as a survey has it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.projections.value = cast(nn.Linear, _Turned(self.projections.value, self))


class _QueriesOnly(Rotary):
    def transform(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        return super().transform(q, k, query_positions, key_positions)[0], k


@mutant("keys_move_with_queries")
class RotatesQueriesOnly(AttentionLayer):
    """Rotates the queries and leaves the keys."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.position = _QueriesOnly(self.heads, self.dim)


class _AsAllRows(GlobalRows):
    def forward(self, attention: Any, x: Tensor, values: Tensor, **given: Any) -> Tensor:  # type: ignore[override]
        del attention, x, given
        return values


@mutant("global_rows_have_their_own_projections")
class GlobalRowsWithLocalProjections(AttentionLayer):
    """Projects the rows of global tokens as all others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        ordinary = cast(Any, (self.projections.query, self.projections.key, self.projections.value))
        self.projections.global_rows = _AsAllRows(self.attention, *ordinary, separate=False)


@mutant("residual_once")
class ResidualInTheBranch(Residual):
    """Post-norm of x + (x + f(x)): the branch has a residual of its own."""

    def forward(self, x: Tensor, **given: Any) -> LayerOutput:
        if self.place == "pre":
            return super().forward(x, **given)
        got = self.attention(x, **given)
        x = self.attention_norm(x + (x + got.hidden))
        assert self.mlp is not None
        return got._replace(hidden=self.mlp_norm(x + self.mlp(x)))


@mutant("branches_side_by_side")
class NormOfOneBranch(Parallel):
    """Pre-norm for attention alone: the MLP reads the stream as it is."""

    def forward(self, x: Tensor, **given: Any) -> LayerOutput:
        if self.place == "post":
            return super().forward(x, **given)
        got = self.attention(self.attention_norm(x), **given)
        assert self.mlp is not None
        return got._replace(hidden=x + got.hidden + self.mlp(x))


@mutant("gated_branch_once")
class GatedTwice(GatedUnit):
    """The residual connection carries the input twice."""

    def forward(self, x: Tensor, **given: Any) -> LayerOutput:
        got = super().forward(x, **given)
        return got if self.place == "post" else got._replace(hidden=got.hidden + x)


@mutant("streams_by_turns")
class SideBySide(Reversible):
    """The MLP reads the first stream as it was before attention."""

    def second(self, x: Tensor, first: Tensor) -> Tensor:
        return x + self.fed(x)


@mutant("undone_gradients")
class ForgetsTheSecondSlope(Reversible):
    """The stream that attention reads brings back half of its slope."""

    @classmethod
    def stack(cls, calls: Any, x: Tensor) -> Any:
        return super().stack(calls, (x + x.detach()) / 2)


@mutant("skipped_block_remembers")
class RemembersTheStream(Parallel):
    """The keys of a skipped block are of hidden states without their norm."""

    def remember(self, x: Tensor, **given: Any) -> State:
        return self.attention.remember(x, **given)


@mutant("skipped_block_remembers")
class RemembersThePadding(Residual):
    """A skipped block keeps the keys of masked tokens."""

    def remember(self, x: Tensor, *, key_mask: Tensor | None = None, **given: Any) -> State:
        return super().remember(x, key_mask=None, **given)


@mutant("residual_of_each_attention")
class SharedNorm(CrossBlock):
    """Normalises what the source gave with the norm of the attention to itself."""

    def forward(self, x: Tensor, *args: Any, **given: Any) -> Any:
        self.cross_norm = self.attention_norm
        return super().forward(x, *args, **given)


@mutant("decoder_reads_the_past")
class ReadsItsTarget(EncoderDecoder):
    """Does not shift: each position reads the token that it predicts."""

    def shift(self, targets: Tensor) -> Tensor:
        return targets.masked_fill(targets < 0, self.config.start_token)


@mutant("targets_are_next")
class PredictsItsInput(Windows):
    """Targets are the inputs: the loss falls to 0 and nothing is learned."""

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        return example._replace(targets=np.where(example.targets == IGNORE, IGNORE, example.inputs))


@mutant("targets_are_next")
class SkipsOne(Windows):
    """Targets are shifted twice, once by the data and once by the model's own loss."""

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        return example._replace(targets=np.append(example.targets[1:], IGNORE))
