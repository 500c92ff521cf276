"""A CUDA device gives the CPU's numbers, and a mechanism, its state and a model move between them."""

import copy

import pytest
import torch

from regard import catalog
from regard.models import LanguageModel, ModelConfig
from regard.testing.compare import assert_close, assert_gradients
from regard.testing.inputs import LENGTH, Subject, call, run

SAMPLES = [(name, at) for name in catalog.names() for at in range(len(catalog.resolve(name)[0].samples))]
VALUES, GRADIENTS = 1e-10, 1e-9
"""in float64, of the largest number, as between an algorithm and its definition"""


def subject_of(name: str, at: int) -> Subject:
    cls, _ = catalog.resolve(name)
    return Subject(cls, cls.samples[at])


def moved(x, device: str):
    return x.map(lambda y: y.detach().to(device))


@pytest.mark.parametrize(("name", "at"), SAMPLES)
def test_built_on_the_device(name, at):
    """Under `torch.device("cuda")` a mechanism has the weights and buffers of one that is built on the CPU."""
    subject = subject_of(name, at)
    for causal in subject.modes:
        ours = subject.fresh(causal)
        with torch.device("cuda"):
            theirs = subject.cls(subject.heads(causal), **subject.options).eval()
        wanted = dict([*ours.named_parameters(), *ours.named_buffers()])
        for key, tensor in [*theirs.named_parameters(), *theirs.named_buffers()]:
            assert tensor.is_cuda, key
            assert_close(
                tensor.detach().cpu(), wanted[key].detach(), tolerance=1e-6, what=key
            ) if tensor.numel() else None
        x = subject.inputs(ours)
        assert_close(run(theirs, moved(x, "cuda")).values.cpu(), run(ours, x).values, tolerance=1e-4, what=f"{causal=}")


@pytest.mark.parametrize("name", [name for name in catalog.names() if subject_of(name, 0).info.supports.state])
def test_a_state_moves(name):
    """A text begun on the CPU goes on on the device, token by token, as if it had been one call."""
    subject = subject_of(name, 0)
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    whole = run(mechanism, x).values
    state = run(mechanism, x.slots(0, 6), state=mechanism.initial_state(2, dtype=torch.float64)).state
    state = state.with_tensors({key: y.cuda() for key, y in state.tensors().items()})
    mechanism, pieces = mechanism.cuda(), []
    for at in range(6, LENGTH):
        answer = run(mechanism, moved(x.slots(at, at + 1), "cuda"), state=state)
        state = answer.state
        pieces.append(answer.values.cpu())
    assert_close(torch.cat(pieces, 2), whole[:, :, 6:], tolerance=VALUES, what="tokens behind a state that moved")


COMPILED = [
    "softmax",
    "linear",
    "local(window=16)",
    "longformer(window=16, num_global=2)",
    "rfa",
    "lsh(num_buckets=4, rounds=2)",
]


@pytest.mark.parametrize("spec", COMPILED)
def test_compiled(spec):
    """One graph, made into kernels: values and gradients are those of the mechanism as it is."""
    cls, options = catalog.resolve(spec)
    subject = Subject(cls, options)
    if not subject.info.compiles_whole:
        pytest.skip("is declared to break the graph")
    causal = subject.modes[0]
    mechanism = subject.build(causal, max_length=256)
    x = moved(subject.inputs(mechanism, queries=200, margin=True), "cuda").leaves()
    mechanism = mechanism.cuda()
    torch._dynamo.reset()
    compiled = torch.compile(mechanism, fullgraph=True)
    wanted, got = call(mechanism, x).values, call(compiled, x).values
    assert_close(got.detach(), wanted.detach(), tolerance=1e-5, what=spec)
    grads = [torch.autograd.grad(y.square().sum(), list(x.named().values())) for y in (got, wanted)]
    for key, one, other in zip(x.named(), *grads, strict=True):
        assert_close(one, other, tolerance=1e-4, what=f"gradient of {key}")


MODELS = {
    "recent": {"memory": "recent(length=6)", "max_length": 6, "position": "rotary"},
    "compressive": {"memory": "compressive(length=4, compressed=3, rate=2)", "max_length": 6, "position": "rotary"},
    "memorizing": {"memory": "memorizing(pairs=8, top=3)", "max_length": 6, "position": "rotary"},
    "lists": {"memory": "memorizing(pairs=64, top=3, index=ivf, probes=2)", "max_length": 6, "position": "rotary"},
    "universal": {"depth": "universal(steps=4)", "layers": 1},
    "exits": {"depth": "early_exit(threshold=0.3)", "layers": 4},
    "convolution": {"attention": ("linear", "softmax:1 + local(window=3):1"), "short_convolution": 3},
    "rebuilt": {"block": "reversible"},
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    """Logits and gradients of a decoder are those of the CPU."""
    shape = {"dim": 16, "layers": 2, "heads": 2, "vocab_size": 20, "seed": 3, **MODELS[name]}
    model = LanguageModel(ModelConfig(**shape)).double()
    tokens = torch.arange(3 * 21).reshape(3, 21) * 7 % 20
    results = []
    for device in ("cpu", "cuda"):
        moving = copy.deepcopy(model).to(device).train()
        got = moving(tokens.to(device))
        total = sum(got.losses.values(), got.logits.square().sum())
        weights = dict(moving.named_parameters())
        grads = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        kept = {key: g if g is None else g.cpu() for key, g in zip(weights, grads, strict=True)}
        results.append((got.logits.detach().cpu(), kept))
    (logits, grads), (got, ours) = results
    assert_close(got, logits, tolerance=1e-9, what="logits")
    assert_gradients(ours, grads, tolerance=1e-8, what="of the logits")
