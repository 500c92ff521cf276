"""A model's own losses are those of the whole batch, whatever the parts that it is computed in."""

import json

import numpy as np
import pytest
import torch

from regard.models import Classifier, Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig, LanguageModel
from regard.models.config import ModelConfig
from regard_lab.tasks.base import IGNORE, Example, Task
from regard_lab.training import Trainer, TrainingConfig

LENGTHS = (5, 12, 7, 9)
"""of the examples, and of their sources the other way round"""


class Uneven(Task):
    """Examples whose lengths, targets and sources are unevenly spread over a batch.

    Args:
        classes: of every sequence; 0: targets are tokens. sources: whether an encoder reads something else.
    """

    name, metric, vocab_size, length, fingerprint, tokenizer = "uneven", "accuracy", 11, 12, "uneven", None

    def __init__(self, *, classes: int = 0, sources: bool = False) -> None:
        self.classes = tuple(map(str, range(classes)))
        draw = np.random.default_rng(0)
        self.items = []
        for number, (length, other) in enumerate(zip(LENGTHS, LENGTHS[::-1], strict=True)):
            tokens = draw.integers(0, 11, (2, length))
            tokens[1, : length - 1 - number] = IGNORE
            targets = draw.integers(0, classes, 1) if classes else tokens[1]
            source = draw.integers(0, 11, other) if sources else None
            self.items.append(Example(tokens[0], targets, number, length, source=source))

    def examples(self, split):
        return self.items


SHAPE = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 11, "max_length": 13}
MODELS = {
    "a token in front": (
        lambda: Classifier(Encoder(EncoderConfig(**SHAPE, depth="universal(steps=2)", cls_token=True)), classes=3),
        Uneven(classes=3),
    ),
    "exits": (
        lambda: LanguageModel(ModelConfig(**SHAPE, depth="early_exit(exits=aligned, confidence=geometric)")),
        Uneven(),
    ),
    "two sides": (
        lambda: EncoderDecoder(
            EncoderDecoderConfig(
                **SHAPE,
                attention=("dynamic_span(max_span=5, ramp=2)",),
                encoder_attention=("tests.mutants.toys:ToyCodes",),
            )
        ),
        Uneven(sources=True),
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_is_the_same_in_parts(kind, tmp_path):
    """In float64, with losses that are a mean over a leading token too, over targets, over one of two sequences."""
    make, task = MODELS[kind]
    found = []
    for parts in (1, 2, 4):
        torch.manual_seed(0)
        model = make().double()
        for number, x in enumerate(model.parameters()):  # nothing that begins at zero hides a gradient
            x.data += 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        config = TrainingConfig(
            steps=1, batch_size=4, accumulation=parts, warmup=0, log_every=1, clip=0, threads=1, learning_rate=0.01
        )
        (tmp_path / str(parts)).mkdir()
        Trainer(model, task, config, tmp_path / str(parts)).fit()
        line = json.loads((tmp_path / str(parts) / "metrics.jsonl").read_text().splitlines()[0])
        assert line["losses"]
        assert all(line["losses"].values())
        found.append([line["objective"], line["gradient_norm"], *line["losses"].values()])
    assert found[1] == pytest.approx(found[0], rel=1e-12)
    assert found[2] == pytest.approx(found[0], rel=1e-12)
