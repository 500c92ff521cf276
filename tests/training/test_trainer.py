import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.device import chosen_device
from regard.core.errors import CheckpointError, ConfigError, NumericsError, ResourceError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard_lab.tasks import CopyConfig, build_task
from regard_lab.tasks.base import IGNORE
from regard_lab.training import Trainer, TrainingConfig
from regard_lab.training.checkpoint import load, newest, paths
from regard_lab.training.data_order import DataOrder

# AdamW divides by the size of the gradient: with a tiny epsilon, elements whose gradient nearly cancels lose digits.
EPSILON = 1e-2
QUIET = TrainingConfig(steps=3, batch_size=6, warmup=0, log_every=1, checkpoint_every=3, evaluate_every=3, threads=1)


def fit(model: nn.Module, task, config: TrainingConfig, run: Path) -> list[dict[str, object]]:
    """Train; the lines of kind `train`."""
    run.mkdir(exist_ok=True)
    Trainer(model, task, config, run).fit()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def whole_batch(model: nn.Module, task, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Objective and mean loss of one big batch, example after example in float64, from the definition."""
    examples = [task.examples("train")[index] for index in ids]
    nats, targets, squares, positions = torch.zeros((), dtype=torch.float64), 0, 0.0, 0
    for example in examples:
        inputs = torch.from_numpy(example.inputs)
        hidden = model.norm(model.embedding(inputs))
        wanted = torch.from_numpy(example.targets)
        kept = wanted != IGNORE
        nats = nats - torch.log_softmax(model.output(hidden), -1)[kept].gather(1, wanted[kept][:, None]).sum()
        targets += int(kept.sum())
        squares = squares + hidden.square().mean(-1).sum()
        positions += len(inputs)
    return nats / targets + 0.3 * squares / positions, nats / targets


@pytest.mark.parametrize("lengths", [(9,), (4, 9, 2)])
@pytest.mark.parametrize("accumulation", [1, 2, 3, 6])
def test_a_step_follows_the_definition_however_it_is_split(lookup, pairs, tmp_path, lengths, accumulation):
    """Three steps of AdamW on the float64 objective of the whole batch; 2e-6 of the largest parameter."""
    task = pairs(lengths=lengths)
    config = replace(QUIET, accumulation=accumulation, clip=0.7, weight_decay=0.2, learning_rate=0.05, epsilon=EPSILON)
    model = lookup(task.vocab_size)
    expected = lookup(task.vocab_size).double()
    lines = fit(model, task, config, tmp_path)

    decay = {"output.weight": 0.2}
    moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in expected.named_parameters()}
    for step in range(config.steps):
        objective, loss = whole_batch(expected, task, DataOrder(10, 6, config.seed).batch(step))
        expected.zero_grad()
        objective.backward()
        norm = math.sqrt(sum(float(x.grad.square().sum()) for x in expected.parameters()))
        assert lines[step]["objective"] == pytest.approx(objective.item(), rel=2e-6)
        assert lines[step]["loss"] == pytest.approx(loss.item(), rel=2e-6)
        assert lines[step]["gradient_norm"] == pytest.approx(norm, rel=2e-6)
        rate = 0.05 * (0.1 + 0.9 * (1 + math.cos(math.pi * step / 3)) / 2)
        assert lines[step]["learning_rate"] == pytest.approx(rate, rel=1e-12)
        with torch.no_grad():
            for name, x in expected.named_parameters():
                gradient = x.grad * min(1, 0.7 / norm)
                m, v = moments[name]
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.95).add_(0.05 * gradient.square())
                update = m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.95 ** (step + 1))).sqrt() + EPSILON)
                x.sub_(rate * (update + decay.get(name, 0.0) * x))
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        error = (ours.double() - theirs).abs().max() / theirs.abs().max()
        assert error < 2e-6, name


def test_every_loss_is_logged_unweighted(lookup, pairs, tmp_path):
    lines = fit(lookup(11), pairs(), QUIET, tmp_path)
    for line in lines:
        assert line["losses"].keys() == {"size"}
        assert line["objective"] == pytest.approx(line["loss"] + 0.3 * line["losses"]["size"], rel=1e-6)
        assert line["timing"].keys() == {"seconds", "tokens_per_second", "peak_bytes"}
        assert line["timing"]["peak_bytes"] > 2**20
    assert [line["tokens"] for line in lines] == sorted({line["tokens"] for line in lines})


def test_a_model_in_evaluation_mode_is_trained_all_the_same(lookup, pairs, tmp_path):
    lines = fit(lookup(11).eval(), pairs(), QUIET, tmp_path / "eval")
    theirs = fit(lookup(11).train(), pairs(), QUIET, tmp_path / "train")
    assert [line["objective"] for line in lines] == [line["objective"] for line in theirs]


def test_a_checkpoint_has_a_score_only_if_its_step_was_evaluated(lookup, pairs, tmp_path):
    config = replace(QUIET, steps=4, evaluate_every=2, checkpoint_every=1, keep=9)
    fit(lookup(11), pairs(), config, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    evaluated = {line["step"]: line["nats_per_token"] for line in lines if line["kind"] == "evaluate"}
    found = [load(path).progress for path in paths(tmp_path / "checkpoints")]
    assert {progress.step: progress.score for progress in found} == {step: evaluated.get(step) for step in (1, 2, 3, 4)}
    assert evaluated.keys() == {2, 4}


def test_lines_average_over_their_interval(lookup, pairs, tmp_path):
    every = fit(lookup(11), pairs(), replace(QUIET, steps=5), tmp_path / "every")
    pair = fit(lookup(11), pairs(), replace(QUIET, steps=5, log_every=2), tmp_path / "pair")
    assert [line["step"] for line in pair] == [2, 4, 5]
    assert pair[0]["objective"] == pytest.approx((every[0]["objective"] + every[1]["objective"]) / 2, rel=1e-12)
    tokens = [every[0]["tokens"], every[1]["tokens"] - every[0]["tokens"]]
    loss = (tokens[0] * every[0]["loss"] + tokens[1] * every[1]["loss"]) / sum(tokens)
    assert pair[0]["loss"] == pytest.approx(loss, rel=1e-12)
    assert pair[2]["loss"] == every[4]["loss"]


def poisoned(model: nn.Module, where: str, at_call: int) -> nn.Module:
    """A model whose loss or gradient is not finite at one call."""
    forward = model.forward

    class NanGradient(torch.autograd.Function):
        @staticmethod
        def forward(context, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context, gradient: Tensor) -> Tensor:
            return gradient * float("inf")

    def bad(tokens: Tensor, *, key_mask: Tensor | None = None) -> SimpleNamespace:
        output = forward(tokens, key_mask=key_mask)
        if not model.training or int(model.calls) != at_call:
            return output
        if where == "gradient":
            return SimpleNamespace(logits=NanGradient.apply(output.logits), losses=output.losses)
        if where == "own":
            return SimpleNamespace(logits=output.logits, losses={"size": output.losses["size"] * float("nan")})
        return SimpleNamespace(logits=output.logits * float(where), losses=output.losses)

    model.forward = bad
    return model


@pytest.mark.parametrize("where", ["nan", "inf", "own", "gradient"])
def test_what_is_not_finite_stops_before_the_step(lookup, pairs, tmp_path, where):
    """Call 4 is the second part of step 1. Step 0 and the optimizer's state after it stay; its checkpoint too."""
    config = replace(QUIET, accumulation=2, checkpoint_every=1)
    sound, model = lookup(11), poisoned(lookup(11), where, 4)
    fit(sound, pairs(), replace(config, steps=1, schedule="constant"), tmp_path / "sound")
    (tmp_path / "bad").mkdir()
    trainer = Trainer(model, pairs(), replace(config, schedule="constant"), tmp_path / "bad")
    with pytest.raises(NumericsError) as caught:
        trainer.fit()
    ids = DataOrder(10, 6, 0).batch(1)
    message = str(caught.value)
    assert "training step 1:" in message
    assert str(ids if where == "gradient" else ids[3:]) in message
    assert "step-00000001" in message
    assert caught.value.exit_code == 5
    for (name, ours), theirs in zip(model.named_parameters(), sound.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert trainer.optimizer.state[ours]["step"] == 1
    found = newest(tmp_path / "bad" / "checkpoints")[0]
    assert found is not None
    assert found.progress.step == 1
    assert all(torch.equal(found.model[name], x) for name, x in sound.named_parameters())


def test_a_validation_loss_that_is_not_finite_stops(lookup, pairs, tmp_path):
    model = lookup(11)
    model.forward = lambda tokens, *, key_mask=None, forward=model.forward: (
        forward(tokens, key_mask=key_mask)
        if model.training
        else SimpleNamespace(logits=torch.full((*tokens.shape, 11), float("nan")), losses={})
    )
    with pytest.raises(NumericsError, match="evaluation after step 3"):
        fit(model, pairs(), QUIET, tmp_path)


def test_without_clipping_the_gradient_is_whole(lookup, pairs, tmp_path):
    clipped, whole = lookup(11), lookup(11)
    slow = replace(QUIET, steps=1, learning_rate=1e-3)
    fit(clipped, pairs(), replace(slow, clip=1e-12), tmp_path / "clipped")
    fit(whole, pairs(), replace(slow, clip=0), tmp_path / "whole")
    start = dict(lookup(11).named_parameters())
    moved = {name: (x - start[name]).abs().max().item() for name, x in whole.named_parameters()}
    held = {name: (x - start[name]).abs().max().item() for name, x in clipped.named_parameters()}
    assert moved["embedding.weight"] == pytest.approx(1e-3, rel=0.01)
    assert held["embedding.weight"] < 1e-6


def test_bfloat16_trains_float32_weights(lookup, pairs, tmp_path):
    model = lookup(11)
    seen = []
    model.output.register_forward_hook(lambda module, arguments, output: seen.append(output.dtype))
    lines = fit(model, pairs(), replace(QUIET, dtype="bfloat16"), tmp_path / "half")
    assert set(seen) == {torch.bfloat16}
    assert all(x.dtype == torch.float32 for x in model.parameters())
    exact = fit(lookup(11), pairs(), QUIET, tmp_path / "full")
    assert lines[0]["loss"] != exact[0]["loss"]
    assert lines[0]["loss"] == pytest.approx(exact[0]["loss"], rel=2e-2)


def test_compile_goes_through_torch_compile(lookup, pairs, tmp_path, monkeypatch):
    compiled = []

    def compile(model: nn.Module) -> Callable[..., object]:
        def forward(*arguments, **options):
            compiled.append(model.training)
            return model(*arguments, **options)

        return forward

    monkeypatch.setattr(torch, "compile", compile)
    fit(lookup(11), pairs(), replace(QUIET, compile=True), tmp_path)
    assert compiled == [True] * 3


def test_threads_and_random_states_are_given_back(lookup, pairs, tmp_path):
    threads = torch.get_num_threads()
    seen = []
    model = lookup(11)
    model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    state = torch.get_rng_state()
    fit(model, pairs(), replace(QUIET, threads=2), tmp_path)
    assert set(seen) == {2}
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_depends_on_its_seed_alone(lookup, pairs, tmp_path):
    def losses(name: str, seed: int) -> list[object]:
        lines = fit(lookup(11), pairs(), replace(QUIET, seed=seed), tmp_path / name)
        return [line["loss"] for line in lines]

    torch.manual_seed(1)
    first = losses("a", 0)
    torch.manual_seed(2)
    assert losses("b", 0) == first
    assert losses("c", 1) != first


def test_too_little_memory_says_what_to_change(lookup, pairs, tmp_path):
    model = lookup(11)

    def forward(tokens: Tensor, *, key_mask: Tensor | None = None) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    model.forward = forward
    with pytest.raises(ResourceError, match=r"with 3 examples.*training.accumulation \(now 2\)"):
        fit(model, pairs(), replace(QUIET, accumulation=2), tmp_path)


def test_other_runtime_errors_are_not_hidden(lookup, pairs, tmp_path):
    model = lookup(11)

    def forward(tokens: Tensor, *, key_mask: Tensor | None = None) -> None:
        raise RuntimeError("a bug")

    model.forward = forward
    with pytest.raises(RuntimeError, match="a bug"):
        fit(model, pairs(), QUIET, tmp_path)


def test_other_data_are_refused(lookup, pairs, tmp_path):
    task = pairs()
    fit(lookup(11), task, QUIET, tmp_path)
    task.fingerprint = "other"
    with pytest.raises(CheckpointError, match="other data"):
        Trainer(lookup(11), task, replace(QUIET, steps=4), tmp_path).fit()


def test_a_run_is_trained_by_one_process_at_a_time(lookup, pairs, tmp_path):
    from regard_lab.training.interruption import locked

    with locked(tmp_path), pytest.raises(ResourceError, match="another process"):
        fit(lookup(11), pairs(), QUIET, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
    fit(lookup(11), pairs(), QUIET, tmp_path)


def test_devices():
    assert chosen_device("cpu") == torch.device("cpu")
    assert chosen_device("auto").type in ("cpu", "cuda", "mps")
    for name, available in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if available:
            assert chosen_device(name).type == name
        else:
            with pytest.raises(UnsupportedError, match=f"device {name} is not available here; available: cpu"):
                chosen_device(name)


def test_the_definition_above_is_torchs_cross_entropy(lookup, pairs):
    """The helper of this file, checked on its own."""
    task = pairs()
    model = lookup(11).double()
    example = task.examples("train")[3]
    _, loss = whole_batch(model, task, [3])
    logits = model(torch.from_numpy(example.inputs)[None]).logits[0]
    expected = F.cross_entropy(logits, torch.from_numpy(np.array(example.targets)), ignore_index=IGNORE)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_smoothed_targets_follow_their_definition(lookup, pairs, tmp_path, share):
    """-sum_v q_v log p_v with q = (1 - e) one-hot + e / V, and its gradient, in float64; the log has the plain loss."""
    task = pairs(lengths=(4, 9, 2))
    config = replace(QUIET, steps=1, accumulation=2, clip=0.0, label_smoothing=share)
    model, expected = lookup(task.vocab_size), lookup(task.vocab_size).double()
    (line,) = fit(model, task, config, tmp_path)
    ids = DataOrder(len(task.examples("train")), 6, config.seed).batch(0)
    objective, nats = whole_batch(expected, task, ids)
    spread, targets = torch.zeros((), dtype=torch.float64), 0
    for example in (task.examples("train")[index] for index in ids):
        kept = torch.from_numpy(example.targets) != IGNORE
        logits = expected.output(expected.norm(expected.embedding(torch.from_numpy(example.inputs))))
        spread = spread - logits.log_softmax(-1)[kept].sum() / task.vocab_size
        targets += int(kept.sum())
    objective = objective - share * nats + share * spread / targets
    objective.backward()
    norm = math.sqrt(sum(float(x.grad.square().sum()) for x in expected.parameters()))
    assert line["loss"] == pytest.approx(nats.item(), rel=2e-6)
    assert line["objective"] == pytest.approx(objective.item(), rel=2e-6)
    assert line["gradient_norm"] == pytest.approx(norm, rel=2e-6)
    with pytest.raises(ConfigError, match=r"label_smoothing must be in \[0, 1\), got 1.0"):
        replace(config, label_smoothing=1.0)


def test_the_published_warm_up_takes_the_width_of_the_model(tmp_path):
    config = replace(QUIET, schedule="noam", learning_rate=0.5, warmup=2)
    task = build_task(CopyConfig(vocab_size=11, length=8, num_examples=20, num_held_out=6), seed=0)
    lines = fit(LanguageModel(ModelConfig(vocab_size=11, dim=16, heads=2)), task, config, tmp_path)
    rates = [0.5 / 4 * min(s**-0.5, s * 2**-1.5) for s in (1, 2, 3)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates, rel=1e-12)
