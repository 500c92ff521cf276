"""The plausible mistakes of a first hour: each gives a typed error, or an exit code, with the way out in its words."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as library
from regard import AttentionLayer, attend
from regard.core.errors import ConfigError, LimitError, RegardError, ShapeError, UnsupportedError
from regard.integrations import pretrained
from regard.models import LanguageModel, ModelConfig, presets
from regard_lab.training import TrainedModel

Q = torch.randn(2, 4, 10, 8)
X = torch.randn(2, 10, 32)


def layer(spec: str = "softmax", **options: Any) -> AttentionLayer:
    return AttentionLayer(32, spec, **{"heads": 4, **options})


def model(ids: Any) -> Any:
    return LanguageModel(ModelConfig(dim=16, heads=2, layers=1))(ids)


PYTHON: dict[str, tuple[Callable[[], object], type[RegardError], str]] = {
    "(batch, length, heads, dim)": (
        lambda: attend(Q.transpose(1, 2), *torch.randn(2, 2, 7, 4, 8)),
        ShapeError,
        r"are \(batch, heads, length, dim\), and q has 10 heads, k 7, .*transpose\(1, 2\)",
    ),
    "causal cross-attention": (lambda: layer(context_dim=8, causal=True), ConfigError, "leave causal=True out"),
    "a state of a layer that is not causal": (lambda: layer().initial_state(1), UnsupportedError, "add causal=True"),
    "a decoder's mechanism that is not causal": (lambda: layer("forgetting"), UnsupportedError, "with causal=True"),
    "a mask of integers": (
        lambda: attend(Q, Q, Q, key_mask=torch.ones(2, 10, dtype=torch.long)),
        ShapeError,
        r"bool \(batch=2, keys=10\), True = keep",
    ),
    "linformer without a length": (lambda: layer("linformer"), ConfigError, "needs max_length"),
    "longer than max_length": (lambda: layer("linformer", max_length=4)(X), LimitError, "build it with a larger"),
    "unbalanced parentheses": (lambda: layer("local(window=4"), ConfigError, r"write name or name\(option=value"),
    "max_tokens": (
        lambda: pretrained.PublishedModel.generate(None, "a", max_tokens=3),
        ConfigError,
        "did you mean 'max_new_tokens'",
    ),
    "a run that is not there": (
        lambda: library.load("runs/none"),
        ConfigError,
        "Start one with regard train; published",
    ),
    "keys to leave out of a run": (
        lambda: library.load("none", ignore=["a"]),
        ConfigError,
        "keys of published weights",
    ),
    "best of what is published": (lambda: library.load("x.gguf", best=True), ConfigError, "best=True is for runs"),
}


@pytest.mark.parametrize("mistake", PYTHON)
def test_in_python(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, error, message = PYTHON[mistake]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        call()


COMMANDS: dict[str, tuple[str, int, str]] = {
    "a mechanism by its title": (
        "compare softmax 'linear attention'",
        2,
        "did you mean 'linear' (Linear attention)?",
    ),
    "a folder that exists": ("train --out folder", 2, "choose another name"),
    "generate from nothing": ("generate run ''", 3, "continues at least one token"),
    "generate before the first checkpoint": ("generate begun hello", 4, "regard train --resume begun"),
    "a run as a name": ("info run/checkpoints", 2, "give the folder of one"),
}


@pytest.mark.parametrize("mistake", COMMANDS)
def test_in_a_command(regard: Callable[..., Any], tiny: list[str], run: Path, tmp_path: Path, mistake: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    shutil.copytree(run, tmp_path / "begun", ignore=shutil.ignore_patterns("step-*"))
    words, code, message = COMMANDS[mistake]
    verb, *rest = shlex.split(words)
    answer = regard(verb, *(tiny if verb == "train" else []), *rest)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_one_load_reads_runs_folders_and_packages(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = LanguageModel(presets.build("llama", dim=16, heads=2, layers=1, vocab_size=50))
    pretrained.export(network, tmp_path / "folder")
    assert isinstance(library.load(run), TrainedModel)
    loaded = library.load(tmp_path / "folder", device="cpu")
    assert isinstance(loaded, pretrained.PublishedModel)
    ids = torch.arange(5)[None]
    torch.testing.assert_close(loaded.model(ids).logits, network.eval()(ids).logits, rtol=0, atol=1e-6)
    monkeypatch.setattr(pretrained, "packaged", {"package:ours": tmp_path / "folder"}.__getitem__)
    assert isinstance(library.load("package:ours"), pretrained.PublishedModel)
