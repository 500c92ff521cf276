"""Reading a text with the memory of segments against a window that slides over it, at equal context, in turns.

    OMP_NUM_THREADS=1 python evidence/benchmarks/segments.py          # some 2 minutes

A decoder of four blocks of width 128 with positions of Transformer-XL and weights as they are drawn: what it says is of
no matter here, only how long it takes per letter of the real text. One side reads on, in segments behind a memory as
long as the context; the other gives every letter a window of its own, 64 windows at a time. Neither computes outputs
that nobody asks for. The context that a position is certain of is the same: the window, and the memory. Ratios are of
processor time, medians over turns with their range; operations are counted in `python -m evidence.claims
memory_evaluation_cost`.
"""

import statistics
import time

import torch
from torch import Tensor

from regard.models import LanguageModel, ModelConfig
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus

SEGMENT, LETTERS, TURNS = 64, 512, 5
CONTEXTS = (64, 128, 256, 512)


def model_of(memory: str, length: int) -> LanguageModel:
    config = ModelConfig(
        dim=128, heads=4, layers=4, position="transformer_xl", memory=memory, max_length=length, vocab_size=256
    )
    return LanguageModel(config).eval()


def seconds_with_memory(model: LanguageModel, text: Tensor, context: int) -> float:
    """Per letter, behind a memory that is full."""
    state = model.initial_state(1, segments=True)
    state = model(text[:, :context], state=state).state
    started = time.process_time()
    model(text[:, context : context + LETTERS], state=state)
    return (time.process_time() - started) / LETTERS


def seconds_of_windows(model: LanguageModel, text: Tensor, context: int) -> float:
    """Per letter, each behind as many letters."""
    windows = text[0].unfold(0, context + 1, 1)[:64]
    started = time.process_time()
    model.logits(model.hidden(windows).hidden[:, -1])
    return (time.process_time() - started) / len(windows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    first = next(iter(open_corpus(TextConfig(corpus="state_of_the_union")).parse()))
    text = torch.tensor([list(first.text.encode()[: max(CONTEXTS) + LETTERS + 64])])
    with torch.no_grad():
        for context in CONTEXTS:
            memory = model_of(f"recent(length={context})", SEGMENT)
            window = model_of("none", context + 1)
            ratios: list[float] = []
            for turn in range(TURNS + 1):
                if turn % 2:
                    slow = seconds_of_windows(window, text, context)
                    fast = seconds_with_memory(memory, text, context)
                else:
                    fast = seconds_with_memory(memory, text, context)
                    slow = seconds_of_windows(window, text, context)
                if turn:  # the first warms up
                    ratios.append(slow / fast)
            print(
                f"context {context}: with a memory a letter is read {statistics.median(ratios):.1f} times faster "
                f"({min(ratios):.1f} to {max(ratios):.1f})",
                flush=True,
            )
