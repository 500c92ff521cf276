"""Passages at one threshold after the other, of which nothing is computed twice that the threshold does not change."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.models import LanguageModel
from regard.models.depth import Begin, Leaving, Notes


@dataclass
class Answers:
    """Of every token (items, length): the likeliest next one, whether it is right, its nats, the blocks it took."""

    likeliest: Tensor
    right: Tensor
    nats: Tensor
    steps: Tensor

    def put(self, rows: Tensor, other: "Answers") -> None:
        """Take other answers for these rows."""
        for name, x in vars(self).items():
            x[rows] = getattr(other, name)


class Rereading:
    """Reads passages with all blocks, and then again at thresholds that fall.

    A token leaves behind the first block where it is as sure as the threshold asks. Blocks above it have the keys of
    its copied state, so that later tokens are other ones there: a record of the full model does not tell what happens
    at a threshold. But up to the lowest block behind which any token of the passage leaves that did not before, all
    that was read at the threshold before stays as it is; a passage of which none does stays as a whole. The rest is
    computed by the model itself, which asks for confidences again only of tokens at or behind one that leaves anew,
    above the block where it does. Answers are those of a call at the threshold, up to the rounding of products of
    other sizes.

    Cost: one call with the confidences of all tokens behind all blocks, then what changes. Memory: the hidden states of
    the passages behind every block.

    Args:
        model: in evaluation, with exits that ask for a threshold.
        tokens: passages (items, length + 1), the last token of each as a target alone.
    """

    def __init__(self, model: LanguageModel, tokens: Tensor) -> None:
        assert isinstance(model.depth, Leaving)
        self.model, self.depth, self.tokens = model, model.depth, tokens
        self.last = model.config.layers
        notes = Notes(holds=True)
        with self.depth.noting(notes):
            self.answers = self._read(tokens)
        self.sure = torch.stack(notes.sure, -1)
        self.hidden = notes.behind
        self.computed = 0
        """passages times blocks that were computed again"""

    @torch.no_grad()
    def at_threshold(self) -> Answers:
        """The answers at the threshold that the model has now, which is no higher than before."""
        limit = self.depth.limit(torch.arange(self.tokens.shape[1] - 1, device=self.tokens.device))
        leaves = self.sure >= (limit[:, None] if isinstance(limit, Tensor) else limit)
        first = F.pad(leaves, (0, 1), value=True).int().argmax(-1) + 1
        changed = first < self.answers.steps
        rows = changed.any(1).nonzero()[:, 0]
        if len(rows):
            # what a token reads changes above the lowest block behind which it or one before it leaves anew
            same = torch.where(changed, first, self.last).cummin(1).values[rows]
            self._again(rows, first[rows], same, int(same.amin()))
        return self.answers

    def _again(self, rows: Tensor, first: Tensor, same: Tensor, begin: int) -> None:
        """Read rows again from behind block `begin`, where tokens leave behind block `first` if that is no later.

        Confidences up to block `same` of each token are known.
        """
        steps, active = first.clamp(max=begin), first > begin
        behind = torch.arange(1, self.last, device=rows.device)
        known = self.sure[rows].masked_fill(behind > same[..., None], float("nan"))
        notes = Notes(Begin(begin, self.hidden[begin - 1][rows], active, steps), known)
        with self.depth.noting(notes):
            self.answers.put(rows, self._read(self.tokens[rows]))
        # what earlier calls noted of tokens behind where they leave now is never read
        for at, (sure, hidden) in enumerate(zip(notes.sure, notes.behind, strict=True), begin):
            self.sure[rows, :, at] = sure
            self.hidden[at][rows] = hidden
        self.computed += len(rows) * (int(self.answers.steps[rows].amax()) - begin)

    def _read(self, tokens: Tensor) -> Answers:
        output = self.model.hidden(tokens[:, :-1])
        logits, targets = self.model.logits(output.hidden).float(), tokens[:, 1:]
        likeliest = logits.argmax(-1)
        nats = torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]
        assert output.steps is not None
        return Answers(likeliest, (likeliest == targets).double(), nats.double(), output.steps)
