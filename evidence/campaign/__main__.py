"""Attack the library, write down what came of it, and write docs/reliability.md from that.

python -m evidence.campaign                       every part, on behind what the log has, to its share of the full form
python -m evidence.campaign --short               a little of every part, in less than two minutes; nothing is written
python -m evidence.campaign kills --seconds 600   one part, for so long
python -m evidence.campaign --again               the cases that were defects, once more
python -m evidence.campaign --page                only the page
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from evidence.campaign import log, parts

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "COLUMNS": "200",
    "PYTHONHASHSEED": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_STACKSIZE": "512k",
    "RUST_BACKTRACE": "0",
}
"""what a process that forks needs: no threads of its own, small stacks for those that are asked for, since what is
reserved counts as memory here; what makes cases the same again; and no backtrace of what is written in Rust, which
hangs in printing it where no memory is left (seen of safetensors)"""


def main(words: Sequence[str]) -> int:
    """Run the campaign; exit code 7 if a case is a defect."""
    parser = argparse.ArgumentParser(prog="python -m evidence.campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help="kills, faults, damage, fuzz, hygiene; none: all")
    parser.add_argument("--kind", action="append", help="only this kind of a part; may be given again")
    parser.add_argument("--cases", type=int, help="of each kind, beside those of the log; none: as the full form needs")
    parser.add_argument("--seconds", type=float, help="for each part, on the clock, spread over its kinds")
    parser.add_argument("--first", type=int, help="begin with this seed; nothing is written")
    parser.add_argument("--short", action="store_true", help="a little of every part; nothing is written")
    parser.add_argument("--again", action="store_true", help="cases that were defects, once more")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args(words)
    from evidence.campaign import children, page

    if options.page:
        page.write()
        return 0
    known = {part.NAME: part for part in parts.every()}
    if unknown := set(options.parts) - known.keys():
        sys.exit(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    children.warm()
    defects = 0
    for part in (known[name] for name in known if not options.parts or name in options.parts):
        chosen = [kind for kind in part.KINDS if not options.kind or kind in options.kind]
        for kind, seeds in _planned(part, chosen, options, log.read(log.RECORDED)):
            written = None if options.short or options.first is not None else log.RECORDED
            like = log.Batch(
                part.NAME,
                kind,
                0,
                shlex.join(["python", "-m", "evidence.campaign", *words]),
                options.again,
                part.JUDGED.get(kind, 1),
            )
            defects += _run(part, like, seeds, written)
    if not options.short and options.first is None:
        page.write()
    used = os.times()
    print(f"{used.user + used.system + used.children_user + used.children_system:.0f} s of a processor", flush=True)
    return 7 if defects else 0


def _planned(
    part: ModuleType, kinds: Sequence[str], options: argparse.Namespace, batches: list[dict]
) -> Iterator[tuple[str, Iterator[int]]]:
    """Kinds and their seeds."""
    began = time.monotonic()
    for number, kind in enumerate(kinds, 1):
        if options.again:
            found = log.open_defects(batches)
            seeds = [each["seed"] for each in found if (each["part"], each["kind"]) == (part.NAME, kind)]
        elif options.short:
            if kind not in part.SHORT:
                continue
            first = int(time.time()) if options.first is None else options.first
            seeds = range(first, first + part.SHORT[kind])
        else:
            first = log.following(batches, part.NAME, kind) if options.first is None else options.first
            there = log.made(batches, part.NAME, kind, part.JUDGED.get(kind, 1))
            more = max(0, part.KINDS[kind] - there) if options.cases is None else options.cases
            seeds = range(first, first + more)
        until = None if options.seconds is None else began + options.seconds * number / len(kinds)
        if seeds:
            yield kind, _until(seeds, until)


def _until(seeds: Sequence[int], until: float | None) -> Iterator[int]:
    for done, seed in enumerate(seeds):
        if done and until is not None and time.monotonic() > until:
            return
        yield seed


def _close(batch: log.Batch | None, path: Path | None) -> None:
    """Write a batch down, if it is to be, and print what came of it."""
    if batch is None or not batch.count:
        return
    if path is not None:
        log.append(path, batch)
    counts = ", ".join(f"{count} {what}" for what, count in (batch.counts + batch.outcomes).items())
    print(f"{batch.part}, {batch.kind}: {batch.count} cases, {counts}, {batch.seconds:.1f} s", flush=True)


def _run(part: ModuleType, like: log.Batch, seeds: Iterator[int], path: Path | None) -> int:
    """Cases of a kind, written down as they come in batches like that one; how many were defects."""
    defects, kind = 0, like.kind
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "kept")  # of commands that are given no other folder
        began = time.monotonic()
        try:
            case = part.cases(kind, Path(folder))
        except RuntimeError as error:
            print(f"{part.NAME}, {kind}: {error}", flush=True)
            return 1
        batch: log.Batch | None = None
        before = -1
        try:
            for seed in seeds:
                if batch is None or seed != before + 1 or batch.count >= part.BATCH:
                    _close(batch, path)
                    batch = log.Batch(part.NAME, kind, seed, like.command, like.again, like.judged)
                outcome = case(seed)
                now = time.monotonic()
                batch.add(seed, outcome, now - began)
                began, before = now, seed
                if outcome.defect:
                    defects += 1
                    print(f"{part.NAME}, {kind}, seed {seed}: {outcome.what}", flush=True)
        finally:  # also of a campaign that is interrupted
            _close(batch, path)
    return defects


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
        os.environ.update(SETTINGS)  # libraries and interpreters read some of them when they start
        os.execv(sys.executable, [sys.executable, "-m", "evidence.campaign", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
