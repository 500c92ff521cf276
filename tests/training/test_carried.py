"""Memories that go on from step to step: which windows the rows read, what they see, and that nothing is lost."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError
from regard.models import LanguageModel, ModelConfig
from regard.text.tokenizer import ByteTokenizer
from regard_lab.tasks import CopyConfig, TextConfig, build_task
from regard_lab.tasks.text import Windows
from regard_lab.tasks.token_files import Tokens
from regard_lab.training import RunConfig, TrainingConfig, evaluate, load, resume, toml, train
from regard_lab.training.batches import Batch
from regard_lab.training.carried import Carrying, Lanes, whole_documents
from regard_lab.training.checkpoint import newest
from tests.training.conftest import require_equal, stop_after

WINDOW, SEGMENT, KEPT = 12, 6, 512
PARTS = ("model", "optimizer", "rng", "memory")
MEMORIES = {
    "recent": f"recent(length={KEPT})",
    "compressive": "compressive(length=6, compressed=4, rate=3)",
    "memorizing": ("recent(length=6)", "memorizing(pairs=40, top=4, recent=6)"),
    "lists": ("recent(length=6)", "memorizing(pairs=20, top=4, recent=6, index=ivf, probes=2)"),
}


def windows(sizes: list[int], length: int = 3) -> Windows:
    """Documents of so many windows."""
    starts = np.cumsum([0, *(size * length + 1 for size in sizes)])
    return Windows(Tokens(np.zeros(starts[-1], np.uint16), starts), ByteTokenizer(), length)


@pytest.fixture
def texts(tmp_path: Path) -> RunConfig:
    """Documents of unequal length, several to a batch; with the first memory a row sees all of its document."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for at in range(20):
        words = " ".join(f"{at + n} after {n}" for n in range(2 + at % 7))
        (folder / f"{at}.txt").write_text(words)
    return RunConfig(
        ModelConfig(dim=16, heads=2, layers=2, memory=MEMORIES["recent"], max_length=SEGMENT, position="rotary"),
        TextConfig(corpus=str(folder), length=WINDOW, holdout=0.2, cache=str(tmp_path / "cache")),
        TrainingConfig(
            steps=7, batch_size=4, warmup=0, log_every=1, evaluate_every=4, checkpoint_every=2, threads=1, carry=True
        ),
    )


def changed(config: RunConfig, memory: str | tuple[str, ...], **training: object) -> RunConfig:
    return replace(config, model=replace(config.model, memory=memory), training=replace(config.training, **training))


@pytest.mark.parametrize("sizes", [[3, 1, 4, 1, 5], [7], [1] * 9, [2, 2]])
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_rows_read_on_and_begin_anew_with_a_document(sizes, rows):
    examples = windows(sizes)
    lanes, begins = Lanes(examples, rows, seed=3), set(examples.begins.tolist())
    before: list[int] = [-1] * rows
    for step in range(3 * lanes.steps):
        now, fresh = lanes.batch(step), lanes.fresh(step)
        for row in range(rows):
            first = step % lanes.steps == 0
            goes_on = now[row] == before[row] + 1 and now[row] not in begins and not first
            assert fresh[row] is not goes_on
        assert lanes.epochs(step) == [step // lanes.steps] * rows
        before = now
    for epoch in range(3):
        read = [at for step in range(lanes.steps) for at in lanes.batch(epoch * lanes.steps + step)]
        assert set(read) == set(range(len(examples)))
        assert len(read) - len(examples) < rows
    assert Lanes(examples, rows, seed=3).batch(4) == lanes.batch(4)


def test_the_order_is_of_seed_and_epoch():
    lanes = [Lanes(windows([2] * 8), 2, seed=seed) for seed in (0, 1)]
    epochs = [tuple(tuple(lane.batch(at)) for at in range(e * lane.steps, (e + 1) * lane.steps))
              for lane in lanes for e in (0, 1)]  # fmt: skip
    assert len(set(epochs)) == 4


@pytest.mark.parametrize("sizes", [[3, 1, 4, 1, 5], [7], [1] * 9])
@pytest.mark.parametrize("rows", [1, 2, 3, 20])
def test_whole_documents_are_read_once_in_order(sizes, rows):
    examples = windows(sizes)
    begins, read, before = set(examples.begins.tolist()), [], []
    for ids, fresh, places in whole_documents(examples, rows):
        assert len(ids) == len(fresh) == len(places) <= rows
        for at, new, place in zip(ids, fresh, places, strict=True):
            assert new is (at in begins)
            assert new or before[place] == at - 1
        read, before = [*read, *ids], ids
    assert sorted(read) == list(range(len(examples)))


def test_a_document_without_windows_is_none():
    tokens = Tokens(np.zeros(9, np.uint16), np.array([0, 4, 5, 9]))
    assert Windows(tokens, ByteTokenizer(), 3).begins.tolist() == [0, 1]


def alone(model: LanguageModel, config: RunConfig, split: str = "valid") -> tuple[float, int]:
    """Nats and targets of every document, read by itself and whole."""
    examples, nats, count = build_task(config.task).examples(split), 0.0, 0
    ends = [*examples.begins[1:].tolist(), len(examples)]
    for begin, end in zip(examples.begins.tolist(), ends, strict=True):
        parts = [examples[at] for at in range(begin, end)]
        tokens = torch.from_numpy(np.concatenate([part.inputs for part in parts]))
        targets = torch.from_numpy(np.concatenate([part.targets for part in parts]))
        with torch.no_grad():
            logits = model(tokens[None]).logits[0]
        nats += torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum").item()
        count += int((targets != -100).sum())
    return nats, count


@pytest.mark.parametrize("kind", ["compressive", "memorizing", "lists"])
def test_evaluation_is_that_of_every_document_by_itself(kind, texts, tmp_path):
    """Whatever shares the batch; and not that of windows."""
    config = changed(texts, MEMORIES[kind])
    train(config, tmp_path / "run")
    loaded = load(tmp_path / "run")
    nats, count = alone(loaded.model, config)
    for size in (1, 3):
        report = evaluate(loaded, batch_size=size)
        assert report["tokens"] == count
        assert report["nats_per_token"] == pytest.approx(nats / count, rel=1e-5)
    assert evaluate(loaded.model, config.task)["nats_per_token"] != pytest.approx(nats / count, rel=1e-4)
    with pytest.raises(ConfigError, match="limit=2: this run carries its memory through whole documents"):
        evaluate(loaded, limit=2)
    assert loaded.generate("3 after", max_new_tokens=20, temperature=0.0)


def test_a_step_sees_what_its_rows_have_read(texts, tmp_path, monkeypatch):
    """The logits of every step against its documents from where each row began, with everything in view."""
    seen: list[tuple[Batch, torch.Tensor, LanguageModel]] = []
    through = Batch.through

    def watched(batch, model, state=None):
        output = through(batch, model, state)
        if model.training:
            weights = {name: x.clone() for name, x in model.state_dict().items()}
            full = LanguageModel(replace(model.config, memory="none", max_length=512))
            full.load_state_dict(weights)
            seen.append((batch, output.logits.detach(), full.eval()))
        return output

    monkeypatch.setattr(Batch, "through", watched)
    config = changed(texts, MEMORIES["recent"], learning_rate=1e-12, weight_decay=0.0)  # so that all steps agree
    train(config, tmp_path / "run")
    examples = build_task(config.task).examples("train")
    lanes = Lanes(examples, 4, config.training.seed)
    past: list[list[np.ndarray]] = [[] for _ in range(4)]
    longest = 0
    for step, (batch, logits, full) in enumerate(seen):
        assert batch.ids == lanes.batch(step)
        for row, fresh in enumerate(lanes.fresh(step)):
            past[row] = [*([] if fresh else past[row]), examples[batch.ids[row]].inputs]
            longest = max(longest, len(past[row]))
            with torch.no_grad():
                wanted = full(torch.from_numpy(np.concatenate(past[row]))[None]).logits[0, -WINDOW:]
            torch.testing.assert_close(logits[row], wanted, rtol=0, atol=2e-5)
    assert len(seen) == 7
    assert longest >= 3


@pytest.mark.parametrize("kind", ["compressive", "memorizing", "lists"])
def test_a_stopped_run_goes_on_bit_for_bit(kind, texts, tmp_path):
    """One layer of `memorizing` has recent states; those of `lists` are searched by FAISS."""
    config = changed(texts, MEMORIES[kind], accumulation=2)
    config = replace(config, model=replace(config.model, dropout=0.1, short_convolution=3))
    whole = train(config, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        train(config, tmp_path / "run", on_progress=stop_after(5))
    assert resume(tmp_path / "run").evaluation == whole.evaluation
    require_equal(tmp_path / "run", tmp_path / "whole", *PARTS)
    assert toml.load(tmp_path / "run" / "config.toml") == whole.config


def test_parts_of_a_batch_give_what_the_whole_gives(texts, tmp_path):
    one, two = (train(changed(texts, MEMORIES["recent"], accumulation=n), tmp_path / str(n)) for n in (1, 2))
    ours, theirs = ([line["loss"] for line in each.metrics if line["kind"] == "train"] for each in (one, two))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_checkpoint_without_its_memories_is_refused(texts, tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        train(texts, tmp_path / "run", on_progress=stop_after(5))
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("batch_size = 4", "batch_size = 2"))
    with pytest.raises(CheckpointError, match="memories of other rows than the 2 of a batch"):
        resume(tmp_path / "run", edited=True)
    saved, _ = newest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    task = build_task(texts.task)
    model = LanguageModel(replace(texts.model, vocab_size=task.vocab_size))
    carrying = Carrying(model, task.examples("train"), texts.training)
    carrying.restore(saved)
    with pytest.raises(CheckpointError, match="memories of another dtype than this training computes in"):
        carrying.restore(
            replace(saved, memory={k: x.double() if x.is_floating_point() else x for k, x in saved.memory.items()})
        )
    path.write_text(path.read_text().replace(f"recent(length={KEPT})", "memorizing(pairs=9, top=2)"))
    with pytest.raises(CheckpointError):
        resume(tmp_path / "run", edited=True)


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ({"memory": "none"}, {}, "goes on with the memory of a decoder"),
        ({"position": "sinusoidal"}, {}, "position sinusoidal numbers all that a row has read"),
        ({"attention": ("fixed(stride=8)",)}, {}, "counts its positions from the first slot"),
        ({}, {"evaluate_examples": 3}, "evaluate_examples=3 are windows from anywhere"),
    ],
)
def test_what_cannot_be_carried_is_refused(model, training, message, texts, tmp_path):
    def begin() -> None:
        config = replace(texts, training=replace(texts.training, **training))
        train(replace(config, model=replace(config.model, **model)), tmp_path / "run")

    with pytest.raises(ConfigError, match=re.escape(message)):
        begin()
    copying = replace(texts, task=CopyConfig(vocab_size=16, length=WINDOW, num_held_out=4, num_examples=20))
    with pytest.raises(ConfigError, match="through the documents of task text"):
        train(copying, tmp_path / "copy")
    assert not (tmp_path / "run").exists()
