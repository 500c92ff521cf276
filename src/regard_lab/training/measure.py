"""The metrics of a task: of a model, beside what needs no learning."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from regard.models import EncoderDecoder
from regard_lab.tasks.base import Split, Task
from regard_lab.tasks.classification import ClassificationTask, Texts
from regard_lab.tasks.masked import MaskedTask
from regard_lab.tasks.pixels import ImagesTask
from regard_lab.tasks.scoring import Rows, classification_rows, image_rows, library, masked_rows, translation_rows
from regard_lab.tasks.translation import TranslationTask
from regard_lab.training.batches import Batch
from regard_lab.training.evaluation import Scores
from regard_lab.training.trained_model import translations


class Measure:
    """Collects what a metric needs while a split is scored.

    Args:
        model: the one that is scored.
        task, split: on what.
        chosen: the examples, in the order of scoring.

    Raises:
        UnsupportedError: the library of the task's metric is not installed, which is known before the work.
    """

    def __init__(self, model: nn.Module, task: Task, split: Split, chosen: Sequence[int]) -> None:
        self.model, self.task, self.chosen = model, task, chosen
        self.split: Split = split
        self._probabilities: list[Tensor] = []
        self._documents: list[int] = []
        if isinstance(task, TranslationTask):
            library("sacrebleu", "the quality of translations")
        if isinstance(task, ClassificationTask):
            library("sklearn.metrics", "the quality of classification")

    def add(self, batch: Batch, logits: Tensor) -> None:
        """Collect a batch, as `each` of `score`."""
        if isinstance(self.task, ClassificationTask):
            self._probabilities.append(logits.cpu().double().softmax(-1))
            self._documents += batch.documents

    def rows(self, scores: Scores, *, beams: int, length_penalty: float, batch_size: int) -> Rows:
        """The metrics; none for tasks whose scores say it all."""
        task, chosen = self.task, self.chosen
        if isinstance(task, ClassificationTask):
            chosen = np.asarray(chosen)
            examples, documents = task.examples(self.split), np.array(self._documents)
            in_pieces = len(chosen) == len(examples) and len(np.unique(documents)) < len(documents)
            return classification_rows(
                torch.cat(self._probabilities).numpy(),
                examples.targets[chosen],
                task,
                documents=documents if in_pieces else None,
                texts=[examples.text(at) for at in chosen] if isinstance(examples, Texts) else None,
            )
        if isinstance(task, ImagesTask):
            return image_rows(scores.total.nats / scores.total.tokens, task, self.split, self.chosen)
        if isinstance(task, MaskedTask):
            total = scores.total
            return masked_rows(total.correct / total.tokens, total.nats / total.tokens, task, self.split, self.chosen)
        if not (isinstance(task, TranslationTask) and isinstance(self.model, EncoderDecoder)):
            return {}
        examples = task.examples(self.split)
        written = translations(
            self.model,
            [np.append(examples.sources[at], task.tokenizer.separator) for at in chosen],
            task.tokenizer,
            max_new_tokens=task.length,
            beams=beams,
            length_penalty=length_penalty,
            batch_size=batch_size,
        )
        return translation_rows(written, [examples.pairs[at] for at in chosen], task.examples("train").pairs)
