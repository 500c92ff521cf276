"""Light heads for exits after every block of a decoder whose own weights stay as they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.errors import DataError, UnsupportedError
from regard.core.types_of import typed
from regard.models import LanguageModel
from regard.models.blocks import Block
from regard.models.depth.fixed import Fixed
from regard.models.depth.light_exit import LightExit, of_unit_size
from regard.models.generate import evaluation

RIDGE = 0.02
"""penalty of a guess, in shares of the variance of each feature"""
SHRINK = 0.01
"""penalty of a judge's weights for features of variance 1, for each passage's token"""
NEWTON = 8
"""steps of a judge's fit, which has converged long before"""


@typed
@torch.no_grad()
def fit_light_heads(
    model: LanguageModel,
    passages: Int[Tensor, "items length"],
    *,
    batch_size: int = 16,
    tell: Callable[[str], None] = lambda line: None,
) -> LightExit:
    """The scheme `light_exit` for this model, which stays as it is.

    Of the first half of the passages the guesses: W_n, b_n of the least sum |y - a^n - W_n a^n - b_n|^2, with a ridge,
    y = h^N / rms(h^N). Of the second half, which these have not seen, the judges: logistic regressions of whether the
    likeliest token of the guess is the full model's. Both have one solution, so that nothing is drawn.

    Cost: one call of the model for every passage, and for those of the second half its output layer once per layer.

    Args:
        model: a decoder whose blocks run once, in order.
        passages: token ids, which no later calibration may use.
        batch_size: passages at a time.
        tell: called with lines about the progress.

    Raises:
        UnsupportedError: `require_leavable`.
        DataError: fewer than two tokens for each feature that is fitted; it says how many passages that takes.
    """
    require_leavable(model)
    dim, layers, length = model.config.dim, model.config.layers, passages.shape[-1]
    if not length:
        raise DataError("passages of no token fit no light heads; give longer ones")
    depth = LightExit(model.config).to(model.table.weight)
    needed = passages_needed(model, length)
    if len(passages) < needed:
        raise DataError(
            f"{len(passages)} passages of {length} tokens are too few to fit light heads of width {dim}; they need "
            f"{needed} or more, or longer ones"
        )
    first, second = passages[: len(passages) // 2], passages[len(passages) // 2 :]
    with evaluation(model):
        _fit_guesses(model, depth, first.split(batch_size))
        tell(f"fitted {layers - 1} guesses to {first.numel()} tokens")
        _fit_judges(model, depth, second.split(batch_size))
        tell(f"fitted {layers - 1} judges to {second.numel()} other tokens")
    return depth.eval()


def require_leavable(model: LanguageModel) -> None:
    """Refuse a decoder that no exits can be added to, for all that is against it.

    Raises:
        UnsupportedError: another depth, one block, reversible blocks, a memory, or neighbours.
    """
    config, once = model.config, isinstance(model.depth, Fixed)
    against = {
        f"it has depth={config.depth!r}, and exits are for blocks that run once, in order": not once,
        "it has one block": once and config.layers < 2,
        "its blocks are reversible, and have two streams": config.block == "reversible",
        "it has a memory, which would know nothing of blocks that were skipped": config.remembers,
        "it mixes in neighbours behind its last block": config.neighbours > 0,
    }
    if any(against.values()):
        reasons = "; ".join(reason for reason, holds in against.items() if holds)
        raise UnsupportedError(f"no exits can be added to this decoder: {reasons}")


def passages_needed(model: LanguageModel, length: int) -> int:
    """The fewest passages of so many tokens that light heads can be fitted to: two tokens for each of their features,
    and as many again for the judges."""
    return 2 * -(-2 * (model.config.dim + 1) // length)


def _fit_guesses(model: LanguageModel, depth: LightExit, batches: tuple[Tensor, ...]) -> None:
    dim, exits = model.config.dim, model.config.layers - 1
    place = {"device": model.table.weight.device, "dtype": torch.float64}
    squares, crossed = torch.zeros(exits, dim + 1, dim + 1, **place), torch.zeros(exits, dim + 1, dim, **place)
    for tokens in batches:
        hidden = [of_unit_size(h).flatten(0, 1) for h in _hidden(model, tokens)]
        for at in range(exits):
            a = torch.nn.functional.pad(hidden[at], (0, 1), value=1.0)
            squares[at] += a.mT @ a
            crossed[at] += a.mT @ (hidden[-1] - hidden[at])
    count = squares[:, -1:, -1]
    for at in range(exits):
        penalty = RIDGE * (squares[at].diagonal() - squares[at][-1] ** 2 / count[at])
        penalty[-1] = 0
        solved = torch.linalg.solve(squares[at] + (penalty + 1e-12 * count[at]).diag(), crossed[at])
        depth.guess[at] = solved[:-1].mT
        depth.guess_bias[at] = solved[-1]


def _fit_judges(model: LanguageModel, depth: LightExit, batches: tuple[Tensor, ...]) -> None:
    exits = model.config.layers - 1
    features: list[list[Tensor]] = [[] for _ in range(exits)]
    right: list[list[Tensor]] = [[] for _ in range(exits)]
    for tokens in batches:
        hidden = [h.flatten(0, 1) for h in _hidden(model, tokens)]
        answer = _likeliest(model, hidden[-1])
        for at in range(exits):
            features[at].append(of_unit_size(hidden[at]))
            right[at].append(_likeliest(model, depth.guessed(hidden[at], at)) == answer)
    for at in range(exits):
        weights, bias = logistic(torch.cat(features[at]).double(), torch.cat(right[at]))
        depth.judge[at] = weights
        depth.judge_bias[at] = bias


def logistic(
    features: Float[Tensor, "items features"], right: Bool[Tensor, " items"], *, shrink: float = SHRINK
) -> tuple[Float[Tensor, " features"], Float[Tensor, ""]]:
    """w and c of sigmoid(w . x + c), the least mean cross-entropy + shrink / 2 |w s|^2, s the features' deviations.

    By Newton's steps. Without an example of either kind it goes to a confidence of 1 / (items + 2) of that kind.
    """
    middle, deviation = features.mean(0), features.std(0, correction=0)
    deviation = torch.where(deviation == 0, 1, deviation)
    x = torch.nn.functional.pad((features - middle) / deviation, (0, 1), value=1.0)
    share = (right.sum().to(x) + 1) / (len(right) + 2)
    y = right.to(x) if right.any() and not right.all() else share.expand(len(right))
    penalty = torch.full((x.shape[1],), shrink, dtype=x.dtype, device=x.device)
    penalty[-1] = 0
    solved = torch.zeros_like(penalty)
    solved[-1] = share.logit()
    for _ in range(NEWTON):
        p = (x @ solved).sigmoid()
        slope = x.mT @ (p - y) / len(x) + penalty * solved
        bend = (x.mT * (p * (1 - p)).clamp(min=1e-6)) @ x / len(x) + penalty.diag()
        solved = solved - torch.linalg.solve(bend, slope)
    weights = solved[:-1] / deviation
    return weights, solved[-1] - weights @ middle


def _likeliest(model: LanguageModel, hidden: Tensor) -> Tensor:
    return model.logits(hidden if model.norm is None else model.norm(hidden)).argmax(-1)


def _hidden(model: LanguageModel, tokens: Tensor) -> list[Tensor]:
    """The hidden states after every block."""
    with after_blocks(model) as kept:
        model.hidden(tokens.to(model.table.weight.device))
    return kept


@contextmanager
def after_blocks(model: LanguageModel) -> Iterator[list[Tensor]]:
    """A list that gets the hidden states (batch, length, dim) after every block that runs within."""
    kept: list[Tensor] = []
    hooks = [
        cast(Block, block).register_forward_hook(lambda block, given, got: kept.append(got.hidden))
        for block in model.blocks
    ]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
