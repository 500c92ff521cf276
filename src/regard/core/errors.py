"""The errors that regard raises: one small hierarchy.

A message says who, what it got, what it allows, and the way out.
"""

import difflib
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager


class RegardError(Exception):
    """Base of every error that regard raises on purpose. `exit_code` is what the command line exits with."""

    exit_code = 1

    def __str__(self) -> str:  # no __init__, which a compiler could not follow
        return printable(super().__str__())


class UnsupportedError(RegardError, NotImplementedError):
    """A request that the mechanism, position or device declares it cannot serve."""

    exit_code = 2


class ConfigError(RegardError, ValueError):
    """An option, specification or configuration that makes no sense."""

    exit_code = 2


class ShapeError(RegardError, ValueError):
    """Tensors whose shapes or dtypes do not fit each other or the mechanism."""

    exit_code = 2


class InputError(RegardError, ValueError):
    """A value outside its domain, such as a token id beyond the vocabulary."""

    exit_code = 3


class DataError(RegardError):
    """Missing, empty, binary or malformed data."""

    exit_code = 3


class CheckpointError(RegardError):
    """A checkpoint or datastore that is corrupt, incomplete or belongs to something else."""

    exit_code = 4


class UnsafeFileError(RegardError):
    """A file that could run code or point outside its folder."""

    exit_code = 4


class NumericsError(RegardError, ArithmeticError):
    """A loss or a value that is not finite."""

    exit_code = 5


class LimitError(RegardError):
    """A length or size beyond what the object was built for."""

    exit_code = 6


class ResourceError(RegardError):
    """Too little memory, disk or permission."""

    exit_code = 6


def printable(text: str) -> str:
    """A text with its control characters escaped, as in JSON, but for line ends and tabs: they would steer a terminal.

    Example:
        >>> printable("a name\x1b[2J")
        'a name\\\\u001b[2J'
    """
    return re.sub(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)", lambda found: f"\\u{ord(found[0]):04x}", text)


_NO_SIZE = ("Storage size calculation overflowed", "integer multiplication overflow", "Overflow when unpacking long")
"""what torch says of sizes that are no number of elements"""
_NO_MEMORY = ("can't allocate memory", "out of memory", *_NO_SIZE)
"""what torch says of tensors that no memory holds"""


def no_size(error: BaseException) -> bool:
    """Whether an exception says that a size is one that no tensor can have, on whatever machine.

    Example:
        >>> no_size(TypeError("empty(): Overflow when unpacking long long")), no_size(MemoryError())
        (True, False)
    """
    text = str(error)
    return isinstance(error, OverflowError) or (
        isinstance(error, RuntimeError | TypeError) and any(said in text for said in _NO_SIZE)
    )


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out. torch says so with an error that is told by its text.

    Example:
        >>> out_of_memory(MemoryError())
        True
    """
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | TypeError) and any(said in text for said in _NO_MEMORY)
    )


@contextmanager
def room_for(who: str) -> Generator[None, None, None]:
    """Where weights are made: say by name that they are more than the memory holds, and that nothing was taken.

    Raises:
        ResourceError: they are.
    """
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        if not out_of_memory(error):
            raise
        raise ResourceError(
            f"{who}: its weights are more than the memory of this machine holds; choose fewer heads or smaller widths, "
            "lengths and numbers"
        ) from None


def kind_of(given: object) -> str:
    """What was given where something else is wanted: of a tensor its dtype and shape.

    Example:
        >>> kind_of([1, 2])
        'a list'
    """
    kind = type(given)
    if hasattr(given, "dtype") and hasattr(given, "shape"):
        name = "" if kind.__module__.startswith("torch") else f"a {kind.__module__}.{kind.__name__} of "
        return f"{name}{given.dtype} {tuple(given.shape)}"  # type: ignore[attr-defined]
    return "None" if given is None else f"a{'n' if kind.__name__[0] in 'aeiou' else ''} {kind.__name__}"


_SYNONYMS = {
    "heads count": "num_heads n_heads n_head nhead num_attention_heads heads",
    "kv_heads kv_count": "num_kv_heads n_kv_heads num_key_value_heads",
    "dim": "embed_dim d_model hidden_size n_embd hidden_dim",
    "key_dim": "head_dim dim_head d_k d_head",
    "dropout attention_dropout": "dropout_p attn_dropout attn_pdrop attention_dropout",
    "window": "window_size sliding_window attention_window",
    "causal": "is_causal is_decoder",
    "key_mask": "key_padding_mask attention_mask padding_mask mask",
    "bias": "attn_mask attn_bias qkv_bias use_bias",
    "scale": "softmax_scale scaling",
    "layers": "num_layers n_layers n_layer num_hidden_layers",
    "max_length length": "max_seq_len seq_len max_position_embeddings n_positions n_ctx max_len",
    "learning_rate": "lr",
}
"""our names of options, of which the first that is there counts -> what other libraries call them"""


def ours(name: str, known: Iterable[str]) -> str | None:
    """The known option that other libraries call by this name."""
    meant = [our for names, theirs in _SYNONYMS.items() if name in theirs.split() for our in names.split()]
    return next((our for our in meant if our in known), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest valid one, or all of them.

    Example:
        >>> nearest("windw", ["window", "impl"])
        "did you mean 'window'?"
    """
    known = sorted(known)
    if meant := ours(name, known):
        return f"did you mean {meant!r}?{' (True = real, so ~key_padding_mask)' if 'padding' in name else ''}"
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(known) - 60:,} more" if len(known) > 60 else ""
    return f"valid: {', '.join(known[:60])}{more}" if known else "there are none"


_LAYER = (
    "heads", "kv_heads", "causal", "dropout", "max_length", "position", "dim", "key_dim", "value_dim", "output_l1"
)  # fmt: skip


def unknown(label: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for an option that does not exist, or is the layer's and was given to its mechanism."""
    known = list(known)
    of_layer = name if name in _LAYER else ours(name, _LAYER)
    if label.startswith("mechanism") and of_layer and not ours(name, known):
        return ConfigError(f"{label} has no option {name!r}: it is the layer's, AttentionLayer(..., {of_layer}=...)")
    if not known:
        return ConfigError(f"{label} has no options, got {name!r}")
    return ConfigError(f"{label} has no option {name!r}: {nearest(name, known)}")


def divisors(number: int) -> str:
    """The end of a message about a size that must be divided: what divides it.

    Example:
        >>> divisors(8)
        '; divisors of 8: 1, 2, 4, 8'
    """
    return f"; divisors of {number}: {', '.join(str(d) for d in range(1, number + 1) if number % d == 0)}"


def listed(problems: Iterable[str]) -> str:
    """The end of a message: one problem a line."""
    return "".join(f"\n  {problem}" for problem in problems)
