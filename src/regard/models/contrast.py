"""Contrastive predictive coding of segments: what a global token says of a hidden segment, against what is in it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


class Alone(NamedTuple):
    """Hidden segments, each in a row of its own behind its global token, padded on the right.

    tokens, key_mask, marks: what an encoder takes. row, place: of their global tokens in the batch they came from.
    """

    tokens: Int[Tensor, "segments length"]
    key_mask: Bool[Tensor, "segments length"]
    marks: Int[Tensor, "segments length"]
    row: Int[Tensor, " segments"]
    place: Int[Tensor, " segments"]


def alone(
    tokens: Int[Tensor, "batch length"], contents: Int[Tensor, "batch length"], marks: Int[Tensor, "batch length"]
) -> Alone:
    """Every hidden segment that a global token summarises, out of its context.

    Args:
        tokens: as the model reads them.
        contents: the hidden tokens, where a whole segment is hidden; negative elsewhere.
        marks: s > 0 for a token of segment s, -s for its global token.

    Example:
        >>> tokens, marks = torch.tensor([[9, 9, 5, 0, 0]]), torch.tensor([[-1, -2, 1, 2, 2]])
        >>> segments = alone(tokens, torch.tensor([[-100, -100, -100, 6, 7]]), marks)
        >>> segments.tokens.tolist(), segments.row.tolist(), segments.place.tolist()
        ([[9, 6, 7]], [0], [1])
    """
    most = int(marks.abs().max()) + 1
    hidden_row, hidden_place = (contents >= 0).nonzero(as_tuple=True)
    named = hidden_row * most + marks[hidden_row, hidden_place]
    global_row, global_place = (marks < 0).nonzero(as_tuple=True)
    summarised = global_row * most - marks[global_row, global_place]
    kept = torch.isin(summarised, named)
    row, place, wanted = global_row[kept], global_place[kept], summarised[kept]
    inside = wanted[:, None] == named
    lengths = inside.sum(1)
    longest = int(lengths.max()) if len(lengths) else 0
    slots = torch.arange(longest, device=tokens.device)
    key_mask = slots < lengths[:, None]
    bodies = tokens.new_zeros(key_mask.shape)
    _, hidden_at = inside.nonzero(as_tuple=True)
    bodies[key_mask] = contents[hidden_row[hidden_at], hidden_place[hidden_at]].to(tokens.dtype)
    fronts = tokens[row, place][:, None]
    return Alone(
        torch.cat([fronts, bodies], 1),
        F.pad(key_mask, (1, 0), value=True),
        F.pad(key_mask.long(), (1, 0), value=-1),
        row,
        place,
    )


def contrast(predicted: Float[Tensor, "segments dim"], content: Float[Tensor, "segments dim"]) -> Float[Tensor, ""]:
    """-1/n sum_i log softmax_j(p_i . c_j / sqrt(dim))_i: each prediction finds its own segment among all of the call.

    Args:
        predicted: p, of the global tokens whose segments are hidden.
        content: c, of global tokens that saw the segments and nothing else, in the same order.

    Returns:
        The loss; 0 for fewer than two segments, which have no other to be told from.

    Source: van den Oord et al. 2018, equation 4; of global tokens: Ainslie et al. 2020, section 3.4. How two vectors
    are compared is not published: we take the product of hidden states, scaled as in attention.
    """
    if len(predicted) < 2:
        return predicted.sum() * 0
    wide = torch.promote_types(predicted.dtype, torch.float32)
    scores = predicted.to(wide) @ content.to(wide).mT * predicted.shape[-1] ** -0.5
    return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
