"""Vectors of texts: an encoder's hidden states over the tokens of each, pooled."""

import sys
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from regard.errors import ConfigError, InputError, LimitError
from regard.integrations._sentence import Recipe
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations.weights import listed
from regard.models.encoder import Encoder
from regard.models.generate import evaluation
from regard.models.heads import pooled
from regard.position.learned import Learned
from regard.types_of import typed


@typed
def embed(
    encoder: Encoder,
    tokenizer: PretrainedTokenizer,
    texts: Sequence[str],
    recipe: Recipe,
    *,
    batch_size: int,
    progress: Callable[[int], None],
) -> Float[Tensor, "texts dim"]:
    """The vector of each text, from its tokens, the special ones included, padding not.

    Texts of like length share a batch, so that little is padded; the vectors come in the order of the texts.

    Raises:
        ConfigError: one text where a sequence of them belongs, or a batch size below 1.
        InputError: a text of no token.
        LimitError: texts longer than the encoder's positions, or than the recipe says; all are listed.

    Source: Reimers and Gurevych 2019, section 3.
    """
    if isinstance(texts, str) or batch_size < 1:
        raise ConfigError(f"texts is a list, and batch_size at least 1; got {type(texts).__name__} and {batch_size}")
    positions = encoder.config.max_length if isinstance(encoder.embeddings.position, Learned) else None
    most = min(filter(None, (positions, recipe.max_length)), default=sys.maxsize)

    given = [recipe.prompt + text for text in texts]
    rows = [torch.from_numpy(tokenizer.encode(text.lower() if recipe.lower else text)) for text in given]
    long = [f"text {at} has {len(row)}" for at, row in enumerate(rows) if len(row) > most]
    if long:
        raise LimitError(
            f"a text has at most {most} tokens here (positions: {positions}, max_seq_length: {recipe.max_length}):"
            + listed(long)
        )
    empty = [f"text {at}: {texts[at]!r}" for at, row in enumerate(rows) if not len(row)]
    if empty:
        raise InputError(f"texts without a token have no vector:{listed(empty)}")
    device = next(encoder.parameters()).device
    vectors = torch.empty(len(rows), encoder.config.dim, device=device)
    by_length = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    with evaluation(encoder), torch.inference_mode():
        for start in range(0, len(rows), batch_size):
            batch = by_length[start : start + batch_size]
            lengths = torch.tensor([len(rows[at]) for at in batch], device=device)
            tokens = pad_sequence([rows[at] for at in batch], batch_first=True).to(device)
            mask = torch.arange(tokens.shape[1], device=device) < lengths[:, None]
            vectors[batch] = pooled(encoder(tokens, key_mask=mask), recipe.pooling)
            progress(start + len(batch))
    return normalize(vectors) if recipe.unit else vectors
