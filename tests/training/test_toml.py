import tomllib
from dataclasses import replace

import pytest

from regard.core.errors import ConfigError
from regard.models.config import ModelConfig
from regard.models.encoder_config import EncoderConfig
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard_lab.tasks import ClassificationConfig, CopyConfig, MaskedConfig, RecallConfig, TextConfig, TranslationConfig
from regard_lab.training import RunConfig, TrainingConfig, toml

ODD = 'a "quoted" \\ path\twith \x7f 宋词 and 🙂\n'


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(task=RecallConfig(num_pairs=3), training=TrainingConfig(learning_rate=1e-7, betas=(0.0, 0.999))),
        RunConfig(task=CopyConfig(), model=ModelConfig(attention=("linear", "local(window=8)"), kv_heads=2)),
        RunConfig(EncoderDecoderConfig(layers=3, encoder_layers=1, cross_attention=("linear",)), TranslationConfig()),
        RunConfig(EncoderConfig(cls_token=True, pooling="mean"), MaskedConfig(rate=0.3)),
        RunConfig(task=ClassificationConfig(data="a.npz")),
        RunConfig(task=TextConfig(corpus=ODD, separator="\n\n"), model=ModelConfig(mlp="swiglu", mlp_dim=7, seed=-3)),
    ],
)
def test_written_and_read_back_equal(config, tmp_path):
    toml.save(config, tmp_path / "config.toml")
    assert toml.load(tmp_path / "config.toml") == config


def test_absent_keys_have_their_defaults(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[task]\nname = "recall"\n[training]\nsteps = 7\nlearning_rate = 1\n')
    config = toml.load(path)
    assert config == RunConfig(task=RecallConfig(), training=TrainingConfig(steps=7, learning_rate=1.0))
    assert isinstance(config.training.learning_rate, float)


def test_every_problem_is_listed_with_its_path_at_once(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("""
loose = 1
[model]
dimm = 64
layers = "2"
attention = "softmax"
[task]
name = "recall"
num_pair = 3
num_pairs = 2.5
[training]
steps = 0
learning_rate = "fast"
betas = [0.9]
accumulation = 3
compile = 1
schedule = "cosin"
[trainning]
""")
    with pytest.raises(ConfigError) as caught:
        toml.load(path)
    message = str(caught.value)
    wanted = [
        "unknown section [loose]",
        "unknown section [trainning]; did you mean 'training'?",
        "model.dimm: unknown key; did you mean 'dim'?",
        "model.layers: input should be a valid integer, got '2'",
        "model.attention: input should be a valid array, got 'softmax'",
        "task.num_pair: unknown key; did you mean 'num_pairs'?",
        "task.num_pairs: ",
        "training.learning_rate: input should be a valid number, got 'fast'",
        "training.betas.1: is missing",
        "training.compile: input should be a valid boolean, got 1",
        "training.schedule: input should be 'cosine', 'linear', 'constant', 'inverse_sqrt' or 'noam', got 'cosin'",
        "training.steps must be at least 1, got 0",
        "training.accumulation must divide batch_size=16, got 3",
    ]
    assert [line for line in wanted if line not in message] == []
    assert message.startswith(f"{path}: {len(wanted)} problems\n")
    assert len(message.splitlines()) == 1 + len(wanted)


def test_unknown_task_and_a_section_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match=r"task.name: unknown task 'recal'; did you mean 'recall'\?"):
        toml.from_table({"task": {"name": "recal"}})
    with pytest.raises(ConfigError, match="task must be a section of keys and values, got 3"):
        toml.from_table({"task": 3})


def test_what_is_no_toml_names_the_file(tmp_path):
    (tmp_path / "broken.toml").write_text("[model\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("broken.toml", "binary.toml", "missing.toml"):
        with pytest.raises(ConfigError, match=name):
            toml.load(tmp_path / name)


def test_later_layers_win(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[training]\nsteps = 5\nseed = 6\n[model]\nlayers = 3\n")
    defaults = RunConfig(model=ModelConfig(dim=64, layers=4, kv_heads=2), training=TrainingConfig(steps=9, warmup=2))
    config = toml.layer(defaults, path, {"training.seed": 7, "model.kv_heads": None})
    assert config.training == replace(defaults.training, steps=5, seed=7)
    assert config.model == ModelConfig(dim=64, layers=3)
    assert toml.layer(defaults) == defaults


def test_another_task_starts_from_its_own_defaults():
    defaults = RunConfig(task=TextConfig(length=99))
    assert toml.layer(defaults, None, {"task.name": "copy"}).task == CopyConfig()
    assert toml.layer(defaults, None, {"task.holdout": 0.1}).task == TextConfig(length=99, holdout=0.1)


def test_the_task_decides_the_kind_of_model(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[task]\nname = "translation"\n[model]\nencoder_layers = 3\n')
    assert toml.load(path) == RunConfig(EncoderDecoderConfig(encoder_layers=3), TranslationConfig())
    assert toml.layer(RunConfig(ModelConfig(dim=64)), path).model == EncoderDecoderConfig(encoder_layers=3)
    with pytest.raises(ConfigError, match=r"model.encoder_layers: unknown key"):
        toml.layer(RunConfig(), path, {"task.name": "masked"})
    path.write_text('[model]\ndim = 64\n[task]\nname = "masked"\n')
    found = toml.layer(RunConfig(), path, {"task.name": "classification", "task.data": "a.npz"}).model
    assert found == EncoderConfig(dim=64, cls_token=True, position="learned")  # as in default_model
    with pytest.raises(ConfigError, match=r"1 problem\n  task.name: unknown task 'translatio'"):
        toml.from_table({"task": {"name": "translatio"}, "model": {"encoder_layers": 3}})


def test_a_preset_stays_where_the_kind_does():
    preset = EncoderConfig(dim=96, norm="post")
    found = toml.layer(RunConfig(preset, MaskedConfig()), None, {"task.name": "classification", "model.heads": 2})
    assert found.model == replace(preset, heads=2)


def test_sections_that_are_none_are_named(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("task = 3\nmodel = 'x'\n")
    with pytest.raises(ConfigError, match=r"task must be a section.*\n.*model must be a section"):
        toml.layer(RunConfig(), path, {"task.name": "copy"})


def test_a_bad_flag_is_refused_like_a_bad_file():
    with pytest.raises(ConfigError, match=r"training.step: unknown key; did you mean 'steps'\?"):
        toml.layer(RunConfig(), None, {"training.step": 3})
    with pytest.raises(ConfigError, match="unknown section"):
        toml.layer(RunConfig(), None, {"steps": 3})


def test_training_config_lists_its_problems():
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(steps=0, learning_rate=float("nan"), betas=(0.9, 1.0), minimum_ratio=2, keep=0)
    assert len(str(caught.value).splitlines()) == 5


def test_dumps_is_toml_with_three_sections():
    assert list(tomllib.loads(toml.dumps(RunConfig()))) == ["model", "task", "training"]
