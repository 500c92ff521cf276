"""Mutants of patterns with global tokens: pairs counted twice, marks that are lost or come too early."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.sparse import Tokens, View
from regard.attention.sparse.etc import Etc
from regard.attention.sparse.longformer import Longformer
from regard.core.attention import Attended, Call
from regard.core.bias import ScoreBias
from tests.mutants import mutant


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
