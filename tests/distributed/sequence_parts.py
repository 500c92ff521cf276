"""Run by the tests as a program: processes share the positions of sequences, and each compares with the whole.

    sequence_parts.py FOLDER JOB...

Forks the processes of every job as `processes.py` does; what they found is in FOLDER/JOB/SCENARIO RANK.json, and their
exit codes in FOLDER/JOB/codes.json.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard import catalog
from regard.core.attention import Attention
from regard.core.errors import LimitError, RegardError, UnsupportedError
from regard.core.info import Heads
from regard.distributed.group import Group
from regard.distributed.sequence import Parts, attended, sequence_parallel, way_of
from regard.layer import AttentionLayer
from regard.models import Encoder, EncoderConfig, LanguageModel, MaskedLanguageModel
from regard.models.config import ModelConfig
from regard.testing.inputs import Inputs, Subject, mask_with_holes, randn
from regard_lab.distributed import SequenceParts
from regard_lab.tasks import Task
from regard_lab.training import Trainer, TrainingConfig
from regard_lab.training.network import Network
from regard_lab.training.ranks import ALONE, Ranks
from tests.distributed import processes
from tests.mutants.edited_sequence import SEQUENCE

Found = dict[str, Any]

LENGTH = 13
"""of whole sequences; no number of processes divides it"""


def subjects() -> Iterator[tuple[str, Subject, bool]]:
    """Every mechanism of the catalog under every option set that the conformance suite checks, in both directions."""
    for name in catalog.names():
        cls = catalog.resolve(name)[0]
        for options in cls.samples:
            subject = Subject(cls, options)
            for causal in subject.modes:
                yield f"{name}({', '.join(f'{k}={v}' for k, v in options.items())}) {causal=}", subject, causal


def part_of(parts: Parts, x: Tensor) -> Tensor:
    return parts.cut(x.detach(), 2).clone().requires_grad_()


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    scale = max(float(expected.abs().max()), 1.0)
    return float((found - expected).abs().max()) / scale if found.isfinite().all() else float("inf")


def compared(parts: Parts, mechanism: Attention, x: Inputs, key_mask: Tensor | None) -> dict[str, float]:
    """How far values and gradients of this part are from those of one call on the whole sequence."""
    x = x.map(lambda y: y.detach().clone())
    if key_mask is not None:  # what hidden keys hold is nobody's business either
        for y in (x.k, x.v):
            y.masked_fill_(~key_mask[:, None, :, None], float("nan"))
    x = x.leaves()
    whole = mechanism(x.q, x.k, x.v, key_mask=key_mask, inputs=x.more).values
    way = randn(*whole.shape, seed="way", dtype=torch.float64).to(whole.device)
    if key_mask is not None:  # what hidden queries get is nobody's business
        way = way.masked_fill(~key_mask[:, None, :, None], 0)
        whole = whole.masked_fill(~key_mask[:, None, :, None], 0)
    (whole * way).sum().backward()
    weights = list(mechanism.named_parameters())
    expected = {name: None if w.grad is None else w.grad.clone() for name, w in weights}
    mechanism.zero_grad()
    own = {name: part_of(parts, y) for name, y in x.named().items()}
    mask = None if key_mask is None else parts.cut(key_mask)
    parts.begin(own["q"].shape[2])
    before = parts.numbers
    inputs = {name: own[name] for name in x.more}
    got = attended(parts, mechanism, own["q"], own["k"], own["v"], key_mask=mask, inputs=inputs).values
    found = {"numbers": parts.numbers - before}
    values = got if mask is None else got.masked_fill(~mask[:, None, :, None], 0)
    found["values"] = difference(values.detach(), parts.cut(whole.detach(), 2))
    (got * parts.cut(way, 2)).sum().backward()
    for name, y in x.named().items():
        if y.grad is not None:
            assert own[name].grad is not None, name
            found[f"gradient of {name}"] = difference(own[name].grad, parts.cut(y.grad, 2))
    for name, weight in weights:
        if expected[name] is not None:
            total = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            dist.all_reduce(total)
            found[f"gradient of {name}"] = difference(total, expected[name])
    mechanism.zero_grad()
    return found


def mechanisms(folder: Path, group: Group, only: str = "", device: str = "cpu") -> Found:
    """Every mechanism that has an exchange; under options that are not the default with hidden keys too."""
    parts, found = Parts(group), {}
    for name, subject, causal in subjects():
        if not name.startswith(only):
            continue
        mechanism = subject.build(causal, dtype=torch.float64, max_length=LENGTH, **grouped(subject))
        try:
            way = way_of(mechanism)
        except UnsupportedError as error:
            found[name] = {"way": "refused", "why": str(error)}
            continue
        x = subject.inputs(mechanism, queries=LENGTH, dtype=torch.float64)
        plain = not subject.options or not subject.info.supports.key_mask
        keep = None if plain else mask_with_holes(2, LENGTH).to(device)
        found[name] = {"way": way, **compared(parts, mechanism.to(device), x.map(lambda y: y.to(device)), keep)}
    return found


def grouped(subject: Subject) -> dict[str, int]:
    """Query heads that share keys, where queries are no keys."""
    return {} if subject.info.shares_query_key else {"kv_count": 1}


LAYERS = {
    "softmax": {"position": "rotary", "kv_heads": 2},
    "softmax, alibi": {"spec": "softmax", "position": "alibi", "kv_heads": 1},
    "softmax, t5": {"spec": "softmax", "position": "t5_bias", "causal": False},
    "softmax, transformer_xl": {"spec": "softmax", "position": "transformer_xl"},
    "softmax, both ways": {"spec": "softmax", "position": "transformer_xl", "causal": False},
    "cosine": {"position": "sinusoidal"},
    "forgetting": {"position": "alibi"},
    "local(window=5)": {"position": "rotary", "kv_heads": 2},
    "local(window=6), alibi": {"spec": "local(window=6)", "position": "alibi", "kv_heads": 1},
    "local(window=4), both ways": {"spec": "local(window=4)", "position": "transformer_xl", "causal": False},
    "fixed(stride=6, columns=2)": {"position": "t5_bias"},
    "strided_union(stride=4)": {"position": "shaw_keys(max_distance=5)"},
    "longformer(window=5), alibi": {"spec": "longformer(window=5)", "position": "alibi", "kv_heads": 2},
    "longformer(window=40)": {"position": "transformer_xl"},
    "linear": {"position": "rotary", "kv_heads": 2},
    "linear(rotary=true)": {"position": "learned", "max_length": 40},
    "rfa(num_features=8, gate=true)": {"kv_heads": 2},
    "local(window=4):2 + linear:2": {"position": "rotary", "kv_heads": 2},
    "softmax:2 + local(window=3):2": {"position": "alibi"},
    "dynamic_span(max_span=9, ramp=3):3 + forgetting:1": {},
    "pattern(rule='strided(4) & ~window(3)')": {"kv_heads": 2},  # the first queries see no key
}
"""of width 32, 4 heads, with what stands around the mechanism"""


def layers(folder: Path, group: Group) -> Found:
    """Layers as users call them: hidden states and the gradients of inputs and of every weight."""
    found = {}
    for name, options in LAYERS.items():
        given = {"spec": name, "causal": True, **options}
        layer = AttentionLayer(32, given.pop("spec"), heads=4, **given).double().eval()
        x = randn(2, 33, 32, seed="x", dtype=torch.float64).requires_grad_()
        way = randn(2, 33, 32, seed="way", dtype=torch.float64)
        keep = mask_with_holes(2, 33)
        whole = layer(x, key_mask=keep)
        (whole.hidden * way).masked_fill(~keep[..., None], 0).sum().backward()
        expected = {key: w.grad.clone() for key, w in layer.named_parameters() if w.grad is not None}
        layer.zero_grad()
        with sequence_parallel(layer, group) as parts:
            own, real = parts.cut(x.detach()).clone().requires_grad_(), parts.cut(keep)
            got = layer(own, key_mask=real).hidden
            (got * parts.cut(way)).masked_fill(~real[..., None], 0).sum().backward()
            every = parts.whole(got.detach())
        assert not layer._forward_pre_hooks
        again = layer(x, key_mask=keep).hidden  # which exchanges nothing any more
        shown = keep[..., None]
        found[name] = {
            "values": difference(every.masked_fill(~shown, 0), whole.hidden.detach().masked_fill(~shown, 0)),
            "gradient of x": difference(own.grad, parts.cut(x.grad)),
            "whole again": difference(again.detach(), whole.hidden.detach()),
        }
        for key, weight in layer.named_parameters():
            if key in expected:
                dist.all_reduce(weight.grad)
                found[name][f"gradient of {key}"] = difference(weight.grad, expected[key])
    return found


def at_positions(folder: Path, group: Group) -> Found:
    """A model with a table of 16 positions: those that a caller says, and a sequence of 20."""
    shape = ModelConfig(dim=16, heads=2, layers=2, vocab_size=16, max_length=16, position="learned")
    model = LanguageModel(shape).double().eval()
    tokens, positions = torch.arange(13)[None] % 11, torch.arange(13) * 5 % 7
    with torch.no_grad():
        whole = model(tokens, positions=positions).logits
        with sequence_parallel(model, group) as parts:
            placed = parts.whole(model(parts.cut(tokens), positions=parts.cut(positions[None])[0]).logits)
            try:
                model(parts.cut(torch.zeros(1, 20, dtype=torch.int64)))
                said = ""
            except LimitError as error:
                said = str(error)
    return {"values": difference(placed, whole), "said": said}


def misused(folder: Path, group: Group) -> Found:
    """A part of another length, and one without positions."""
    parts, said = Parts(group), []
    parts.begin(3)
    for wrong in (lambda: parts.whole(torch.zeros(1, 2)), lambda: parts.begin(0 if group.rank == 1 else 3)):
        try:
            wrong()
        except RegardError as error:
            said.append(f"{type(error).__name__}: {error}")
    return {"said": said}


def inputs_alone(folder: Path, group: Group) -> Found:
    """Gradients of a gate where queries, keys and values need none, as behind projections that do not learn."""
    subject = Subject(catalog.resolve("rfa")[0], {"num_features": 8, "gate": True})
    mechanism = subject.build(True, dtype=torch.float64, max_length=LENGTH).requires_grad_(False)
    x = subject.inputs(mechanism, queries=LENGTH, dtype=torch.float64).map(lambda y: y.detach())
    way = randn(*x.v.shape, seed="way", dtype=torch.float64)
    parts = Parts(group)
    whole = {name: y.clone().requires_grad_() for name, y in x.more.items()}
    (mechanism(x.q, x.k, x.v, inputs=whole).values * way).sum().backward()
    own = {name: part_of(parts, y) for name, y in x.more.items()}
    q, k, v = (parts.cut(y, 2) for y in (x.q, x.k, x.v))
    parts.begin(q.shape[2])
    (attended(parts, mechanism, q, k, v, inputs=own).values * parts.cut(way, 2)).sum().backward()
    return {name: difference(own[name].grad, parts.cut(y.grad, 2)) for name, y in whole.items()}  # type: ignore[arg-type]


MODELS = {
    "softmax": {"attention": ("softmax",), "position": "rotary", "kv_heads": 1},
    "hybrid": {"attention": ("local(window=3)", "linear"), "position": "learned"},
    "codes": {"attention": ("vector_quantized(num_codes=4, block_size=4)",)},
    "redrawn": {"attention": ("performer(num_features=8, redraw_interval=2)",)},
    "reversible": {"attention": ("softmax", "linear"), "block": "reversible"},
    "reversible, passed on": {"attention": ("performer", "local_linear(window=3)"), "block": "reversible"},
    "checkpointed": {"attention": ("forgetting", "vector_quantized(num_codes=4, block_size=4)"), "checkpoint": "block"},
    "mixed": {"attention": ("softmax:1 + adaptive_span(max_span=6, ramp=2, initial=0.6):1",), "position": "alibi"},
}
"""whose parts meet in other ways"""


def trained() -> Iterator[tuple[str, Network, Task]]:
    """Language models, and one that reads in both directions."""
    task = processes.recalled(12)
    for name, options in MODELS.items():
        shape = ModelConfig(dim=16, heads=2, layers=2, vocab_size=task.vocab_size, max_length=18, **options)
        yield name, LanguageModel(shape), task
    shape = EncoderConfig(
        dim=16,
        heads=2,
        layers=2,
        vocab_size=task.vocab_size,
        max_length=18,
        position="t5_bias",
        attention=("softmax", "local(window=3)"),
    )
    yield "both ways", MaskedLanguageModel(Encoder(shape)), task


def curves(folder: Path, ranks: Ranks, device: str = "cpu") -> Found:
    """The losses of each kind of model in float64, and the weights and buffers that it ends with."""
    often = {"log_every": 1, "evaluate_every": 3}
    size = {"clip": 2.0, "steps": 3, "batch_size": 12, "accumulation": 2, "threads": 1, "device": device}
    config = TrainingConfig(warmup=2, learning_rate=1e-2, **size, **often)
    found = {}
    for name, model, task in trained():
        (folder / name).mkdir(exist_ok=True)
        Trainer(processes.moved_apart(model.double(), ranks), task, config, folder / name, ranks=ranks).fit()
        ranks.meet()
        found[name] = processes.curves_of(folder / name, model)
    return found


def alone(folder: Path, group: Group) -> Found:
    assert group.count == 1
    return curves(folder, ALONE)


def in_threes(folder: Path, group: Group) -> Found:
    return curves(folder, SequenceParts(group, 3))


def in_pairs(folder: Path, group: Group) -> Found:
    return curves(folder, SequenceParts(group, 2))


def counted(folder: Path, group: Group) -> Found:
    """How many numbers each process sends for sequences of two lengths, forward and backward."""
    found: dict[str, list[int]] = {}
    for spec in ("softmax", "local(window=8)", "fixed(stride=16, columns=2)", "linear", "local_linear(window=8)"):
        mechanism = catalog.build(spec, Heads(count=2, key_dim=4, value_dim=3, causal=True))
        for length in (96, 384):
            parts = Parts(group)
            parts.begin(parts.cut(torch.empty(1, length)).shape[1])
            q, k, v = (part_of(parts, randn(2, 2, length, width, seed="x")) for width in (4, 4, 3))
            values = attended(parts, mechanism, q, k, v).values
            sent = parts.numbers
            values.sum().backward()
            found.setdefault(spec, []).extend([sent, parts.numbers - sent])
    return found


def dropped(folder: Path, group: Group) -> Found:
    """The slope along a direction by differences, and by the gradients, where the same weights are dropped."""
    parts, found = Parts(group), {}
    parts.begin(8)
    for spec in ("softmax", "local(window=5)"):
        mechanism = catalog.build(spec, Heads(count=1, key_dim=4, causal=True, dropout=0.4)).train()
        own = [randn(1, 1, 8, 4, seed=f"{name} {group.rank}", dtype=torch.float64).requires_grad_() for name in "qkv"]
        way = [randn(1, 1, 8, 4, seed=f"way {name} {group.rank}", dtype=torch.float64) for name in "qkv"]

        def objective(step: float, spec: str = spec) -> Tensor:
            torch.manual_seed(group.rank)
            moved = [x + step * d for x, d in zip(own, way, strict=True)]  # noqa: B023
            values = attended(parts, mechanism, *moved).values  # noqa: B023
            return (values * randn(*values.shape, seed=f"loss {group.rank}", dtype=torch.float64)).sum()

        objective(0.0).backward()
        with torch.no_grad():
            differences = (objective(1e-5) - objective(-1e-5)) / 2e-5
        slope = sum(((x.grad * d).sum() for x, d in zip(own, way, strict=True)), torch.zeros(()).double())
        total = torch.stack([slope, differences])
        dist.all_reduce(total)
        found[spec] = total.tolist()
    return found


def mutants(folder: Path, group: Group) -> Found:
    """The case of every fault, while it is made in all processes."""
    found = {}
    for mutant in SEQUENCE:
        with mutant.made():
            found[mutant.name] = mechanisms(folder, group, mutant.subject)
    return found


def interrupted(folder: Path, group: Group, config: str) -> Found:
    """One process is told to stop when its evaluation begins."""
    ranks = SequenceParts(group, 2)
    stopped = ranks.stopped

    def asked(asked: bool) -> bool:
        if group.rank == 1 and not asked:
            os.kill(os.getpid(), signal.SIGTERM)
            return stopped(True)
        return stopped(asked)

    ranks.stopped = asked  # type: ignore[method-assign]
    processes.trained(folder, ranks, config)
    return {}


JOBS: dict[str, tuple[int, tuple[Callable[..., Found], ...]]] = {
    "one": (1, (alone,)),
    "three": (3, (in_threes, mechanisms, mutants, inputs_alone)),
    "four": (4, (in_pairs, layers, counted, dropped, at_positions, misused)),
    "interrupted": (2, (interrupted,)),
}
"""processes, and what each runs"""


def run(job: str, folder: Path, *more: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    count, scenarios = JOBS[job]

    def begun(folder: Path, ranks: Ranks) -> None:
        group = ranks.group  # type: ignore[attr-defined]
        for scenario in scenarios:
            found = scenario(folder, group, *more)
            (folder / f"{scenario.__name__} {group.rank}.json").write_text(json.dumps(found))

    processes.SCENARIOS[job] = begun  # type: ignore[assignment]
    (folder / "codes.json").write_text(json.dumps(processes.run(job, count, folder, [])))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for job in sys.argv[2:]:
        name, *more = job.split("=")
        run(name, Path(sys.argv[1]) / name, *more)
