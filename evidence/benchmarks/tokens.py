"""Writes synthetic text of a given size, builds a token store of it and trains on that: seconds and resident memory.

`python evidence/benchmarks/tokens.py --gigabytes 10 --folder FOLDER`; the text and the store are deleted afterwards.
"""

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

FILE_BYTES = 64 << 20
SHAPE = ["--model.dim", "128", "--model.layers", "2", "--model.heads", "4", "--task.length", "256"]


def write(folder: Path, gigabytes: float) -> int:
    """Documents of 0.2 to 8 kB of Zipf-distributed words, in .jsonl files in folders of ten; how many bytes."""
    draw = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    words = [draw.choice(letters, draw.integers(2, 10)).tobytes().decode() for _ in range(50_000)]
    written, number = 0, 0
    while written < gigabytes * 1e9:
        path = folder / f"{number // 10:03d}" / f"{number % 10}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="ascii") as file:
            pool = " ".join(words[at] for at in np.minimum(draw.zipf(1.3, 200_000), len(words)) - 1)
            document = 0
            while file.tell() < FILE_BYTES:
                size = int(draw.integers(200, 8000))
                start = int(draw.integers(len(pool) - size))
                file.write(json.dumps({"text": f"{number} {document} {pool[start : start + size]}"}) + "\n")
                document += 1
            written += file.tell()
        number += 1
    return written


def command(*words: str) -> tuple[float, int, str]:
    """Seconds, largest resident kilobytes of a process of it, and what it said."""
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "regard", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return (
        time.perf_counter() - begun,
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        done.stdout + done.stderr,
    )


WATCHED = """
import re, sys
from regard.cli.main import main
code = main(sys.argv[1:])
said = open("/proc/self/status").read()
print({name: int(re.search(name + r":\\s+(\\d+)", said)[1]) for name in ("RssAnon", "RssFile", "VmHWM")})
sys.exit(code)
"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--gigabytes", type=float, default=1.0)
    asked.add_argument("--folder", type=Path, required=True)
    asked.add_argument("--processes", default="2")
    asked.add_argument("--tokenizer", default="bytes")
    options = asked.parse_args()
    text, store = options.folder / "text", options.folder / "store"
    try:
        begun = time.perf_counter()
        size = write(text, options.gigabytes)
        print(f"wrote {size / 1e9:.2f} GB in {time.perf_counter() - begun:.0f} s", flush=True)
        build = ["tokens", "build", str(text), "--out", str(store), "--processes", options.processes, "--json"]
        seconds, peak, _ = command(*build, "--tokenizer", options.tokenizer, "--holdout", "0.001")
        print(
            f"build: {seconds:.0f} s, {size / 1e6 / seconds:.0f} MB/s, largest process {peak / 1024:.0f} MiB",
            flush=True,
        )
        seconds, _, _ = command("tokens", "verify", str(store))
        print(f"verify: {seconds:.0f} s", flush=True)
        print(command("tokens", "stats", str(store), "--json")[2], flush=True)
        for corpus in ("state_of_the_union", str(store)):
            run = options.folder / f"run-{Path(corpus).name}"
            begun = time.perf_counter()
            words = ["train", "--task.corpus", corpus, *SHAPE, "--steps", "20", "--batch-size", "16", "--threads", "1"]
            words += ["--evaluate-examples", "64", "--out", str(run)]
            done = subprocess.run([sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=True)
            found = re.findall(r"'(\w+)': (\d+)", done.stdout)
            said = ", ".join(f"{name} {int(value) // 1024} MiB" for name, value in found)
            print(f"20 steps on {Path(corpus).name}: {time.perf_counter() - begun:.1f} s, {said}", flush=True)
    finally:
        for path in (text, store, *options.folder.glob("run-*")):
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
