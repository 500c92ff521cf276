"""The numbers of every mechanism, layer and model, to show that a change of the code changes none of them.

    git worktree add ../before COMMIT
    PYTHONPATH=../before/src python evidence/benchmarks/same_numbers.py record before.safetensors
    PYTHONPATH=src python evidence/benchmarks/same_numbers.py record after.safetensors
    python evidence/benchmarks/same_numbers.py compare before.safetensors after.safetensors

`record` needs one script for both trees, as far back as the wall between library and laboratory, so it calls what is
public: `regard.build`, `forward`, states, `AttentionLayer`, the models. Options are read from the signature of the
class, option sets from its `samples`, and to these comes one set for every value of an option with few values that the
samples leave out. Each mechanism is recorded causal and not, in float64: values, losses, gradients of q, k, v and of
every parameter, under masks, biases and marks, with shared keys, leading keys and other keys, in training, and through
a state, whose bytes and tensors are numbers too. Then layers, and models with what they generate. A refusal is recorded
by the name of its error. All inputs are signed random numbers of fixed seeds, and parameters are moved off their
initial values.

`compare` names every difference beyond 1e-12 (float32: 1e-6) of the largest number of a tensor, and every key that is
missing or new, and exits 7 if there is any. `--except PATTERN` sets aside what was meant to change. Without arguments
the script says how to call it, and ends.
"""

import argparse
import fnmatch
import hashlib
import inspect
import sys
import time
import traceback
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import regard
from regard import AttentionLayer, Heads, catalog
from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.errors import RegardError
from regard.models import (
    Classifier,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    FusionClassifier,
    LanguageModel,
    MaskedLanguageModel,
    ModelConfig,
    presets,
)
from regard.models.beam import beam_search
from regard.models.generate import generate
from regard.specs import Spec

SHORT, LONG, FAR = 13, 150, 700
"""positions: odd and more than a window of a sample; across the tiles of an engine; long enough for `auto` to choose"""
PREFILLED = {SHORT: 9, LONG: 70}
BUILT_FOR = 32
"""at least the `max_length` of a mechanism; samples are made for it"""
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
FLOOR = 1e-3
"""smaller numbers are compared as if the largest of their tensor were this: what cancels out is rounding alone"""
DIFFERENT = 7
"""the exit code of a gate that failed"""

Options = Mapping[str, Any]
Kwargs = dict[str, Any]


def drawn(*shape: int, seed: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """Signed random numbers of a seed."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6], "big")
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64).to(dtype)


def moved(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in evaluation mode with its parameters off their initial values.

    A bias that starts at 0 or a gain that starts at 1 would hide whether it is used.
    """
    module = module.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in dict(module.named_parameters()).items():
            parameter.add_(0.1 * drawn(*parameter.shape, seed=name, dtype=dtype))
    return module


class Numbers(dict[str, Tensor]):
    """Recorded tensors by name; what is refused is an empty tensor named for its error."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def add(self, key: str, x: Tensor | float | None) -> None:
        """Enter a tensor or a number; None enters nothing."""
        if x is None:
            return
        assert key not in self, key
        self[key] = (x if isinstance(x, Tensor) else torch.tensor(x)).detach().clone().contiguous()

    @contextmanager
    def attempt(self, key: str) -> Iterator[None]:
        """A refusal inside is a result, and any other error is printed and counted."""
        torch.manual_seed(0)
        try:
            yield
        except RegardError as error:
            self.add(f"{key}/refused {type(error).__name__}", torch.zeros(0))
        except Exception:
            self.failures += 1
            print(f"FAILED {key}\n{traceback.format_exc(limit=-4)}", file=sys.stderr, flush=True)

    def gradients(self, key: str, total: Tensor, leaves: Mapping[str, Tensor]) -> None:
        """Gradients of `total`; a leaf that it does not depend on enters nothing."""
        wanted = {name: x for name, x in leaves.items() if x.requires_grad}
        if not total.requires_grad or not wanted:
            return
        found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        for name, x in zip(wanted, found, strict=True):
            self.add(f"{key}/gradient {name}", x)


def signed(x: Tensor, key: str) -> Tensor:
    """A sum of all elements with random signs and sizes, to take gradients of."""
    return (x * drawn(*x.shape, seed=f"way {key.rpartition('/')[2]}", dtype=x.dtype)).sum()


# ---------------------------------------------------------------------------------------------------- option sets


def choices(cls: type[Attention]) -> dict[str, tuple[object, list[object]]]:
    """Of every option with few values: the default, and the values."""
    hints: dict[str, Any] = {**typing.get_type_hints(cls), **typing.get_type_hints(cls.__init__)}
    found: dict[str, tuple[object, list[object]]] = {}
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            hint = hints.get(parameter.name, parameter.annotation)
            values = list(dict.fromkeys(_values(hint)))
            if values:
                found[parameter.name] = parameter.default, values
    return found


def _values(hint: Any) -> Iterator[object]:
    """The values of a bool or a Literal, alone or in a union."""
    if hint is bool:
        yield from (False, True)
    elif typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    elif hasattr(hint, "__metadata__"):
        yield from _values(typing.get_args(hint)[0])
    else:
        for inner in typing.get_args(hint):
            yield from _values(inner)


def option_sets(cls: type[Attention]) -> tuple[list[Options], list[Options]]:
    """The samples, and one set for every value of an option with few values that these leave out."""
    others: list[Options] = []
    for name, (default, values) in choices(cls).items():
        sampled = [options.get(name, default) for options in cls.samples]
        left = [x for x in values if x not in sampled]
        others += [{**cls.samples[0], name: x} for x in left]
    return [dict(options) for options in cls.samples], others


def label(name: str, options: Options) -> str:
    return str(Spec(name, dict(sorted(options.items()))))


# ------------------------------------------------------------------------------------------------------ mechanisms


def heads_of(causal: bool, length: int, **changes: Any) -> Heads:
    wanted: Kwargs = {"count": 2, "key_dim": 8, "value_dim": 6, "max_length": max(length, BUILT_FOR), "seed": 7}
    return Heads(**{**wanted, "causal": causal, **changes})


def inputs(
    mechanism: Attention, queries: int, keys: int, batch: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """q, k, v; q is the last of k where one projection serves as both."""
    heads = mechanism.heads
    k = drawn(batch, heads.kv_heads, keys, heads.key_dim, seed="k", dtype=dtype)
    v = drawn(batch, heads.kv_heads, keys, heads.value_width, seed="v", dtype=dtype)
    q = drawn(batch, heads.count, queries, heads.query_width, seed="q", dtype=dtype)
    if mechanism.info.shares_query_key:
        q = k[:, :, keys - queries :].repeat_interleave(heads.group, 1)
    return [q, k, v]


def holes(batch: int, keys: int) -> Tensor:
    """A key mask that keeps slot 0 and hides others, differently per row."""
    keep = drawn(batch, keys, seed="holes") > -0.4
    keep[:, 0], keep[0, keys // 2] = True, False
    return keep


def marked(batch: int, keys: int, segments: bool) -> Tensor:
    """Marks: a few tokens, or segments of four tokens, the first of which sums them up."""
    at = torch.arange(keys) + 2 * torch.arange(batch)[:, None]
    return (at // 4 + 1) * torch.where(at % 4 == 0, -1, 1) if segments else (at % 5 == 1).long()


def biases(queries: int, keys: int, batch: int) -> dict[str, ScoreBias]:
    """A logit for every distance, a product for every query and distance, and a table."""
    high, columns = keys - 1, keys + queries - 1
    query = drawn(batch, 2, queries, 5, seed="bias query")
    return {
        "curve": ScoreBias(high=high, curve=drawn(2, columns, seed="curve")),
        "relative": ScoreBias(high=high, query=query, relative=drawn(2, columns, 5, seed="relative")),
        "table": ScoreBias(table=drawn(1, 2, queries, keys, seed="table")),
    }


def called(numbers: Numbers, key: str, mechanism: Attention, x: Sequence[Tensor], **given: Any) -> None:
    """Values, losses and gradients of one call."""
    with numbers.attempt(key):
        leaves = dict(zip("qkv", (y.detach().clone().requires_grad_() for y in x), strict=True))
        got = mechanism(*leaves.values(), **given)
        numbers.add(f"{key}/values", got.values)
        total = signed(got.values, key)
        for name, loss in got.losses.items():
            numbers.add(f"{key}/loss {name}", loss)
            total = total + loss
        numbers.gradients(key, total, leaves | dict(mechanism.named_parameters()))


def in_pieces(
    numbers: Numbers,
    key: str,
    kind: str,
    start: Callable[[], Any],
    cuts: Sequence[int],
    call: Callable[[slice, Any], Any],
) -> None:
    """Results and states of calls that go on behind each other, with the bytes, slots and tensors of every state."""
    with numbers.attempt(key), torch.no_grad():
        state = start()
        for at, piece in enumerate(slice(*pair) for pair in pairwise(cuts)):
            got = call(piece, state)
            state = got.state
            numbers.add(f"{key}/{kind} {at}", getattr(got, kind))
            numbers.add(f"{key}/nbytes {at}", state.nbytes)
            numbers.add(f"{key}/length {at}", state.length)
            for name, x in state.tensors().items():
                numbers.add(f"{key}/state {at} {name}", x)


def streamed(numbers: Numbers, key: str, mechanism: Attention, length: int, **given: Tensor) -> None:
    """A prefill, then the rest, at once and in two pieces; and gradients through the state."""
    cut, batch = PREFILLED[length], 2 if length == SHORT else 1
    x = inputs(mechanism, length, length, batch)

    def call(piece: slice, state: Any) -> Any:
        return mechanism(*(y[:, :, piece] for y in x), state=state, **{name: y[:, piece] for name, y in given.items()})

    for cuts in ((0, cut, length), (0, cut, cut + 1, length)):
        start = partial(mechanism.initial_state, batch, dtype=torch.float64)
        in_pieces(numbers, f"{key}/{len(cuts) - 1} pieces", "values", start, cuts, call)
    if length == SHORT:
        with numbers.attempt(f"{key}/gradients"):
            leaves = dict(zip("qkv", (y.requires_grad_() for y in x), strict=True))
            state, total = mechanism.initial_state(batch, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
            for piece in (slice(0, cut), slice(cut, length)):
                got = call(piece, state)
                state, total = got.state, total + signed(got.values, key)
            numbers.gradients(f"{key}/gradients", total, leaves | dict(mechanism.named_parameters()))


def root_of(name: str, options: Options, causal: bool) -> str:
    return f"attention/{label(name, options)}/{'causal' if causal else 'bidirectional'}"


def mechanism_numbers(numbers: Numbers, name: str, options: Options, causal: bool) -> None:
    """Everything that one mechanism with one option set does."""

    def built(length: int, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
        return moved(regard.build(name, heads_of(causal, length, **changes), **options), dtype)

    root = root_of(name, options, causal)
    facts = built(SHORT).info
    for capability in facts.supports.names:
        numbers.add(f"{root}/supports {capability}", True)
    for loss, weight in facts.losses.items():
        numbers.add(f"{root}/loss weight {loss}", weight)
    serves = facts.supports
    for length, batch in ((SHORT, 2), (LONG, 1)):
        key, mechanism = f"{root}/{length}", built(length)
        x, keep = inputs(mechanism, length, length, batch), holes(batch, length)
        called(numbers, f"{key}/plain", mechanism, x)
        if serves.key_mask:
            called(numbers, f"{key}/masked", mechanism, x, key_mask=keep)
        if serves.bias:
            for form, bias in biases(length, length, batch).items():
                if length == SHORT or form != "table":
                    called(numbers, f"{key}/{form}", mechanism, x, bias=bias)
        if serves.marks:
            for form in (False, True):
                what = f"{key}/{'segments' if form else 'marks'}"
                called(numbers, what, mechanism, x, marks=marked(batch, length, form))
        if serves.state and causal:
            streamed(numbers, f"{key}/state", mechanism, length)
            if serves.key_mask:
                streamed(numbers, f"{key}/masked state", mechanism, length, key_mask=keep)
            if serves.marks:
                streamed(numbers, f"{key}/marked state", mechanism, length, marks=marked(batch, length, False))
        if serves.prefix if causal else serves.cross:
            called(numbers, f"{key}/last queries", mechanism, inputs(mechanism, 5, length, batch))
        with numbers.attempt(f"{key}/shared keys"):
            grouped = built(length, kv_count=1)
            called(numbers, f"{key}/shared keys", grouped, inputs(grouped, length, length, batch))
        single = built(length, torch.float32)
        called(numbers, f"{key}/float32", single, inputs(single, length, length, batch, torch.float32))
    training = built(SHORT).train()
    for turn in range(3):
        called(numbers, f"{root}/training/turn {turn}", training, inputs(training, SHORT, SHORT, 2))
    for buffer, y in training.named_buffers():
        numbers.add(f"{root}/training/buffer {buffer}", y)
    if serves.dropout:
        dropping = built(SHORT, dropout=0.3).train()
        called(numbers, f"{root}/dropout", dropping, inputs(dropping, SHORT, SHORT, 2))
    if facts.stochastic:
        again = built(SHORT)
        again.redraw(torch.Generator().manual_seed(5))
        called(numbers, f"{root}/redrawn", again, inputs(again, SHORT, SHORT, 2))


def far_numbers(numbers: Numbers, name: str, options: Options, causal: bool) -> None:
    """Values and gradients of a sequence that engines lay out as they do long ones."""
    key = f"{root_of(name, options, causal)}/{FAR}"
    with numbers.attempt(key):
        for dtype in (torch.float64, torch.float32):
            mechanism: Any = moved(regard.build(name, heads_of(causal, FAR), **options), dtype)
            x = inputs(mechanism, FAR, FAR, 1, dtype)
            called(numbers, f"{key}/{dtype}".replace("torch.", ""), mechanism, x)
            if mechanism.info.supports.key_mask and dtype == torch.float64:
                called(numbers, f"{key}/masked", mechanism, x, key_mask=holes(1, FAR))


def mechanisms(numbers: Numbers, pattern: str) -> None:
    for name in catalog.names(pattern):
        started = time.process_time()
        cls, _ = catalog.resolve(name)
        samples, others = option_sets(cls)
        for causal in (True, False):
            for options in [*samples, *others]:
                with numbers.attempt(root_of(name, options, causal)):
                    mechanism_numbers(numbers, name, options, causal)
            for options in [samples[0], {}] if samples[0] else [{}]:
                far_numbers(numbers, name, options, causal)
        print(f"{name}: {len(samples)} + {len(others)} option sets, {time.process_time() - started:.1f} s", flush=True)


# ---------------------------------------------------------------------------------------------------------- layers


def mixes(numbers: Numbers) -> None:
    """Different mechanisms on different heads, as mechanisms."""
    for spec, causal, kv_count in (
        ("local(window=3):2 + linear:2", True, None),
        ("local(window=3):2 + softmax:2", True, 2),
        ("softmax:1 + linear:2 + local(window=2, dilation=3):1", True, None),
        ("lsh(rounds=2, bucket_size=8):2 + vector_quantized(num_codes=8, block_size=5):2", True, None),
        ("linear:2 + vector_quantized(num_codes=8, block_size=5):2", True, None),
        ("performer:2 + rfa(num_features=32):2", False, 2),
        ("longformer(window=3):2 + bigbird(block_size=2, num_random=2):2", False, None),
        ("softmax:3 + cosine:1", False, None),
    ):
        key = f"mix/{spec}/{'causal' if causal else 'bidirectional'}"
        with numbers.attempt(key):
            mechanism: Any = moved(regard.build(spec, heads_of(causal, SHORT, count=4, kv_count=kv_count)))
            x, keep = inputs(mechanism, SHORT, SHORT, 2), holes(2, SHORT)
            called(numbers, f"{key}/plain", mechanism, x)
            called(numbers, f"{key}/masked", mechanism, x, key_mask=keep)
            called(numbers, f"{key}/training", mechanism.train(), x)
            mechanism.eval()
            if mechanism.info.supports.bias:
                bias = ScoreBias(high=SHORT - 1, curve=drawn(4, 2 * SHORT - 1, seed="curve"))
                called(numbers, f"{key}/curve", mechanism, x, bias=bias)
            if mechanism.info.supports.state and causal:
                start = partial(mechanism.initial_state, 2, dtype=torch.float64)
                in_pieces(
                    numbers, f"{key}/state", "values", start, (0, 9, SHORT),
                    lambda piece, state, m=mechanism, x=x, keep=keep: m(
                        *(y[:, :, piece] for y in x), key_mask=keep[:, piece], state=state
                    ),
                )  # fmt: skip


LAYERS: dict[str, Kwargs] = {
    "rotary": {"spec": "softmax", "position": "rotary"},
    "rotary halves": {"spec": "linear", "position": "rotary(layout=halves, fraction=0.5)"},
    "rotary local": {"spec": "local(window=3)", "position": "rotary", "kv_heads": 2},
    "rotary mix": {"spec": "local(window=3):2 + linear:2", "position": "rotary"},
    "alibi": {"spec": "softmax", "position": "alibi"},
    "alibi local": {"spec": "local(window=3)", "position": "alibi", "kv_heads": 2},
    "t5_bias": {"spec": "softmax(scale=1.0)", "position": "t5_bias"},
    "t5_bias strided": {"spec": "strided(stride=4)", "position": "t5_bias"},
    "transformer_xl": {"spec": "softmax", "position": "transformer_xl"},
    "transformer_xl local": {"spec": "local(window=3)", "position": "transformer_xl"},
    "shaw_keys": {"spec": "softmax", "position": "shaw_keys"},
    "sinusoidal": {"spec": "linear", "position": "sinusoidal"},
    "learned": {"spec": "softmax", "position": "learned", "bias": True, "output_bias": False},
    "memory": {"spec": "softmax", "position": "transformer_xl", "memory": "recent(length=5)"},
    "memory local": {"spec": "local(window=3)", "position": "rotary", "memory": "recent(length=5)"},
    "widths": {"spec": "softmax", "key_dim": 6, "value_dim": 5},
    "queries of another width": {"spec": "additive", "key_dim": 6, "value_dim": 5, "query_dim": 4},
    "shared query and key": {"spec": "lsh(rounds=2, bucket_size=8)"},
    "no keys": {"spec": "dense_synthesizer"},
    "values alone": {"spec": "uniform"},
    "no projections": {"spec": "softmax", "projections": "none"},
    "bidirectional": {"spec": "local(window=3)", "causal": False, "position": "rotary"},
    "dropout": {"spec": "softmax", "dropout": 0.3},
    "codes": {"spec": "vector_quantized(num_codes=8, block_size=5)"},
    "cross": {"spec": "softmax", "context_dim": 10},
    "cross linear": {"spec": "linear", "context_dim": 10, "kv_heads": 2},
    "cross linformer": {"spec": "linformer(rank=4)", "context_dim": 10},
    "global longformer": {"spec": "longformer(window=3)", "causal": False, "projections": "global", "bias": True},
    "separate longformer": {"spec": "longformer(window=3)", "causal": False, "projections": "separate"},
    "global bigbird": {"spec": "bigbird(block_size=2)", "causal": False, "projections": "global", "kv_heads": 2},
    "separate etc": {"spec": "etc(window=3, max_distance=2)", "causal": False, "projections": "separate", "bias": True},
    "global etc alibi": {
        "spec": "etc(window=3, max_distance=2)", "causal": False, "projections": "global", "position": "alibi",
    },
    "global longformer rotary": {
        "spec": "longformer(window=3)", "causal": False, "projections": "global", "position": "rotary",
    },
}  # fmt: skip


def layers(numbers: Numbers) -> None:
    """Layers around mechanisms: projections, positions, memory, rows of global tokens."""
    for name, options in LAYERS.items():
        with numbers.attempt(f"layer/{name}"):
            layer_numbers(numbers, f"layer/{name}", options)


def layer_numbers(numbers: Numbers, key: str, options: Kwargs) -> None:
    given = {"heads": 4, "causal": "context_dim" not in options, "max_length": BUILT_FOR, "seed": 3, **options}
    layer: Any = moved(AttentionLayer(16, **given))
    x, context = drawn(2, SHORT, 16, seed="x"), drawn(2, 9, 10, seed="context")
    cross = "context_dim" in options
    supports = layer.attention.info.supports

    def call(what: str, **given: Any) -> None:
        with numbers.attempt(f"{key}/{what}"):
            leaf, source = x.clone().requires_grad_(), context.clone().requires_grad_()
            got = layer(leaf, source, **given) if cross else layer(leaf, **given)
            numbers.add(f"{key}/{what}/hidden", got.hidden)
            numbers.add(f"{key}/{what}/memory", got.memory)
            for loss, y in got.losses.items():
                numbers.add(f"{key}/{what}/loss {loss}", y)
            total = signed(got.hidden, what) + sum(got.losses.values())
            own = {"x": leaf, **({"context": source} if cross else {})}
            numbers.gradients(f"{key}/{what}", total, own | dict(layer.named_parameters()))

    keys = 9 if cross else SHORT
    call("plain")
    if supports.key_mask:
        call("masked", key_mask=holes(2, keys))
    if supports.marks:
        call("marked", marks=marked(2, keys, True))
        call("marked and masked", marks=marked(2, keys, False), key_mask=holes(2, keys))
    if options.get("position", "").startswith(("rotary", "learned", "sinusoidal")) and "memory" not in options:
        call("placed", positions=torch.arange(2, SHORT + 2))
    layer.train()
    call("training")
    layer.eval()
    with numbers.attempt(f"{key}/prepared"), torch.no_grad():
        if cross:
            numbers.add(f"{key}/prepared/hidden", layer(x, state=layer.prepare(context)).hidden)
    with numbers.attempt(f"{key}/segments"), torch.no_grad():
        if layer.memory is not None:
            memory = layer.memory.initial_state(2, dtype=torch.float64)
            for at, piece in enumerate((slice(0, 6), slice(6, SHORT))):
                got = layer(x[:, piece], memory=memory)
                memory = got.memory
                numbers.add(f"{key}/segments/hidden {at}", got.hidden)
                numbers.add(f"{key}/segments/memory {at}", memory["hidden"])
    if supports.state and layer.heads.causal:
        start = partial(layer.initial_state, 2, dtype=torch.float64)
        cuts = (0, 9, 10, SHORT)
        in_pieces(numbers, f"{key}/state", "hidden", start, cuts, lambda piece, state: layer(x[:, piece], state=state))


def functions(numbers: Numbers) -> None:
    """Attention as a function, and its matrix."""
    q, k, v = (drawn(1, 2, SHORT, 8, seed=name) for name in "qkv")
    for spec in ("softmax", "local(window=3)", "linear", "fixed(stride=4, columns=2)", "relu_squared", "uniform"):
        with numbers.attempt(f"attend/{spec}"):
            numbers.add(f"attend/{spec}/values", regard.attend(q, k, v, spec, causal=True))
        with numbers.attempt(f"weights/{spec}"):
            mechanism = moved(regard.build(spec, Heads(count=2, key_dim=8, causal=True, max_length=BUILT_FOR)))
            numbers.add(f"weights/{spec}/matrix", regard.weights(mechanism, q, k))  # pyright: ignore[reportArgumentType]
    with numbers.attempt("attend/scaled"):
        numbers.add("attend/scaled/values", regard.attend(q, k, v, scale=0.7, key_mask=holes(1, SHORT)))


# ---------------------------------------------------------------------------------------------------------- models


TINY: Kwargs = {"dim": 32, "layers": 2, "heads": 4, "head_dim": 8, "max_length": 40, "mlp_dim": 48, "seed": 3}
TOKENS, WIDTH, CLASSES = 31, 12, 5


def tokens_of(batch: int, length: int, seed: str = "tokens") -> Tensor:
    return (drawn(batch, length, seed=seed).abs() * 997).long() % TOKENS


def configurations() -> Iterator[tuple[str, Any]]:
    """A small configuration of every preset, and of a decoder and an encoder with each mechanism."""
    for name in presets.names():
        arguments = inspect.signature(presets.function(name)).parameters
        if "encoders" in {*arguments} | presets.kind(name).__dataclass_fields__.keys():
            own = {key: x for key, x in {"dim": 32, "heads": 4, "layers": 1, "seed": 3}.items() if key in arguments}
            yield f"preset {name}", presets.build(name, **own)
            continue
        published = presets.build(name)
        reads: Kwargs = {"input_dim": WIDTH} if published.vocab_size == 0 else {"vocab_size": TOKENS}
        shape = {key: x for key, x in TINY.items() if key != "mlp_dim" or published.mlp != "none"}
        if getattr(published, "targets", None) is not None:
            reads["targets"] = TOKENS
        yield f"preset {name}", presets.build(name, **shape, **reads)
        if "gate" in arguments:
            yield f"preset {name}(gate=False)", presets.build(name, **shape, **reads, gate=False)
    for name in catalog.names():
        cls, _ = catalog.resolve(name)
        spec = label(name, cls.samples[0])
        for position in ("rotary", "alibi", "none"):
            small: Kwargs = {**TINY, "layers": 1, "vocab_size": TOKENS, "position": position, "attention": (spec,)}
            yield f"decoder {spec} {position}", lambda small=small: ModelConfig(**small)
            yield f"encoder {spec} {position}", lambda small=small: EncoderConfig(**small)
    hybrid = ("local(window=3):2 + linear:2", "softmax", "vector_quantized(num_codes=8, block_size=5)")
    yield "hybrid", ModelConfig(**{**TINY, "layers": 3}, vocab_size=TOKENS, attention=hybrid, short_convolution=3)
    yield (
        "grouped",
        ModelConfig(**TINY, vocab_size=TOKENS, kv_heads=2, checkpoint="block", norm_kind="rms", mlp="swiglu"),
    )
    yield (
        "crossing",
        EncoderDecoderConfig(
            **TINY, vocab_size=TOKENS, attention=("linear",), encoder_attention=("local(window=3)",),
            cross_attention=("linear",), position="sinusoidal",
        ),
    )  # fmt: skip


def model_of(config: Any) -> nn.Module:
    """The model of a configuration, with the head that its inputs call for."""
    match config:
        case ModelConfig():
            return LanguageModel(config)
        case EncoderDecoderConfig():
            return EncoderDecoder(config)
        case EncoderConfig():
            if config.input_dim or config.pooling == "mean":
                return Classifier(Encoder(config), classes=CLASSES)
            return MaskedLanguageModel(Encoder(config))
        case _:
            return FusionClassifier(config, classes=CLASSES)


def models(numbers: Numbers) -> None:
    """Logits, gradients, states and generated tokens of small models."""
    for name, config in configurations():
        with numbers.attempt(f"model/{name}"):
            model_numbers(numbers, f"model/{name}", model_of(config() if callable(config) else config))


def trained(numbers: Numbers, key: str, model: Any, call: Callable[[], Any]) -> None:
    """Logits, losses and gradients, in evaluation and in training."""
    for mode in ("evaluation", "training"):
        with numbers.attempt(f"{key}/{mode}"):
            model.train(mode == "training")
            got = call()
            numbers.add(f"{key}/{mode}/logits", got.logits)
            for loss, x in got.losses.items():
                numbers.add(f"{key}/{mode}/loss {loss}", x)
            logits = got.logits.reshape(-1, got.logits.shape[-1])
            total = cross_entropy(logits, torch.arange(len(logits)) % logits.shape[-1]) + sum(got.losses.values())
            numbers.gradients(f"{key}/{mode}", total, dict(model.named_parameters()))
    model.eval()


def model_numbers(numbers: Numbers, key: str, built: nn.Module) -> None:
    model: Any = moved(built)
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            numbers.add(f"{key}/buffer {name}", buffer)
    x, keep = tokens_of(2, SHORT), torch.arange(SHORT) < torch.tensor([[SHORT], [9]])
    match model:
        case LanguageModel():
            trained(numbers, key, model, lambda: model(x))
            decoded(numbers, key, model, x)
        case EncoderDecoder():
            source = tokens_of(2, 11, "source")
            trained(numbers, key, model, lambda: model(source, x))
            crossed(numbers, key, model, source, x)
        case FusionClassifier():
            given = [
                drawn(2, SHORT, one.input_dim, seed=f"input {at}") if one.input_dim else x % one.vocab_size
                for at, one in enumerate(model.config.encoders)
            ]
            trained(numbers, key, model, lambda: model(given))
        case _:
            config = model.encoder.config
            content = drawn(2, SHORT, config.input_dim, seed="vectors") if config.input_dim else x
            trained(numbers, key, model, lambda: model(content))
            with numbers.attempt(f"{key}/masked"), torch.no_grad():
                numbers.add(f"{key}/masked/logits", model(content, key_mask=keep).logits)
            if model.reads_marks != "none":
                marks = marked(2, SHORT, segments=model.reads_marks == "segments")
                trained(numbers, f"{key}/marked", model, lambda: model(content, marks=marks))


def decoded(numbers: Numbers, key: str, model: Any, x: Tensor) -> None:
    """A prefill and the rest with a state; tokens, greedy, drawn, and by beams."""
    if model.streams:
        start = partial(model.initial_state, 2)
        in_pieces(
            numbers, f"{key}/state", "logits", start, (0, 9, SHORT), lambda at, state: model(x[:, at], state=state)
        )
        with numbers.attempt(f"{key}/beams"):
            rows = beam_search(model, x[:, :4], max_new_tokens=6, beams=2)
            numbers.add(f"{key}/beams/tokens", torch.cat([one.tokens for row in rows for one in row]))
    with numbers.attempt(f"{key}/generated"):
        prompts = [[1, 2, 3, 4, 5], [7, 8]]
        for what, given in (("greedy", {"temperature": 0}), ("drawn", {"top_k": 9})):
            rows = generate(model, prompts, max_new_tokens=8, **given)
            numbers.add(f"{key}/generated/{what}", torch.cat([row.tokens for row in rows]))


def crossed(numbers: Numbers, key: str, model: Any, source: Tensor, x: Tensor) -> None:
    """The source prepared once, then tokens with a state; and by beams."""
    start = partial(model.prepare, source)
    in_pieces(numbers, f"{key}/state", "logits", start, (0, 9, SHORT), lambda at, state: model.decode(x[:, at], state))
    with numbers.attempt(f"{key}/beams"):
        rows = beam_search(model, source, max_new_tokens=6, beams=2)
        numbers.add(f"{key}/beams/tokens", torch.cat([one.tokens for row in rows for one in row]))


# -------------------------------------------------------------------------------------------------------- commands


PARTS: dict[str, Callable[[Numbers], None]] = {
    "mixes": mixes,
    "layers": layers,
    "functions": functions,
    "models": models,
}


def record(path: Path, pattern: str) -> int:
    """Write the numbers of the regard that this process imports; 1 if anything failed other than by a refusal."""
    torch.set_num_threads(1)
    numbers = Numbers()
    mechanisms(numbers, pattern)
    if pattern == "*":
        for name, part in PARTS.items():
            started = time.process_time()
            part(numbers)
            print(f"{name}: {time.process_time() - started:.1f} s", flush=True)
    save_file(numbers, path)
    size = path.stat().st_size / 1e6
    print(f"{len(numbers):,} tensors, {size:.0f} MB, {numbers.failures} failures; {Path(regard.__file__).parent}")
    return 1 if numbers.failures else 0


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number; infinite where NaN, shapes or dtypes differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    if not one.numel() or torch.equal(one, other):
        return 0.0
    strange = ~(one.isfinite() & other.isfinite())
    if not torch.allclose(one[strange], other[strange], rtol=0, atol=0, equal_nan=True):
        return float("inf")
    one, other = (x.double().masked_fill(strange, 0) for x in (one, other))
    return float((one - other).abs().max() / one.abs().max().clamp_min(FLOOR))


def compare(before: Path, after: Path, allowed: Sequence[str]) -> int:
    """Print every difference; `DIFFERENT` if there is one."""
    found: list[tuple[str, str]] = []
    identical = close = 0
    with safe_open(before, "pt") as old, safe_open(after, "pt") as new:
        ours, theirs = set(old.keys()), set(new.keys())
        found += [("missing", key) for key in sorted(ours - theirs)] + [("new", key) for key in sorted(theirs - ours)]
        for key in sorted(ours & theirs):
            one, other = old.get_tensor(key), new.get_tensor(key)
            size = difference(one, other)
            if size > TOLERANCE.get(one.dtype, 0.0):
                found.append((f"{size:.1e}", key))
            elif size:
                close += 1
            else:
                identical += 1
    set_aside = [pair for pair in found if any(fnmatch.fnmatchcase(pair[1], each) for each in allowed)]
    found = [pair for pair in found if pair not in set(set_aside)]
    for what, key in found:
        print(f"{what:8} {key}")
    kinds = Counter((what if what in ("missing", "new") else "different") for what, _ in found)
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "no difference"
    print(f"{summary}; {identical} identical, {close} within rounding, {len(set_aside)} set aside by --except")
    return DIFFERENT if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    writing = commands.add_parser("record")
    writing.add_argument("out", type=Path)
    writing.add_argument("--names", default="*", help="a pattern of mechanisms; then nothing else is recorded")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--except", dest="allowed", nargs="+", default=[], metavar="PATTERN")
    options = parser.parse_args()
    match options.command:
        case "record":
            return record(options.out, options.names)
        case "compare":
            return compare(options.before, options.after, options.allowed)
        case _:
            parser.print_usage()
            return 0


if __name__ == "__main__":
    sys.exit(main())
