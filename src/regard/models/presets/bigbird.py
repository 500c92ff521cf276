"""BigBird."""

from dataclasses import replace
from typing import Literal

from regard.errors import ConfigError, nearest
from regard.models.encoder_config import EncoderConfig
from regard.models.presets.bert import bert

_FORMS = {"itc": (64, 1, 3), "etc": (84, 256, 0)}
"""form -> block size, global blocks at each end or global tokens in front, random blocks: table 8 of the paper"""


def bigbird(
    *,
    vocab_size: int = 50358,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    form: Literal["itc", "etc"] = "itc",
    block_size: int | None = None,
    num_global: int | None = None,
    num_random: int | None = None,
    max_length: int = 4096,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """BERT base over blocks: neighbours, global ones and random ones (`itc`), or extra global tokens (`etc`).

    The large model is (dim, layers, heads) = (1024, 24, 16).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`. No attention weights are dropped
            unless `attention_dropout` says so.
        form: `itc`: the first blocks and the last one are global. `etc`: the first tokens are, and the input begins
            with as many that summarise it, such as those of `--task.summaries`.
        block_size: positions in a block; None: 64 (itc), 84 (etc).
        num_global: global blocks at the start (itc) or global tokens (etc); None: 1 and 256.
        num_random: random blocks for every block and head; None: 3; `etc` has none.

    Raises:
        ConfigError: an unknown form; random blocks in form etc.

    Example:
        >>> bigbird().attention
        ("bigbird(block_size=64, num_global=1, num_random=3, form='itc')",)

    Source: Zaheer et al. 2020, section 4 and table 8; activation, vocabulary and epsilon as in the released code.
    """
    if form not in _FORMS:
        raise ConfigError(f"bigbird has no form {form!r}: {nearest(form, _FORMS)}")
    if form == "etc" and num_random:
        raise ConfigError(f"bigbird in form etc has no random blocks, got num_random={num_random}; use form='itc'")
    chosen = [
        published if size is None else size
        for size, published in zip((block_size, num_global, num_random), _FORMS[form], strict=True)
    ]
    base = bert(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    names = ("block_size", "num_global", "num_random")
    options = ", ".join(f"{name}={size}" for name, size in zip(names, chosen, strict=True))
    return replace(base, attention=(f"bigbird({options}, form={form!r})",), mlp="gelu_tanh", attention_dropout=0.0)
