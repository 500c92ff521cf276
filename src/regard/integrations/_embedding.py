"""Vectors of texts: an encoder's hidden states over the tokens of each, pooled."""

import sys
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from regard.core.errors import ConfigError, InputError, LimitError, NumericsError
from regard.core.types_of import typed
from regard.integrations._sentence import Recipe
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations.weights import listed
from regard.models.encoder import Encoder
from regard.models.generate import evaluation
from regard.position.learned import Learned


@typed
def embed(
    encoder: Encoder,
    tokenizer: PretrainedTokenizer,
    texts: Sequence[str],
    recipe: Recipe,
    *,
    batch_size: int,
    truncate: bool,
    progress: Callable[[int], None],
) -> Float[Tensor, "texts dim"]:
    """The vector of each text, from its tokens, the special ones included, padding not.

    Texts of like length share a batch, so that little is padded; the vectors come in the order of the texts.

    Raises:
        ConfigError: one text where a sequence of them belongs, or a batch size below 1.
        InputError: a text of no token.
        NumericsError: vectors that are not finite.
        LimitError: texts longer than the encoder's positions, or than the recipe says; all are listed.

    Source: Reimers and Gurevych 2019, section 3.
    """
    if isinstance(texts, str) or batch_size < 1:
        raise ConfigError(f"texts is a list, and batch_size at least 1; got {type(texts).__name__} and {batch_size}")
    positions = encoder.config.max_length if isinstance(encoder.embeddings.position, Learned) else None
    most = min(filter(None, (positions, recipe.max_length)), default=sys.maxsize)

    def read(text: str) -> Tensor:
        text = text.lower() if recipe.lower else text
        return torch.from_numpy(tokenizer.encode(text, longest=most if truncate else None))

    rows = [read(recipe.prompt + text) for text in texts]
    long = [f"text {at} has {len(row)}" for at, row in enumerate(rows) if len(row) > most]
    if long:
        raise LimitError(
            f"a text has at most {most} tokens here (positions: {positions}, max_seq_length: {recipe.max_length}); "
            f"shorten these, or give truncate to cut them there:{listed(long)}"
        )
    left_out = 0
    if recipe.prompt and not recipe.include_prompt:  # without the token that stands behind every text
        row, end = read(recipe.prompt).tolist(), tokenizer.encode("")[-1:].tolist()
        left_out = len(row) - (row[-1:] == end)
    empty = [f"text {at}: {texts[at]!r}" for at, row in enumerate(rows) if len(row) <= left_out]
    if empty:
        raise InputError(f"texts without a token have no vector:{listed(empty)}")
    device = next(encoder.parameters()).device
    vectors = torch.empty(len(rows), encoder.config.dim * len(recipe.pooling), device=device)
    by_length = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    with evaluation(encoder), torch.inference_mode():
        for start in range(0, len(rows), batch_size):
            batch = by_length[start : start + batch_size]
            lengths = torch.tensor([len(rows[at]) for at in batch], device=device)
            tokens = pad_sequence([rows[at] for at in batch], batch_first=True).to(device)
            slots = torch.arange(tokens.shape[1], device=device)
            mask = slots < lengths[:, None]
            hidden = encoder(tokens, key_mask=mask).hidden
            vectors[batch] = pooled(hidden, mask & (slots >= left_out), recipe.pooling)
            progress(start + len(batch))
    if not vectors.isfinite().all():
        raise NumericsError("the vectors are not finite: fetch the encoder's weights again")
    return normalize(vectors) if recipe.unit else vectors


def pooled(
    hidden: Float[Tensor, "batch length dim"], mask: Bool[Tensor, "batch length"], pooling: tuple[str, ...]
) -> Float[Tensor, "batch joined"]:
    """One vector for a sequence, by each of the named poolings over the tokens of the mask.

    Example:
        >>> hidden, mask = torch.tensor([[[1.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]])
        >>> pooled(hidden, mask, ("cls", "max", "mean", "weightedmean", "lasttoken"))
        tensor([[1.0000, 4.0000, 2.5000, 3.0000, 4.0000]])
    """
    weight = mask[..., None].to(hidden.dtype)
    slots = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    real, rows = hidden.masked_fill(~mask[..., None], 0), torch.arange(len(hidden), device=hidden.device)
    means = {"mean": weight, "weightedmean": weight * slots[:, None]}
    made = {name: (real * w).sum(1) / w.sum(1) for name, w in means.items()}
    made |= {
        "mean_sqrt_len_tokens": real.sum(1) / weight.sum(1).sqrt(),
        "max": hidden.masked_fill(~mask[..., None], -torch.inf).amax(1),
        "cls": real[rows, (mask * slots.flip(0)).argmax(1)],
        "lasttoken": real[rows, (mask * slots).argmax(1)],
    }
    return torch.cat([made[name] for name in pooling], -1)
