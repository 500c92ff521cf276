"""Layers with global tokens beside those of transformers, and mechanisms beside dense attention.

    python evidence/benchmarks/global_tokens.py [--lengths 4096 16384] [--repeats 7] [--threads 2]

Ratios above 1: ours is faster, forward + backward, with the projections of queries, keys and values on both sides and
an output projection on neither (theirs is in another module). Shares: operations of kept pairs
per second over those of dense attention, which keeps all. Without transformers only the shares are measured.
"""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from _pairs import DIM, HEADS, laps, ratio, run, timed
from torch import Tensor, nn

from regard import AttentionLayer, Heads, build
from regard.attention.sparse.bigbird import Bigbird
from regard.core.attention import Attention

WIDTH = HEADS * DIM


def step(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], float]:
    """One forward + backward of a layer, its weights included, in seconds."""
    gradient = torch.randn_like(x)

    def once() -> float:
        leaf = x.detach().requires_grad_()
        start = time.perf_counter()
        layer(leaf).backward(gradient)
        return time.perf_counter() - start

    return once


def longformers(length: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Ours and that of transformers: 256 keys on either side, one global token with projections of its own."""
    config = import_module("transformers").LongformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[512]
    )
    published = import_module("transformers.models.longformer.modeling_longformer")
    theirs, x = published.LongformerSelfAttention(config, layer_id=0).eval(), torch.randn(1, length, WIDTH)
    mask = torch.zeros(1, length)
    mask[0, 0] = 10000.0
    given = {"is_index_masked": mask < 0, "is_index_global_attn": mask > 0, "is_global_attn": True}
    ours = AttentionLayer(
        WIDTH, "longformer(window=256)", heads=HEADS, causal=False, projections="global", bias=True
    ).eval()
    ours.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return step(lambda x: ours(x).hidden, x), step(lambda x: theirs(x, attention_mask=mask, **given)[0], x)


def bigbirds(length: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Ours and that of transformers: blocks of 64, 3 random ones, the first and the last global."""
    published = import_module("transformers.models.big_bird.modeling_big_bird")
    config = import_module("transformers").BigBirdConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, max_position_embeddings=length
    )
    theirs, x = published.BigBirdBlockSparseAttention(config, seed=0).eval(), torch.randn(1, length, WIDTH)
    masks = published.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
    blocked, band, rows, columns = masks
    ours = AttentionLayer(WIDTH, "bigbird", heads=HEADS, causal=False, max_length=length, bias=True).eval()
    ours.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return step(lambda x: ours(x).hidden, x), step(lambda x: theirs(x, band, rows, columns, blocked, blocked)[0], x)


def kept(mechanism: Attention, length: int, window: int | None) -> float:
    """Pairs that a head keeps, of length x length."""
    at = torch.arange(length)
    if window is not None:
        near = (at + window).clamp(max=length - 1) - (at - window).clamp(min=0) + 1
        return float(near[1:].sum()) + length + int((at > window).sum())
    assert isinstance(mechanism, Bigbird)
    pattern = mechanism.pattern.of(0)
    return sum(float(pattern.mask(rows, at).sum()) for rows in at.split(1024))


def shares(length: int, repeats: int) -> None:
    """Print each mechanism's share of the rate of dense attention."""
    heads = Heads(count=HEADS, key_dim=DIM, max_length=length)
    windows: dict[str, int | None] = {"longformer(window=256)": 256, "bigbird": None}
    q, k, v = torch.randn(3, 1, HEADS, length, DIM)
    built = {spec: build(spec, heads) for spec in windows}
    served: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"dense": F.scaled_dot_product_attention}
    served |= {spec: lambda *x, m=m: m(*x).values for spec, m in built.items()}

    def forward(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], float]:
        def once() -> float:
            with torch.no_grad():
                start = time.perf_counter()
                attend(q, k, v)
                return time.perf_counter() - start

        return once

    for what, make in (("forward", forward), ("forward + backward", lambda attend: timed(attend, q, k, v))):
        found = laps({name: make(attend) for name, attend in served.items()}, repeats)
        for spec, window in windows.items():
            share = ratio(found, "dense", spec) * kept(built[spec], length, window) / length**2
            print(f"n = {length}, {spec}, {what}: {share:.0%} of the rate of dense attention", flush=True)


def work(lengths: Sequence[int], repeats: int) -> None:
    """Everything at every length."""
    for length in lengths:
        if find_spec("transformers") is not None:
            for name, make in (("longformer", longformers), ("bigbird", bigbirds)):
                ours, theirs = make(length)
                found = laps({"ours": ours, "theirs": theirs}, repeats)
                print(f"n = {length}, {name}: {ratio(found, 'theirs', 'ours'):.2f} x transformers", flush=True)
        shares(length, repeats)


if __name__ == "__main__":
    run(__file__, __doc__, work, [4096, 16384])
