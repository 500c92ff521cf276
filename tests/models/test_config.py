"""Configurations refuse what makes no sense, and derive what is left out."""

import dataclasses
import subprocess
import sys
import tomllib

import pytest

from regard.core.errors import ConfigError
from regard.models.config import ModelConfig
from regard_lab.training import RunConfig, toml


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"mlp_dim": -4}, "mlp_dim must be at least 1"),
        ({"dim": 100, "heads": 3}, "heads must divide dim.*divisors of 100: 1, 2, 4, 5, 10, 20, 25, 50, 100"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads must divide heads.*divisors of 4: 1, 2, 4"),
        ({"mlp": "glu"}, "no choice 'glu': did you mean 'gelu'"),
        ({"norm": "mid"}, "no choice 'mid'"),
        ({"norm_kind": "rsm"}, "did you mean 'rms'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\)"),
        ({"layers": 3, "attention": ("softmax", "linear")}, "one for each of the 3 layers"),
        ({"attention": ()}, "one specification"),
        ({"attention": "softmax"}, "must be a tuple"),
        ({"mlp": "none", "mlp_dim": 64}, "no use"),
        ({"memory": "recnt"}, "memory: unknown memory 'recnt': did you mean 'recent'"),
        ({"block": "recnt"}, "block: unknown block 'recnt'"),
        ({"memory": 3}, "memory: a specification is a text"),
        ({"memory": ("none", "recent", "none")}, "one for each of the 2 layers, got 3"),
        ({"memory": ("none:2", "recent")}, "one for each of the 2 layers, got 3"),
        ({"memory": "recent:3"}, "one for each of the 2 layers, got 3"),
        ({"memory": ("none:0", "recent:2")}, "memory: 'none:0': the number behind a specification is of layers"),
        ({"memory": f"none:{10**30}"}, "the number behind a specification is of layers, from 1 to 999999999"),
        ({"memory": ("none:999999999", "recent")}, "one for each of the 2 layers, got 1000000000"),
        ({"short_convolution": 1}, "at least 2"),
        ({"short_convolution": -1}, "at least 2"),
        ({"both_streams": True, "tied": False}, "is for block='reversible', which has two; got block='residual'"),
        ({"both_streams": True, "block": "reversible"}, "both_streams=True needs an output layer of its own"),
        ({"output_bias": True}, "output_bias=True needs an output layer of its own; set tied=False"),
    ],
)
def test_nonsense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**fields)


def test_one_spec_serves_every_layer() -> None:
    assert ModelConfig(layers=3).specs == ("softmax",) * 3
    hybrid = ("linear", "local(window=8)", "softmax")
    assert ModelConfig(layers=3, attention=hybrid).specs == hybrid
    assert ModelConfig(layers=1, attention=("linear",)).specs == ("linear",)


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({"mlp": "gelu"}, 384),
        ({"mlp": "swiglu"}, 256),  # 8/3 * 96
        ({"mlp": "swiglu", "dim": 100}, 272),  # 266.7 rounded up to a multiple of 8
        ({"mlp": "none"}, 0),
        ({"mlp_dim": 7}, 7),
    ],
)
def test_mlp_width(fields: dict, width: int) -> None:
    assert ModelConfig(**{"dim": 96, **fields}).mlp_width == width


def test_configurations_are_values() -> None:
    config = ModelConfig(dim=64)
    assert dataclasses.replace(config, dim=64) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.dim = 32  # type: ignore[misc]
    with pytest.raises(ConfigError, match="heads must divide"):
        dataclasses.replace(config, heads=5)


def test_configurations_and_presets_load_without_torch() -> None:
    code = (
        "import sys; from regard.models import presets; from regard.models.config import ModelConfig; "
        "[presets.build(name) for name in presets.names()]; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig(vocab_size=0, heads=0, mlp="glu", norm_eps=0.0, short_convolution=1)  # type: ignore[arg-type]
    first = [line.split()[0].rstrip(":") for line in str(caught.value).splitlines()]
    assert first == ["vocab_size", "heads", "mlp", "norm_eps", "short_convolution"]


def test_a_width_of_heads_of_its_own() -> None:
    config = ModelConfig(dim=100, heads=3, head_dim=16)
    assert config.key_dim == 16
    assert ModelConfig(dim=96, mlp="geglu").mlp_width == 256


def test_a_number_behind_a_memory_is_of_layers() -> None:
    """However it is written, each layer has its own; a model and a file of settings take it as it is."""
    spec = "memorizing(pairs=8, top=2)"
    config = ModelConfig(layers=6, memory=("none:3", spec, "recent(length=4):2"))
    assert config.memories == (None, None, None, spec, "recent(length=4)", "recent(length=4)")
    assert config.remembers
    assert ModelConfig(layers=4, memory=("none:4",)).remembers is False
    assert ModelConfig(layers=4, memory=("none", "none:2", spec)).memories == (None, None, None, spec)
    assert ModelConfig(layers=3, memory=f"{spec}:3").memories == (spec,) * 3
    assert ModelConfig(layers=3, memory=spec).memories == (spec,) * 3
    run = RunConfig(config)
    assert toml.from_table(tomllib.loads(toml.dumps(run))).model == config
