"""What a file names is imported only where somebody says so; what is typed is."""

import os
import sys
from pathlib import Path

import pytest

import regard
from regard import specs
from regard.core.errors import ConfigError
from regard.files import consent
from regard.models import EncoderConfig, EncoderDecoderConfig, ModelConfig
from regard_lab.tasks import CopyConfig, MaskedConfig, TranslationConfig
from regard_lab.training import RunConfig, TrainingConfig, evaluate, load, resume, toml, train

MINE = """
from regard.attention.dense.uniform import Uniform

open(__file__ + ".ran", "a").close()


class Mine(Uniform):
    window: int = 4
    \"\"\"nothing\"\"\"


def score(q, k):
    return q @ k.mT
"""


@pytest.fixture
def module(tmp_path, monkeypatch, request) -> str:
    """A module of its own for every test, in the working folder."""
    name = f"mine_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return name


@pytest.fixture
def forget(monkeypatch):
    """As a new process: nothing was agreed to, nothing is imported."""

    def call(module: str) -> None:
        monkeypatch.setattr(consent, "_agreed", set())
        sys.modules.pop(module, None)
        for file in Path().glob("*.ran"):
            file.unlink()

    return call


def ran(module: str) -> bool:
    return Path(f"{module}.py.ran").exists()


def tiny(*attention: str, **training) -> RunConfig:
    return RunConfig(
        model=ModelConfig(dim=8, heads=2, layers=1, attention=attention, position="sinusoidal"),
        task=CopyConfig(vocab_size=8, length=8, num_examples=8, num_held_out=4),
        training=TrainingConfig(steps=2, batch_size=4, warmup=0, threads=1, **training),
    )


HIDDEN = [
    "{0}:Mine",
    "  {0}:Mine  ",
    "{0}:Mine(window=3)",
    "softmax:1 + {0}:Mine:1",
    "score(function='{0}:score')",
    "score(function='{0}\\x3ascore')",
    "score(function='{0}' ':score')",
    "softmax:1 + score(function='{0}\\x3ascore'):1",
    "{0}:Mine(name='other\\x3athing')",
]


@pytest.mark.parametrize("spec", HIDDEN)
def test_paths_of_a_specification_are_found_however_they_are_written(spec):
    assert specs.paths(spec.format("evil"))[0].startswith("evil:")


@pytest.mark.parametrize(
    "spec", ["softmax", "local(window=4):2 + linear:2", "pattern(rule='window(4) | strided(8)')", "?"]
)
def test_what_names_no_path(spec):
    assert specs.paths(spec) == []


def test_paths_are_found_in_nested_data():
    table = {"a": ["x:Y", {"b": ("z:W", 3, None)}], "c": "softmax"}
    assert specs.paths(table) == ["x:Y", "z:W"]


@pytest.mark.parametrize("spec", HIDDEN)
def test_a_strangers_configuration_imports_nothing(module, tmp_path, spec):
    path = tmp_path / "config.toml"
    toml.save(tiny(spec.format(module)), path)
    with pytest.raises(ConfigError, match=r"config.toml names mine_\d+:.* --trust .*trust=True"):
        toml.load(path)
    with pytest.raises(ConfigError, match="trust=True"):
        toml.layer(RunConfig(), path)
    assert toml.load(path, trust=True) == toml.layer(RunConfig(), path, trust=True) == tiny(spec.format(module))
    assert not ran(module)  # reading builds nothing


CONFIGS = {
    "attention": lambda spec: tiny(spec),
    "encoder": lambda spec: RunConfig(EncoderConfig(attention=(spec,)), MaskedConfig()),
    "encoder_attention": lambda spec: RunConfig(EncoderDecoderConfig(encoder_attention=(spec,)), TranslationConfig()),
    "cross_attention": lambda spec: RunConfig(EncoderDecoderConfig(cross_attention=(spec,)), TranslationConfig()),
    "position": lambda spec: RunConfig(ModelConfig(position=spec)),
}


@pytest.mark.parametrize("place", CONFIGS)
def test_every_place_of_a_configuration_is_looked_at(tmp_path, place):
    path = tmp_path / "config.toml"
    toml.save(CONFIGS[place]("stranger:Thing"), path)
    with pytest.raises(ConfigError, match="names stranger:Thing"):
        toml.load(path)


def test_a_run_of_a_stranger_imports_nothing_until_it_is_trusted(module, forget):
    train(tiny(f"{module}:Mine(window=3)"), "run")
    forget(module)
    for call in (load, evaluate, resume):
        with pytest.raises(ConfigError, match=r"so the module mine_.* would be imported and run"):
            call("run")
    assert not ran(module)
    assert load("run", trust=True).model.mechanisms[0].window == 3
    assert ran(module)
    assert evaluate("run", trust=True)["tokens"] > 0
    assert resume("run", trust=True).evaluation["step"] == 2


def test_what_this_process_was_given_it_may_read_back(module, forget):
    config = tiny(f"{module}:Mine")
    result = train(config, "run")
    assert load(result.path).step == 2
    assert evaluate(result.path)["tokens"] > 0
    assert resume(result.path).evaluation["step"] == 2
    forget(module)
    assert train(config, "run", resume=True).evaluation["step"] == 2  # the configuration is typed again


def test_another_configuration_than_the_runs_imports_nothing_of_it(module, forget):
    train(tiny(f"{module}:Mine"), "run")
    forget(module)
    with pytest.raises(ConfigError, match="has another configuration"):
        train(tiny("softmax"), "run", resume=True)
    assert not ran(module)


def test_a_configuration_that_names_the_librarys_own_mechanisms_needs_no_consent(tmp_path):
    path = tmp_path / "config.toml"
    toml.save(tiny("regard.attention.dense.uniform:Uniform"), path)
    assert toml.load(path).model.attention == ("regard.attention.dense.uniform:Uniform",)


def test_the_working_folder_is_searched_for_a_path_alone_and_last(module):
    regard.names()
    regard.build("softmax", regard.Heads(count=1, key_dim=4))
    before = list(sys.path)
    regard.build("regard.attention.dense.uniform:Uniform", regard.Heads(count=1, key_dim=4))
    assert sys.path == before
    regard.build(f"{module}:Mine", regard.Heads(count=1, key_dim=4))
    assert sys.path == [*before, os.getcwd()]


def test_a_path_that_is_no_path_imports_nothing(module):
    with pytest.raises(ConfigError, match="module:name"):
        regard.build(f"score(function={module})", regard.Heads(count=1, key_dim=4))
    assert not ran(module)


def test_a_module_that_fails_is_a_mistake_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "failing_module.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match="cannot import 'failing_module:Thing': ZeroDivisionError: division by zero"):
        regard.build("failing_module:Thing", regard.Heads(count=1, key_dim=4))
