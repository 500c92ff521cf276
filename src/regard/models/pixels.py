"""Sequences of a fixed length from a model whose outputs are not its inputs: the levels of images, slot by slot."""

from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor

from regard.core.attention import generator
from regard.core.errors import ShapeError
from regard.core.state import State
from regard.models.beam import following
from regard.models.decoder import LanguageModel
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.generate import evaluation
from regard.models.sampling import Sampling


def sample(
    model: LanguageModel | EncoderDecoder,
    *,
    rows: int,
    start: int,
    offsets: Int[Tensor, " slots"],
    given: Int[Tensor, "rows known"] | None = None,
    source: Int[Tensor, "rows keys"] | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    use_state: bool = True,
) -> Int[Tensor, "rows slots"]:
    """Draw x_t from p(x_t | x_1 ... x_{t-1}), where the model reads `start`, x_1 + offset_1, x_2 + offset_2, ...

    A row's draws depend on (seed, row), never on other rows. The model runs in evaluation mode and is left in the mode
    it was in.

    Args:
        model: whose outputs are the levels; an encoder-decoder also reads a source.
        rows: sequences.
        start: the token that is read before the first slot.
        offsets: numbers that are added to the level of each slot to give the token that is read.
        given: levels of the first slots, which are not drawn; None: all are.
        source: the sequence that an encoder-decoder reads; None for a decoder.
        sampling: how; None: from the model's own distribution.
        seed: of the draws.
        use_state: stream with the mechanisms' states where all layers have one; else every slot recomputes all before.

    Returns:
        The levels, on the CPU; the given ones first.

    Raises:
        ShapeError: a model with a source, or a source without a model for it; given levels of another shape.
        NumericsError: logits that are not finite.

    Example:
        >>> from regard.models import ModelConfig
        >>> model = LanguageModel(ModelConfig(dim=16, vocab_size=5, targets=4, tied=False))
        >>> offsets = torch.zeros(6, dtype=torch.int64)
        >>> two, three = (sample(model, rows=rows, start=4, offsets=offsets) for rows in (2, 3))
        >>> torch.equal(two, three[:2]), bool((three < 4).all())
        (True, True)
    """
    if (source is not None) != isinstance(model, EncoderDecoder):
        raise ShapeError("an encoder-decoder needs a source, and no other model reads one")
    slots = len(offsets)
    known = torch.empty(rows, 0, dtype=torch.int64) if given is None else given.cpu()
    if known.shape[0] != rows or known.shape[1] > slots:
        raise ShapeError(f"given levels must be ({rows}, at most {slots}), got {tuple(known.shape)}")
    sampling = Sampling() if sampling is None else sampling
    draws = [generator(seed, "pixels", row) for row in range(rows)]
    uniforms = torch.stack([torch.rand(slots, dtype=torch.float64, generator=draw) for draw in draws])
    device = next(model.parameters()).device
    tokens = torch.cat([torch.full((rows, 1), start), known + offsets[: known.shape[1]].cpu()], 1).to(device)
    read = None if source is None else source.to(device)
    state: State | None = None
    with evaluation(model), torch.inference_mode():
        if use_state and model.streams:
            state = model.initial_state(rows) if isinstance(model, LanguageModel) else model.prepare(cast(Tensor, read))
        for slot in range(known.shape[1], slots):
            if isinstance(model, EncoderDecoder) and state is None:
                logits = model(cast(Tensor, read), tokens).logits[:, -1]
            else:
                logits, state = following(model, tokens, state)
            picked = sampling.pick(logits, uniforms[:, slot])
            known = torch.cat([known, picked[:, None]], 1)
            new = (picked + int(offsets[slot]))[:, None].to(device)
            tokens = torch.cat([tokens, new], 1) if state is None else new
    return known
