"""Training on a CUDA device: as on the CPU, killed and resumed, in bfloat16, under NCCL; and what reads a run."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import evidence.campaign.equal as equal
from regard.models.config import ModelConfig
from regard_lab.tasks import RecallConfig
from regard_lab.training import Interrupted, RunConfig, TrainingConfig, load, toml, train

SOURCE = Path(__file__).parents[2] / "src"
SMALL = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 16, "max_length": 16}
MODELS = {
    "softmax": {},
    "dropout": {"dropout": 0.1},
    "linear": {"attention": ("linear",)},
    "transformer_xl": {"position": "transformer_xl", "memory": "recent(length=8)", "max_length": 8},
    "memorizing": {"memory": "memorizing(pairs=32, top=4)", "max_length": 8},
    "adaptive_span": {"attention": ("adaptive_span",), "dropout": 0.1},
    "universal": {"depth": "universal(steps=3)", "layers": 1},
    "depth_adaptive": {"depth": "early_exit(exits=aligned)", "dropout": 0.1},
    "codes": {"attention": ("vector_quantized(num_codes=4, block_size=4)",)},
    "redrawn": {"attention": ("performer(num_features=8, redraw_interval=2)",)},
    "reversible": {"block": "reversible"},
}


def run_config(name: str, **training: object) -> RunConfig:
    settings = {"steps": 12, "batch_size": 4, "accumulation": 2, "warmup": 3, "log_every": 5, "evaluate_every": 6}
    return RunConfig(
        model=ModelConfig(**{**SMALL, **MODELS[name]}),
        task=RecallConfig(vocab_size=16, length=16, num_pairs=2, num_examples=21, num_held_out=6),
        training=TrainingConfig(**{**settings, "checkpoint_every": 4, "threads": 1, "device": "cuda", **training}),
    )


def curve(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def stopped_at(step: int):
    def act(progress: dict[str, object]) -> None:
        if (progress["kind"], progress["step"]) == ("step", step):
            signal.raise_signal(signal.SIGTERM)

    return act


@pytest.mark.parametrize("name", MODELS)
def test_killed_and_resumed(name, tmp_path):
    """The bits of a run that was not interrupted."""
    config, run = run_config(name), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(config, run, on_progress=stopped_at(5))
    train(config, run, resume=True)
    train(config, tmp_path / "whole")
    assert equal.runs(run, tmp_path / "whole") == []


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in MODELS[name]])
def test_as_on_the_cpu(name, tmp_path):
    """Without dropout, whose masks are drawn elsewhere, 12 steps lose what they lose on the CPU."""
    config = run_config(name)
    train(config, tmp_path / "there")
    train(replace(config, training=replace(config.training, device="cpu")), tmp_path / "here")
    wanted = curve(tmp_path / "here")
    assert wanted
    assert curve(tmp_path / "there") == pytest.approx(wanted, rel=1e-3)


def test_bfloat16(tmp_path):
    train(run_config("softmax", dtype="bfloat16"), tmp_path / "narrow")
    train(run_config("softmax"), tmp_path / "wide")
    assert curve(tmp_path / "narrow") == pytest.approx(curve(tmp_path / "wide"), rel=2e-2)


def test_compiled(tmp_path):
    train(run_config("softmax", compile=True), tmp_path / "compiled")
    train(run_config("softmax"), tmp_path / "plain")
    assert curve(tmp_path / "compiled") == pytest.approx(curve(tmp_path / "plain"), rel=1e-3)


def test_loaded_on_either_device(tmp_path):
    train(run_config("softmax"), tmp_path / "run")
    tokens = torch.arange(16)[None] % 16
    with torch.no_grad():
        ours, theirs = (load(tmp_path / "run", device=device).model for device in ("cpu", "cuda"))
        torch.testing.assert_close(theirs(tokens.cuda()).logits.cpu(), ours(tokens).logits, rtol=1e-4, atol=1e-4)


def regard(*words: object, program: tuple[str, ...] = ("-m", "regard")) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, *program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


def test_one_process_on_nccl(tmp_path):
    """torchrun with one process gives the run of a plain one."""
    config = run_config("dropout")
    toml.save(config, tmp_path / "config.toml")
    train(config, tmp_path / "plain")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=1", f"--master-port={port}", "-m", "regard")
    done = regard("train", "--config", tmp_path / "config.toml", "--out", tmp_path / "nccl", program=torchrun)
    assert done.returncode == 0, done.stderr[-3000:]
    assert curve(tmp_path / "nccl") == curve(tmp_path / "plain")


def test_commands(tmp_path):
    """A text is learnt on the device, evaluated and continued there."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{at} is followed by {at + 1}\n" for at in range(400)))
    shape = ("--model.dim", 32, "--model.layers", 1, "--model.heads", 2, "--task.length", 32)
    task = ("--task", "text", "--task.corpus", text, "--task.tokenizer", "bytes", "--task.cache", tmp_path / "cache")
    where = ("--out", tmp_path / "run", "--device", "cuda", "--steps", 40, "--warmup", 5)
    for words in (
        ("train", *task, *shape, *where),
        ("evaluate", tmp_path / "run", "--device", "cuda"),
        ("generate", tmp_path / "run", "7 is", "--device", "cuda", "--max-new-tokens", 10),
    ):
        done = regard(*words)
        assert done.returncode == 0, f"{words[0]}: {done.stderr[-3000:]}"
    assert json.loads((tmp_path / "run" / "env.json").read_text())["device"] == torch.cuda.get_device_name()
