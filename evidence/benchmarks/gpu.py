"""On a CUDA device: every causal mechanism beside the fused kernel, engines beside each other, decoding, and training.

Run: python evidence/benchmarks/gpu.py [mechanisms] [engines] [decoding] [training] [bits] [--seconds S] [--out FILE]
Times are medians over turns, by CUDA events around a call that was warmed up; the fused kernel of torch
(`scaled_dot_product_attention`) takes its turn beside each. bfloat16, batch 4, 16 heads of width 64, unless a row says
otherwise. A call of more than `--seconds` (5) per mechanism and length is measured once and says so; what cannot be
called is printed with its error. Peak memory is what a call allocates beyond its inputs. Without a CUDA device it says
so, and ends.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import regard
from regard import catalog
from regard.engines.kernels import forced
from regard.models import LanguageModel, ModelConfig
from regard.testing.inputs import Subject, draw

BATCH, HEADS, WIDTH = 4, 16, 64
LENGTHS = (4096, 16384)
PAST = 4096
SIZES = {
    "local": {"window": 256},
    "dynamic_span": {},
    "longformer": {"window": 256},
    "lsh": {"rounds": 2, "bucket_size": 64},
    "vector_quantized": {"num_codes": 512, "block_size": 512},
    "strided": {"stride": 128},
    "strided_union": {"stride": 128},
    "fixed": {"stride": 128},
    "fixed_union": {"stride": 128},
    "bigbird": {"block_size": 64},
    "performer": {"num_features": 256},
}
"""options of the mechanisms whose defaults are for short texts"""
Row = dict[str, object]


def timed(call: Callable[[], object]) -> float:
    """Milliseconds on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def turns(calls: dict[str, Callable[[], object]], seconds: float, most: int = 15) -> dict[str, Row]:
    """Medians of calls by turns, as many as the seconds allow, and what each allocates at its peak."""
    found: dict[str, Row] = {}
    for name, call in calls.items():
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once = timed(call)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        found[name] = {"ms": [once], "peak MiB": round(peak, 1), "first s": round(time.perf_counter() - began, 2)}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds and len(found[name]["ms"]) < most:
        for name, call in calls.items():
            found[name]["ms"].append(timed(call))
    for row in found.values():
        row["turns"], row["ms"] = len(row["ms"]), round(statistics.median(row["ms"]), 4)
    return found


def backward(call: Callable[..., torch.Tensor], leaves: list[torch.Tensor]) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in leaves]
    return lambda: torch.autograd.grad(call(*leaves).float().sum(), leaves, allow_unused=True)


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def random(length: int, batch: int = BATCH, heads: int = HEADS) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def built(spec: str, length: int, **options: object) -> tuple[regard.Attention, Subject]:
    cls, given = catalog.resolve(spec)
    subject = Subject(cls, {**SIZES.get(spec, {}), **given, **options})
    size = {"count": HEADS, "key_dim": WIDTH, "value_dim": WIDTH, "max_length": length}
    return subject.fresh(True, **size).to("cuda", torch.bfloat16), subject


def called(spec: str, length: int, batch: int = BATCH) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    mechanism, subject = built(spec, length)
    x = draw(mechanism.heads, subject.info, 16, 16, 1, "gpu")
    q, k, v = random(length, batch)
    more = {
        name: y[:, :, :1].expand(batch, -1, length, -1).to("cuda", torch.bfloat16).contiguous()
        for name, y in x.more.items()
    }
    leaves = [k if subject.info.shares_query_key else q, k, v]
    return lambda q, k, v: mechanism(q, k, v, inputs=more).values, leaves


def guarded(rows: list[Row], name: str, measure: Callable[[], Row]) -> None:
    try:
        row = {"name": name, **measure()}
    except Exception as error:
        row = {"name": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0]:.150}"}
    rows.append(row)
    print(json.dumps(row), flush=True)
    torch.cuda.empty_cache()


def mechanisms(seconds: float) -> list[Row]:
    rows: list[Row] = []
    names = [name for name in catalog.names() if Subject(catalog.resolve(name)[0]).info.supports.causal]
    for length in LENGTHS:
        for name in tuple(names):
            began = time.perf_counter()
            for kind in ("forward", "forward and backward"):

                def measure(name: str = name, length: int = length, kind: str = kind) -> Row:
                    call, leaves = called(name, length)
                    if kind == "forward":
                        with torch.no_grad():
                            found = turns({"ours": lambda: call(*leaves), "fused": lambda: fused(*leaves)}, seconds / 4)
                    else:
                        both = {"ours": backward(call, leaves), "fused": backward(fused, leaves)}
                        found = turns(both, seconds / 4)
                    ratio = found["ours"]["ms"] / found["fused"]["ms"]
                    return {"length": length, "kind": kind, **found, "ours / fused": round(ratio, 3)}

                guarded(rows, name, measure)
                if time.perf_counter() - began > 3 * seconds or "error" in rows[-1]:
                    names.remove(name)  # too slow, or impossible, for what comes next
                    break
    return rows


def engines(seconds: float) -> list[Row]:
    """One sum or one pattern, by the engines that have it; and a dense score in buffers of several sizes."""
    rows: list[Row] = []
    for spec, engines in {
        "linear": ("triton", "sums"),
        "local(window=256)": ("flex", "tiles"),
        "strided_union(stride=128)": ("flex", "tiles"),
        "fixed_union(stride=128, columns=8)": ("flex", "tiles"),
    }.items():
        for length in LENGTHS:

            def measure(spec: str = spec, length: int = length, engines: tuple[str, ...] = engines) -> Row:
                leaves, heads = random(length), regard.Heads(count=HEADS, key_dim=WIDTH, causal=True)
                mechanism = regard.build(spec, heads).to("cuda", torch.bfloat16)

                def by(engine: str, *x: torch.Tensor) -> torch.Tensor:
                    with forced(engine):
                        return mechanism(*x).values

                calls = {engine: partial(by, engine, *leaves) for engine in engines}
                with torch.no_grad():
                    forward = turns({**calls, "fused": lambda: fused(*leaves)}, seconds / 4)
                steps = {engine: backward(partial(by, engine), leaves) for engine in engines}
                both = turns({**steps, "fused": backward(fused, leaves)}, seconds / 4)
                return {"length": length, "forward": forward, "forward and backward": both}

            guarded(rows, spec, measure)
    from regard.engines.dense import chunks
    from regard.engines.tiles import layout, plan

    def buffers(spec: str, use: Callable[[int], None], sizes: tuple[int, ...]) -> Row:
        call, leaves = called(spec, LENGTHS[0])
        found: Row = {"length": LENGTHS[0]}
        for size in sizes:
            use(size)
            with torch.no_grad():
                found[str(size)] = turns({"ours": lambda: call(*leaves)}, seconds / 8)["ours"]
        return found

    def of_chunks(size: int) -> None:
        chunks.DEVICE_CHUNK_ELEMENTS = size

    def of_tiles(size: int) -> None:
        layout.ROOM["cuda"] = size
        plan._cache.clear()

    guarded(rows, "sigmoid by numbers in a chunk", lambda: buffers("sigmoid", of_chunks, (2**18, 2**22, 2**28, 2**25)))
    guarded(rows, "local by room of a buffer", lambda: buffers("local", of_tiles, (1, 16, 1024, 128)))
    return rows


def decoding(seconds: float) -> list[Row]:
    """Microseconds of a token behind PAST others, batches of 1 and 64."""
    rows: list[Row] = []
    for name in catalog.names():
        info = Subject(catalog.resolve(name)[0], SIZES.get(name, {})).info
        if not (info.supports.causal and info.supports.state) or info.inputs:
            continue

        def measure(name: str = name) -> Row:
            row: Row = {}
            for batch in (1, 64):
                mechanism, subject = built(name, PAST + 256)
                q, k, v = random(PAST, batch)
                state = mechanism.initial_state(batch, device=q.device, dtype=q.dtype)
                past = mechanism(k if subject.info.shares_query_key else q, k, v, state=state).state
                one = [x[:, :, :1].contiguous() for x in ((k if subject.info.shares_query_key else q), k, v)]
                found = turns({"ours": lambda: mechanism(*one, state=past)}, seconds / 8, most=50)  # noqa: B023
                row[f"batch {batch} us"] = round(1000 * found["ours"]["ms"], 1)
            return row

        with torch.no_grad():
            guarded(rows, name, measure)
    return rows


def training(seconds: float) -> list[Row]:
    """Tokens per second of a step of a decoder with 12 layers of width 768, 8 texts of 2,048 tokens, by AdamW."""
    rows: list[Row] = []
    for spec, compiled in (
        ("softmax", False),
        ("softmax", True),
        ("linear", False),
        ("local(window=256)", False),
    ):

        def measure(spec: str = spec, compiled: bool = compiled) -> Row:
            shape = ModelConfig(dim=768, layers=12, heads=12, vocab_size=32000, max_length=2048, attention=(spec,))
            model = LanguageModel(shape).cuda().train()
            adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            run = torch.compile(model) if compiled else model
            tokens = torch.randint(32000, (8, 2049), device="cuda")

            def step() -> None:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    logits = run(tokens[:, :-1]).logits
                F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
                adam.step()
                adam.zero_grad()

            found = turns({"step": step}, seconds)["step"]
            return {**found, "tokens/s": round(8 * 2048 / found["ms"] * 1000), "compiled": compiled}

        guarded(rows, spec, measure)
    return rows


def bits(seconds: float) -> list[Row]:
    """Whether values and gradients have the same bits in five calls, of 512 positions in float32."""
    del seconds
    rows: list[Row] = []
    for name in catalog.names():

        def measure(name: str = name) -> Row:
            cls, _ = catalog.resolve(name)
            subject = Subject(cls, cls.samples[0])
            row: Row = {}
            for causal in subject.modes:
                mechanism = subject.build(causal, max_length=512)
                x = draw(mechanism.heads, subject.info, 512, 512, 2, "bits")
                x, mechanism = x.map(lambda y: y.cuda()).leaves(), mechanism.cuda()
                leaves = {**x.named(), **dict(mechanism.named_parameters())}
                results = []
                for _ in range(5):
                    values = mechanism(x.q, x.k, x.v, inputs=x.more).values
                    grads = torch.autograd.grad(values.square().sum(), list(leaves.values()), allow_unused=True)
                    results.append((values, dict(zip(leaves, grads, strict=True))))
                values, grads = results[0]
                row[f"values, {causal=}"] = all(torch.equal(values, other) for other, _ in results)
                row[f"gradients that differ, {causal=}"] = [
                    key
                    for key, g in grads.items()
                    if g is not None and not all(torch.equal(g, other[key]) for _, other in results)
                ]
            return row

        guarded(rows, name, measure)
    return rows


PARTS = {f.__name__: f for f in (engines, training, bits, decoding, mechanisms)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[], choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each mechanism and length")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device")
        return
    found: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in options.parts or PARTS:
        print(f"== {name}", flush=True)
        found[name] = PARTS[name](options.seconds)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
