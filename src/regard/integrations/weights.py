"""Tensors of a published checkpoint and weights of our models: which is which, as data for both directions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.core.attention import Attention
from regard.core.errors import CheckpointError, UnsupportedError, listed


class Stored(NamedTuple):
    """A tensor in a file: its shape, how to read it, and the type of its numbers as safetensors names it."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    kind: str = "F32"


@dataclass(frozen=True)
class Weight:
    """One of our weights and where a published checkpoint keeps it; `{layer}` stands for the number of a block.

    transposed: theirs is (in, out), as GPT-2's. part: (which, of how many) equal rows of theirs, where several of our
    weights are one of theirs. heads: rows are stored for rotary planes of neighbouring channels, and ours for halves:
    the number of heads whose rows are to be put in order (0: none). leading: how many axes of size 1 theirs has in
    front of ours. kernel: the last axes of theirs, which are one of ours: a convolution's channels, height and width.
    factor: of ours, where another scale of the logits is part of theirs.
    """

    ours: str
    theirs: str
    transposed: bool = False
    part: tuple[int, int] = (0, 1)
    heads: int = 0
    leading: int = 0
    kernel: tuple[int, ...] = ()
    factor: float = 1.0

    def at(self, layer: int) -> "Weight":
        """The same weight of one block."""
        ours, theirs = (name.replace("{layer}", str(layer)) for name in (self.ours, self.theirs))
        return replace(self, ours=ours, theirs=theirs)

    def shape(self, own: Sequence[int]) -> tuple[int, ...]:
        """The shape of their tensor, from the shape of ours."""
        whole = tuple(size * (1 if axis else self.part[1]) for axis, size in enumerate(own))
        whole = (*whole[:-1], *self.kernel) if self.kernel else whole
        return (1,) * self.leading + (whole[::-1] if self.transposed else whole)

    def read(self, stored: Tensor) -> Tensor:
        """Ours from theirs."""
        rows = stored.reshape(stored.shape[self.leading :])
        rows = rows if self.factor == 1 else rows * self.factor
        rows = rows.flatten(-len(self.kernel)) if self.kernel else rows.T if self.transposed else rows
        which, of = self.part
        rows = rows.chunk(of)[which] if of > 1 else rows
        if not self.heads:
            return rows
        return rows.unflatten(0, (self.heads, -1, 2)).transpose(1, 2).reshape(rows.shape)

    def write(self, rows: Tensor) -> Tensor:
        """Theirs from ours, of all parts."""
        rows = rows if self.factor == 1 else rows / self.factor
        rows = rows.unflatten(-1, self.kernel) if self.kernel else rows.T if self.transposed else rows
        return rows.reshape((1,) * self.leading + rows.shape).contiguous()


def each(weights: Iterable[Weight], layers: int) -> list[Weight]:
    """Every weight of a model, those of blocks once for each."""
    return [
        one
        for weight in weights
        for one in ([weight.at(layer) for layer in range(layers)] if "{layer}" in weight.ours else [weight])
    ]


def fill(
    model: nn.Module,
    weights: Iterable[Weight],
    stored: Mapping[str, Stored],
    where: str,
    problems: Sequence[str] = (),
    derived: tuple[str, ...] = (),
) -> None:
    """Put stored tensors into a model, one after the other, in the model's dtype.

    Args:
        model: takes the weights.
        weights: one for each of the model's.
        stored: the tensors of the file, all of which must be used.
        where: the file, for messages.
        problems: found before, said together with those of the tensors.
        derived: endings of the model's tensors that follow from the configuration, and stay as they are.

    Raises:
        CheckpointError: missing tensors, tensors without use, wrong shapes or types; all of them are listed.
    """
    tensors = {name: x for name, x in model.state_dict().items() if not name.endswith(derived)}
    weights = list(weights)
    assert {weight.ours for weight in weights} == set(tensors), {weight.ours for weight in weights} ^ set(tensors)
    problems = list(problems)
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for weight in weights:
        wanted[weight.theirs] = weight.shape(tensors[weight.ours].shape), tensors[weight.ours].dtype
    for name, (shape, dtype) in wanted.items():
        if name not in stored:
            problems.append(f"{name} {shape} is missing")
        elif tuple(stored[name].shape) != shape:
            problems.append(f"{name} has shape {tuple(stored[name].shape)}, and the configuration says {shape}")
        elif (stored[name].kind in _FLOATS) != dtype.is_floating_point:
            problems.append(f"{name} is stored as {stored[name].kind}, and the network has {dtype}")
    problems += [f"{name} {tuple(stored[name].shape)} has no use here" for name in stored if name not in wanted]
    if problems:
        raise CheckpointError(f"{where} is not what its configuration says:{listed(problems)}")
    read: tuple[str, Tensor] | None = None
    with torch.no_grad():
        for weight in weights:
            if read is None or read[0] != weight.theirs:
                read = weight.theirs, stored[weight.theirs].read()
            tensors[weight.ours].copy_(weight.read(read[1]))
    settle(model)


def settle(model: nn.Module) -> None:
    """Let mechanisms make anew what follows from buffers that were written behind their back, as after a state_dict."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.load_state_dict(module.state_dict())


def collect(model: nn.Module, weights: Iterable[Weight], name: str, derived: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The model's weights under their published names: the inverse of `fill`, for weights stored in halves.

    Args:
        model: has the weights.
        weights: one for each of them.
        name: of the architecture, for messages.
        derived: as `fill`.

    Raises:
        UnsupportedError: the model has other weights; all of them are listed.
    """
    tensors = {name: x for name, x in model.state_dict().items() if not name.endswith(derived)}
    weights = list(weights)
    named = {weight.ours for weight in weights}
    problems = [f"{name} is missing" for name in sorted(named - tensors.keys())]
    problems += [f"{name} has no place there" for name in sorted(tensors.keys() - named)]
    if problems:
        raise UnsupportedError(f"this model cannot be written as {name}:{listed(problems)}")
    parts: dict[str, list[Tensor]] = {}
    how: dict[str, Weight] = {}
    for weight in weights:
        assert not weight.heads
        parts.setdefault(weight.theirs, []).append(tensors[weight.ours])
        how[weight.theirs] = weight
    return {theirs: how[theirs].write(torch.cat(rows)) for theirs, rows in parts.items()}


@contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Keep what is wrong inside for later, so that it is said together with what else is wrong."""
    try:
        yield
    except CheckpointError as error:
        problems.append(str(error))


@contextmanager
def undrawn() -> Iterator[None]:
    """Models built inside have no initial weights, because `fill` replaces them: normal draws are left out."""

    class Undrawn(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            del types
            return args[0] if func is Tensor.normal_ else func(*args, **(kwargs or {}))

    with Undrawn():
        yield


_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""kinds of safetensors that weights may have"""
_HARMLESS = """
architectures model_type transformers_version transformers.js_config tokenizer_class language license unsloth_*
_name_or_path _commit_hash _attn_implementation* attn_implementation torch_dtype dtype torchscript use_bfloat16
initializer_* init_std axial_norm_std *dropout* *_pdrop *_layerdrop gradient_checkpointing use_cache chunk_size_*
return_dict output_attentions output_hidden_states output_past is_encoder_decoder *_token_id prefix save_step
num_labels _num_labels id2label label2id problem_type finetuning_task task_specific_params sentence_transformers sbert_*
max_length min_length num_beams length_penalty no_repeat_ngram_size early_stopping do_sample temperature top_k top_p
repetition_penalty force_bos_token_to_be_generated
summary_* pooler_* directionality encoder_stride onnx_export attention_mode ignore_attention_mask extra_pos_embeddings
n_ctx max_sequence_length reorder_and_upcast_attn pretraining_tp is_llama_config
axial_pos_* hash_seed num_hashes num_buckets lsh_num_chunks_* num_chunks_* sinusoidal_pos_embds
"""
"""Names and patterns of keys that change no result of a network here: where a file is from, training, labels and the
defaults of generation; and, at the end, heads that none has, and what other keys and the shapes of tensors repeat."""


class Settings:
    """A published configuration, read with every problem kept, so that all of them can be said at once.

    A key that nothing reads is a problem too, because it may change the result, unless it is harmless or null.

    Args:
        values: by name.
        where: the file, for messages.
        tensors: those stored, which a network cannot be larger than.
        ignore: keys to leave out.
    """

    def __init__(
        self, values: Mapping[str, object], where: str, tensors: Mapping[str, Stored], ignore: Sequence[str] = ()
    ) -> None:
        self.values = {name: value for name, value in values.items() if name not in ignore}
        self.where, self.tensors, self.ignore = where, tensors, ignore
        self.problems: list[str] = []
        self._read: set[str] = set()

    def get(self, name: str, default: object = None) -> object:
        """The value of a key, whatever it is, which is read with that; the default if there is no such key."""
        self._read.add(name)
        return self.values.get(name, default)

    def unread(self) -> list[str]:
        """A problem for each key that was not read."""
        return [
            f"{name}={value!r:.80}: regard does not apply this key; if it changes nothing, load with --ignore {name}, "
            f"in Python ignore=[{name!r}]"
            for name, value in self.values.items()
            if name not in self._read and value not in (None, [], {})
            if not any(fnmatchcase(name, pattern) for pattern in _HARMLESS.split())
        ]

    def number(self, name: str, default: float | None = None) -> float:
        """A number; 1 stands in for one that is missing or wrong, until `check` raises."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problems.append(f"{name} must be a number, got {value!r}" if value is not None else f"no {name}")
            return 1
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer, as `number`."""
        value = self.number(name, default)
        if value % 1 or value < 1:
            self.problems.append(f"{name} must be a positive integer, got {value!r}")
            return 1
        return int(value)

    def axis(self, name: str, default: int | None = None) -> int:
        """A size that is an axis of some tensor, or a part of one: no larger than the longest that is stored."""
        longest = max((size for each in self.tensors.values() if all(each.shape) for size in each.shape), default=0)
        return self._within(name, default, longest, f"no stored tensor has an axis longer than {longest}")

    def layers(self, name: str, default: int | None = None) -> int:
        """A number of blocks, each of which has tensors of its own."""
        return self._within(name, default, len(self.tensors), f"{len(self.tensors)} tensors are stored")

    def _within(self, name: str, default: int | None, most: int, said: str) -> int:
        value = self.size(name, default)
        if value > most:
            self.problems.append(f"{name}={value}, and {said}")
            return 1
        return value

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.problems.append(f"{name} must be true or false, got {value!r}")
        return value if isinstance(value, bool) else default

    def choice(self, name: str, allowed: Sequence[object], default: object) -> object:
        """One of the values that our model has; others are problems."""
        value = self.get(name, default)
        if value not in allowed:
            self.problems.append(f"{name}={value!r}: regard's model has {', '.join(map(repr, allowed))}")
        return value

    def one_of(self, *names: str) -> int:
        """An `axis` that several settings must agree on, because our model has it once."""
        numbers = {name: self.axis(name) for name in names}
        if len(set(numbers.values())) > 1:
            said = ", ".join(f"{name}={value!r}" for name, value in numbers.items())
            self.problems.append(f"{said}: regard's model has one number for them")
        return numbers[names[0]]

    def divides(self, part: str, small: int, whole: str, large: int) -> None:
        """Note it if one size does not divide another."""
        if large % small:
            self.problems.append(f"{part}={small} does not divide {whole}={large}")

    def check(self) -> None:
        """Say every problem, once every key of use was read.

        Raises:
            CheckpointError: there are some.
        """
        self.problems += self.unread()
        if self.problems:
            once = listed(dict.fromkeys(self.problems))
            raise CheckpointError(f"{self.where}: the configuration is not one that can be run:{once}")
