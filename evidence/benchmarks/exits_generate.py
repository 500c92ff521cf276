"""Generation with exits at half depth against full depth, in turns: seconds per token at batch 1 and 8.

    OMP_NUM_THREADS=1 python evidence/benchmarks/exits_generate.py          # about 1 minute

A decoder of 12 blocks of width 512 over bytes, with weights as they are drawn: what it says is of no matter here, only
how long it takes. Its light heads are set so that every token leaves after block 6; then a token costs six blocks, one
guess, and the keys of six more. Both sides generate the same number of tokens behind the same prompts, one after the
other, who goes first in turns; the first token, with which the prompt is read, is not counted. The ratios are of
processor time, medians over turns with their range.
"""

import statistics
import time
from functools import partial

import torch

from regard.models import LanguageModel, ModelConfig
from regard.models.depth.light_exit import LightExit
from regard.models.generate import stream

LAYERS, TURNS, PROMPT, TOKENS = 12, 9, 32, 48


def model_of(leaves_after: int) -> LanguageModel:
    """A decoder whose tokens all leave after so many blocks; LAYERS: none does."""
    model = LanguageModel(ModelConfig(dim=512, heads=8, layers=LAYERS, depth="light_exit(threshold=0.5, whole=0)"))
    depth = model.depth
    assert isinstance(depth, LightExit)
    with torch.no_grad():
        depth.judge_bias.fill_(-20.0)
        if leaves_after < LAYERS:
            depth.judge_bias[leaves_after - 1] = 20.0
    return model.eval()


def timed(model: LanguageModel, rows: int) -> tuple[float, float]:
    """Seconds of all tokens but the first, and their mean number of blocks."""
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(256, (rows, PROMPT), generator=draw)
    pieces = stream(model, prompts, max_new_tokens=TOKENS + 1, temperature=0.0)
    for _ in range(rows):
        next(pieces)
    started = time.process_time()
    layers = [piece.layers or 0 for piece in pieces]
    return time.process_time() - started, statistics.fmean(layers)


def paired(one: LanguageModel, other: LanguageModel, rows: int):
    """Print the ratio of the full side, the other, to the early one."""
    early, full = partial(timed, one, rows), partial(timed, other, rows)
    ratios, seconds, blocks = list[float](), [], 0.0
    for turn in range(TURNS + 1):
        sides = [early, full] if turn % 2 else [full, early]
        got = {side: side() for side in sides}
        blocks = got[early][1]
        if turn:  # the first warms up
            ratios.append(got[full][0] / got[early][0])
            seconds.append((got[early][0], got[full][0]))
    each, whole = (1e3 * statistics.median(one) / TOKENS for one in zip(*seconds, strict=True))
    print(
        f"half depth, batch {rows}, prompt of {PROMPT}: {blocks:.1f} of {LAYERS} blocks, {each:.2f} ms a step against "
        f"{whole:.2f} ms: {statistics.median(ratios):.2f} times faster ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    half, full = model_of(LAYERS // 2), model_of(LAYERS)
    for rows in (1, 8):
        paired(half, full, rows)
