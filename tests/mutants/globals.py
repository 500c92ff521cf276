"""Mutants of patterns with global tokens: pairs counted twice, marks that are lost or come too early."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.sparse import Tokens, View
from regard.attention.sparse.bigbird import Bigbird
from regard.attention.sparse.etc import Etc
from regard.attention.sparse.longformer import Longformer
from regard.core.attention import Attended, Call, merge
from regard.core.bias import ScoreBias
from regard.engines.tiles import masked_attention, tiled_attention
from tests.mutants import mutant


@mutant("reference")
class CountsARandomBlockTwice(Bigbird):
    """Takes the first block as a random one, as published code does in evaluation: it is global already."""

    def _local(self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None) -> tuple[Tensor, Tensor]:
        one = super()._local(q, k, v, view, bias)
        again = self.pattern.mask(view.queries, view.keys) & (view.keys < self.block_size)
        if view.key_mask is not None:
            again = again & view.key_mask[:, None, None, :]
        logits = None if bias is None else bias.logits(view.queries, view.keys)
        return merge([one, masked_attention(q, k, v, again, scale=self.factor, bias=logits)])


@mutant("reference")
class CountsGlobalColumnsTwice(Longformer):
    """Leaves global keys in the window as well."""

    def _local(self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None) -> tuple[Tensor, Tensor]:
        return tiled_attention(
            q,
            k,
            v,
            self.pattern,
            scale=self.factor,
            query_positions=view.queries,
            key_positions=view.keys,
            key_mask=view.key_mask,
            bias=self.near(q, bias),
        )


@mutant("marks")
class LosesMarks(Longformer):
    """Drops the marks."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call._replace(marks=None))


@mutant("marks")
class TakesMarksOfTheFirstRow(Longformer):
    """One row's global tokens for the whole batch."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        marks = None if call.marks is None else call.marks[:1].expand_as(call.marks)
        return super().attend(q, k, v, call._replace(marks=marks))


@mutant("marks_causality")
class SeesLaterGlobalTokens(Longformer):
    """Lets every query see every global token, the later ones too."""

    def column_terms(self, q: Tensor, tokens: Tokens, view: View, bias: ScoreBias | None) -> tuple[Tensor, Any]:  # type: ignore[override]
        _, logits = super().column_terms(q, tokens, view, bias)
        return tokens.real[:, None, None, :], logits


@mutant("marks_state")
class ForgetsMarks(Longformer):
    """Keeps the keys of marked tokens only as long as the window does."""

    def _remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call, Tensor]:
        k, v, grown, keys = super()._remember(k, v, call)
        if grown.state is None:
            return k, v, grown, keys
        content = grown.state.tensors()
        state = grown.state.with_tensors({**content, "marked": torch.zeros_like(content["marked"])})
        return k, v, grown._replace(state=state), keys


@mutant("bias_curve")
class LeavesGlobalTokensUnbiased(Longformer):
    """Adds the bias to the window alone."""

    def column_terms(self, q: Tensor, tokens: Tokens, view: View, bias: ScoreBias | None) -> tuple[Tensor, Any]:
        return super().column_terms(q, tokens, view, None)


@mutant("marks_gradients")
class WeighsPartsByConstants(Longformer):
    """Merges the window and the global tokens as if their shares were constants."""

    def _local(self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None) -> tuple[Tensor, Tensor]:
        values, lse = super()._local(q, k, v, view, bias)
        return values, lse.detach()


@mutant("reference")
class ReadsMembershipBackwards(Etc):
    """Gives the label of the own segment to the others."""

    def _members(self, view: View, tokens: Tokens) -> Tensor:
        return ~super()._members(view, tokens)


@mutant("marks")
class SummarisesEverySegment(Etc):
    """Takes each global token for a member of every segment."""

    def _members(self, view: View, tokens: Tokens) -> Tensor:
        return super()._members(replace(view, marks=None), tokens).new_ones(1).expand(*tokens.at.shape, len(view.keys))
