"""Options as class attributes: what a class body declares is what Python, messages and type checkers see."""

import copy
import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Interval, Le, Lt, MultipleOf
from torch import Tensor, nn

import regard
from regard import catalog, memory
from regard.attention.dense.cosine import Cosine
from regard.attention.dense.softmax import Softmax
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads
from regard.core.options import Configured, Options, validate, weight
from regard.memory import build_memory
from regard.models import EncoderConfig, EncoderDecoderConfig, ModelConfig
from regard.specs import Spec
from regard.testing.checks.configuration import misfits
from regard_lab.tasks.config import TextConfig
from regard_lab.training import TrainingConfig

HEADS = Heads(count=2, key_dim=8, causal=True)
TENSORS = torch.randn(3, 1, 2, 5, 4)


class Template(Configured):
    """Options that others inherit."""

    depth: Annotated[int, Ge(0)] = 2
    """layers"""
    mode: Literal["fast", "slow", "exact"] = "fast"
    """how"""
    weight: Tensor = weight()
    """made by the instance"""
    count: ClassVar[int] = 7
    plain = 3
    _hidden: int = 4

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.configure(options, "thing")


class Narrowed(Template):
    """Fewer modes, another default, one option more."""

    mode: Literal["slow", "exact"] = "slow"
    """how, but never fast"""
    width: float | tuple[Annotated[int, Ge(1)], ...] | None = None
    """of a layer, or of each"""
    inner: nn.Module | None = None
    """whose weights belong to it"""


def test_defaults_leave_the_class_and_become_attributes_of_the_instance():
    for name in ("depth", "mode", "weight"):
        assert name not in vars(Template), "a value of the class would hide what a module stores"
    assert (Template.count, Template.plain, Template._hidden) == (7, 3, 4)
    assert Template.defaults == {"depth": 2, "mode": "fast"}
    thing = Template(depth=5)
    assert (thing.depth, thing.mode) == (5, "fast")
    assert dict(thing.options) == {"depth": 5, "mode": "fast"}
    assert repr(thing.options) == "depth=5, mode='fast'"
    assert not hasattr(thing, "weight")
    thing.weight = nn.Parameter(torch.ones(3))
    assert [name for name, _ in thing.named_parameters()] == ["weight"]


def test_options_are_inherited_and_narrowed():
    assert list(Narrowed.defaults) == ["mode", "width", "inner", "depth"]
    thing = Narrowed(depth=0)
    assert (thing.depth, thing.mode, thing.width) == (0, "slow", None)
    assert Template(mode="fast").mode == "fast"
    with pytest.raises(ConfigError, match=r"thing: option mode='fast' is not valid: valid: exact, slow"):
        Narrowed(mode="fast")
    assert Template.defaults["mode"] == "fast", "a subclass leaves its template alone"


def test_options_cannot_be_changed():
    options = Template().options
    with pytest.raises(TypeError, match="does not support item assignment"):
        options["depth"] = 3  # type: ignore[index]
    source = {"depth": 1}
    kept = Options(source)
    source["depth"] = 2
    assert kept["depth"] == 1


def test_filled_checks_without_building():
    found = Narrowed.filled({"width": (1, 2)}, "thing")
    assert dict(found) == {"mode": "slow", "width": (1, 2), "inner": None, "depth": 2}
    with pytest.raises(ConfigError, match="thing has no option 'widht': did you mean 'width'"):
        Narrowed.filled({"widht": 1}, "thing")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dept": 1}, r"thing has no option 'dept': did you mean 'depth'\?"),
        ({"zzz": 1}, r"thing has no option 'zzz': valid: depth, inner, mode, width"),
        ({"depth": "2"}, r"thing: option depth='2' is not valid: Input should be a valid integer"),
        ({"depth": True}, r"thing: option depth=True is not valid: Input should be a valid integer"),
        ({"depth": -1}, r"thing: option depth=-1 is not valid: Input should be greater than or equal to 0"),
        ({"mode": "slowly"}, r"thing: option mode='slowly' is not valid: did you mean 'slow'\?"),
        ({"mode": "zzz"}, r"thing: option mode='zzz' is not valid: valid: exact, slow"),
        ({"width": (1, 0)}, r"thing: option width=\(1, 0\) is not valid: .*greater than or equal to 1"),
        ({"width": "wide"}, r"thing: option width='wide' is not valid"),
        ({"inner": 3}, r"thing: option inner=3 is not valid: Input should be an instance of Module"),
    ],
)
def test_one_wording(given, message):
    with pytest.raises(ConfigError, match=message):
        Narrowed(**given)
    with pytest.raises(ConfigError, match=message):
        Narrowed.filled(given, "thing")


def test_a_module_as_an_option_is_registered_once():
    inner = nn.Linear(2, 3)
    thing = Narrowed(inner=inner)
    assert thing.inner is inner
    assert thing.options["inner"] is inner
    assert sorted(name for name, _ in thing.named_parameters()) == ["inner.bias", "inner.weight"]
    twin = copy.deepcopy(thing)
    assert twin.inner is twin.options["inner"]
    assert twin.inner is not inner


def test_state_dicts_hold_weights_and_no_options():
    assert list(Cosine(HEADS, gain=3.0).state_dict()) == ["log_gain"]
    assert list(Softmax(HEADS, scale=2.0).state_dict()) == []


def test_the_reference_is_an_option_of_every_mechanism():
    assert Cosine.defaults["impl"] == "auto"
    info = Softmax.describe({"impl": "reference"})
    assert not info.supports.dropout
    assert not info.mergeable
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    found = Softmax(HEADS, impl="reference")(q, k, v).values
    torch.testing.assert_close(found, Softmax(HEADS)(q, k, v).values)


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (int, []),
        (Any, None),
        (Annotated[int, Ge(1)] | None, [0]),
        (Annotated[float, Gt(0), Lt(1)], [0.0, 1.0]),
        (Annotated[int, Ge(2), Le(5), MultipleOf(2)], [1, 6, 3]),
        (Annotated[int, Interval(ge=1, le=3)], [0, 4]),
        (Literal["a", "b"], ["no such choice"]),
        (Literal["a"] | str, []),
        (tuple[Annotated[int, Ge(1)], ...] | int, [(0,)]),
    ],
)
def test_the_check_of_options_tries_what_does_not_fit(hint, values):
    tried = list(misfits(hint))
    if values is None:
        assert tried == []
        return
    assert type(tried[0]) is object
    rest = [value for value in tried[1:] if not (isinstance(value, tuple) and type(value[0]) is object)]
    assert rest == values
    for value in tried:
        with pytest.raises(ConfigError):
            validate("thing", "option", value, hint)


RIGHT_AND_WRONG = """
    from regard.attention.dense.cosine import Cosine
    from regard.attention.dense.softmax import Softmax
    from regard.core.info import Heads

    heads = Heads(count=2, key_dim=8)
    Cosine(heads)
    Cosine(heads=heads, gain=3.0, learned=False, impl="reference")
    Softmax(heads, scale=None, impl="auto")
    gain: float = Cosine(heads).gain
    impl: str = Softmax(heads).impl
    Cosine(heads, gian=3.0)  # wrong
    Cosine(heads, gain="3")  # wrong
    Cosine(heads, 3.0)  # wrong
    Cosine(heads, impl="tiles")  # wrong
    Softmax(heads, impl="tiles")  # wrong
    Softmax(scale=0.5)  # wrong
    Cosine(heads, log_gain=3.0)  # wrong
"""


def test_type_checkers_see_options(tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed; it comes with the extra `test`")
    source = textwrap.dedent(RIGHT_AND_WRONG).lstrip()
    (tmp_path / "options.py").write_text(source, encoding="utf-8")
    settings = {"extraPaths": [str(Path(regard.__file__).parents[1])], "typeCheckingMode": "basic"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not start here: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = sorted({each["range"]["start"]["line"] for each in found if each["severity"] == "error"})
    assert lines == [at for at, line in enumerate(source.splitlines()) if line.endswith("# wrong")], found


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("cosine(gain=1e999)", {}, "gain=inf is not valid: Input should be a finite number"),
        ("cosine", {"gain": float("nan")}, "not valid"),
        ("cosine", {"gain": torch.tensor(3.0)}, "plain number, not torch.Tensor"),
        ("cosine", {"gain": np.float64(3)}, "plain number, not numpy.float64"),
        ("cosine", {"gain": 10**400}, "not valid"),
        ("local", {"window": 10**30}, "64 bits"),
        ("local(window=99999999999999999999)", {}, "64 bits"),
        ("local", {"window": np.int64(3)}, "plain number, not numpy.int64"),
        ("local", {"window": 1 << 62}, r"at most 2\^40"),
        ("pattern(rule='window(99999999999999999999)')", {}, r"at most 2\^40"),
    ],
)
def test_numbers_are_plain_and_finite(spec, options, message):
    with pytest.raises(ConfigError, match=message):
        regard.build(spec, HEADS, **options)


@pytest.mark.parametrize("value", [float("inf"), (1, float("nan")), [1 << 63], {"a": np.float64(1)}, -(1 << 63) - 1])
def test_numbers_inside_of_values_are_looked_at(value):
    with pytest.raises(ConfigError, match="thing: option x="):
        validate("thing", "x", value, Any)
    validate("thing", "x", [(1, 2.5), {"a": -(1 << 63)}, (1 << 63) - 1, True, None, "inf", torch.nn.Linear(1, 1)], Any)


@pytest.mark.parametrize("factor", [1 << 30, 1 << 40])
def test_the_reach_of_a_dilated_window_does_not_overflow(factor):
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0))
    heads = Heads(count=2, key_dim=8)
    wide = regard.build("local", heads, window=factor, dilation=2).eval()
    far = regard.build("local", heads, window=99, dilation=2).eval()
    assert torch.equal(wide(q, k, v).values, far(q, k, v).values)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"causal": "no"}, "Heads.causal must be True or False, got 'no'"),
        ({"seed": 1.5}, "Heads.seed must be an integer of 64 bits, got 1.5"),
        ({"seed": 1 << 70}, "Heads.seed must be an integer of 64 bits"),
        ({"count": True}, "Heads.count must be an integer of 64 bits, got True"),
        ({"key_dim": np.int64(8)}, "Heads.key_dim must be an integer of 64 bits"),
        ({"kv_count": 1.0}, "Heads.kv_count must be an integer of 64 bits"),
        ({"max_length": False}, "Heads.max_length must be an integer of 64 bits"),
        ({"value_dim": 0}, "Heads.value_dim must be at least 1, got 0"),
        ({"dropout": "0.1"}, "Heads.dropout must be a number, got '0.1'"),
        ({"dropout": float("nan")}, r"Heads.dropout must be in \[0, 1\), got nan"),
    ],
)
def test_heads_of_another_type_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Heads(**{"count": 2, "key_dim": 8, **wrong})


def test_a_mechanism_serves_heads():
    with pytest.raises(ConfigError, match=r"mechanism cosine serves Heads.*, got 3"):
        Cosine(3)  # type: ignore[arg-type]


def built(kind: str, name: str, options: dict[str, Any]) -> nn.Module:
    if kind == "memory":
        return build_memory(str(Spec(name, options)), HEADS, 16)
    causal = regard.describe(name).supports.causal
    return regard.build(str(Spec(name, options)), replace(HEADS, causal=causal, max_length=16))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("mechanism", name) for name in regard.names()] + [("memory", name) for name in memory.names()],
)
def test_a_whole_number_stands_for_a_number(kind, name):
    """`gate=-4` is `gate=-4.0`: a weight that begins with an option is no integer."""
    cls = memory.memory_class(name) if kind == "memory" else catalog.resolve(name)[0]
    for sample in ({}, *cls.samples):
        for option, value in {**cls.defaults, **sample}.items():
            for whole in (round(value), 0, 1) if type(value) is float else ():
                given = {**sample, option: whole}
                try:
                    built(kind, name, {**given, option: float(whole)})
                except (ConfigError, UnsupportedError):
                    continue
                made = built(kind, name, given)
                assert all(x.is_floating_point() for x in made.parameters()), given


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: regard.AttentionLayer(8, "softmax", num_heads=2),
            "AttentionLayer has no option 'num_heads': .*'heads'",
        ),
        (lambda: regard.AttentionLayer(embed_dim=8, spec="softmax", heads=2), "'embed_dim': did you mean 'dim'"),
        (lambda: regard.AttentionLayer(8, "softmax", heads=2, dropout_p=0.1), "did you mean 'dropout'"),
        (lambda: regard.AttentionLayer(8, "softmax", 2), "too many positional .* by name: dim, spec, heads"),
        (lambda: regard.AttentionLayer(8, "local(window_size=4)", heads=2), "mechanism local .* did you mean 'window'"),
        (lambda: regard.AttentionLayer(8, "softmax(is_causal=True)", heads=2), r"AttentionLayer\(..., causal=...\)"),
        (lambda: regard.attend(*TENSORS, is_causal=True), "attend has no option 'is_causal': did you mean 'causal'"),
        (lambda: regard.attend(*TENSORS, key_padding_mask=None), r"'key_mask'\? \(True = real, so ~key_padding_mask\)"),
        (lambda: regard.build("softmax", num_heads=2), "build has no option 'num_heads': did you mean 'heads'"),
        (lambda: regard.build("softmax", HEADS, num_heads=2), r"layer.s, AttentionLayer\(..., heads=...\)"),
        (lambda: regard.Heads(nhead=2, head_dim=4), "Heads has no option 'nhead': did you mean 'count'"),
        (lambda: ModelConfig(n_layer=2), "ModelConfig has no option 'n_layer': did you mean 'layers'"),
        (lambda: EncoderConfig(d_model=2), "EncoderConfig has no option 'd_model': did you mean 'dim'"),
        (lambda: EncoderDecoderConfig(nhead=2), "EncoderDecoderConfig has no option 'nhead': did you mean 'heads'"),
        (lambda: TrainingConfig(lr=1e-3), "TrainingConfig has no option 'lr': did you mean 'learning_rate'"),
        (lambda: TextConfig(seq_len=3), "TextConfig has no option 'seq_len': did you mean 'length'"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
