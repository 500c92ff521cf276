"""Routed and low-rank mechanisms against the published PyTorch ports of their papers: medians, paired.

    python evidence/benchmarks/content.py                      # fixed allocation, then default allocation
    python evidence/benchmarks/content.py --lengths 4096 --repeats 9 --threads 1

Rows, each recorded and none asserted: forward + backward, and forward without gradients, of `lsh` and reformer-pytorch,
`routing` and routing-transformer, `nystrom` and nystrom-attention, `linformer` and linformer (one matrix for all heads
on both sides), `efficient` and linear-attention-transformer, of those that are installed. Projections are left out on
both sides: a port whose layer makes them gets the identity in their place. The blocks of FLASH, FLASH-pytorch's and
ours, are compared whole, with as many weights. Ratios are theirs over ours: above 1, ours is faster.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from _pairs import DIM, HEADS, laps, ratio, run, timed
from torch import Tensor, nn

import regard
from regard.models import LanguageModel, presets
from regard.models.blocks import Block

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
FLASH = "FLASH"
"""no specification but a block"""
LANDMARKS = 256
CLUSTER = 64
"""tokens in a cluster, and in a bucket"""


def ours(spec: str, length: int, *, causal: bool) -> Attend:
    heads = regard.Heads(count=HEADS, key_dim=DIM, causal=causal, max_length=length)
    mechanism = regard.build(spec, heads).eval()
    if mechanism.info.shares_query_key:  # as a layer calls it, and as the ports are called
        return lambda q, k, v: mechanism(q, q, v).values
    return lambda q, k, v: mechanism(q, k, v).values


def reformer(module: Any, length: int) -> Attend:
    attention = module.LSHAttention(bucket_size=CLUSTER, n_hashes=4, causal=True).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        del k
        return attention(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)

    return attend


def routing(module: Any, length: int) -> Attend:
    attention = module.KmeansAttention(
        length // CLUSTER, CLUSTER, HEADS, DIM, causal=True, shared_qk=True, num_mem_kv=0
    ).eval()
    attention.kmeans.initted.fill_(True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        del k
        return attention(q, q, v)[0]

    return attend


def nystrom(module: Any, length: int) -> Attend:
    del length
    attention = module.NystromAttention(
        dim=HEADS * DIM, dim_head=DIM, heads=HEADS, num_landmarks=LANDMARKS, pinv_iterations=6, residual=False
    ).eval()
    attention.to_qkv = attention.to_out = nn.Identity()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = torch.cat([y.transpose(1, 2).flatten(2) for y in (q, k, v)], -1)
        return attention(x).unflatten(2, (HEADS, DIM)).transpose(1, 2)

    return attend


def linformer(module: Any, length: int) -> Attend:
    attention = module.LinformerSelfAttention(HEADS * DIM, length, k=LANDMARKS, heads=HEADS, one_kv_head=False).eval()
    attention.to_q = attention.to_k = attention.to_v = attention.to_out = nn.Identity()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        del k, v
        return attention(q.transpose(1, 2).flatten(2)).unflatten(2, (HEADS, DIM)).transpose(1, 2)

    return attend


def efficient(module: Any, length: int) -> Attend:
    del length
    return module.linear_attn


def flash(module: Any, length: int) -> Attend:
    width = HEADS * DIM
    rotary = importlib.import_module("rotary_embedding_torch").RotaryEmbedding(dim=32)
    block = module.FLASH(dim=width, group_size=256, causal=True, rotary_pos_emb=rotary).eval()
    return _of_hidden(block)


def ours_flash(length: int) -> Attend:
    config = presets.build("flash", vocab_size=16, dim=HEADS * DIM, layers=1, chunk_size=256, max_length=length)
    block = next(x for x in LanguageModel(config).eval().modules() if isinstance(x, Block))
    return _of_hidden(lambda x: block(x).hidden)


def _of_hidden(block: Callable[[Tensor], Tensor]) -> Attend:
    """A block on hidden states, which stand where queries do, as wide as all heads."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        del k, v
        return block(q.transpose(1, 2).flatten(2)).unflatten(2, (HEADS, DIM)).transpose(1, 2)

    return attend


PEERS: dict[str, tuple[str, bool, str, Callable[[Any, int], Attend]]] = {
    "lsh(rounds=4, bucket_size=64)": ("lsh", True, "reformer_pytorch.reformer_pytorch", reformer),
    "routing(num_clusters={clusters})": ("routing", True, "routing_transformer.routing_transformer", routing),
    f"nystrom(num_landmarks={LANDMARKS})": ("nystrom", False, "nystrom_attention", nystrom),
    f"linformer(rank={LANDMARKS}, share=head)": ("linformer", False, "linformer", linformer),
    "efficient": ("efficient", False, "linear_attention_transformer.linear_attention_transformer", efficient),
    FLASH: ("flash", True, "flash_pytorch", flash),
}
"""specification -> label, whether causal, module, how its attention is called"""


def forward(attend: Attend, *x: Tensor) -> Callable[[], float]:
    """One forward pass without gradients, in seconds."""

    def once() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            attend(*x)
        return time.perf_counter() - start

    return once


def compared(lengths: list[int], repeats: int) -> None:
    """Every pair at every length."""
    for spec, (label, causal, name, peer) in PEERS.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            print(f"{label}: {name.partition('.')[0]} is not installed", flush=True)
            continue
        for length in lengths:
            torch.manual_seed(0)
            x = torch.randn(1, HEADS, length, DIM)
            x = (x, x, torch.randn(1, HEADS, length, DIM))
            sides = {
                "ours": ours_flash(length)
                if spec == FLASH
                else ours(spec.format(clusters=length // CLUSTER), length, causal=causal),
                "theirs": peer(module, length),
            }
            for kind, make in (("forward + backward", timed), ("forward", forward)):
                found = laps({side: make(attend, *x) for side, attend in sides.items()}, repeats)
                milliseconds = {side: 1e3 * sorted(times)[len(times) // 2] for side, times in found.items()}
                print(
                    f"  {label:10} n={length:6} {kind:18} ours {milliseconds['ours']:8.1f} ms, theirs "
                    f"{milliseconds['theirs']:8.1f} ms: {ratio(found, 'theirs', 'ours'):.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    run(__file__, __doc__, compared, [1024, 4096])
