"""Neighbours' tokens in a decoder (SPALM), against the definition written as loops over numbers."""

import math

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError, InputError, ShapeError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.neighbours import NeighbourGate, NeighbourTokens

DIM, VOCAB, K = 6, 9, 4


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def found(seed: int = 0, shape: tuple[int, int] = (2, 3), k: int = K) -> NeighbourTokens:
    """Signed random ones; the first position lacks one, and the second has none."""
    tokens = torch.randint(VOCAB, (*shape, k), generator=draw(seed))
    distances = torch.rand(*shape, k, generator=draw(seed + 1)) * 5
    tokens[0, 0, -1:] = -1
    tokens[0, 1] = -1
    return NeighbourTokens(tokens, distances.masked_fill(tokens < 0, math.inf))


def gate_of(**options: object) -> NeighbourGate:
    gate = NeighbourGate(ModelConfig(dim=DIM, heads=2, vocab_size=VOCAB, neighbours=K, **options)).double()
    with torch.no_grad():
        gate.gate.weight.copy_(torch.randn(1, DIM, generator=draw(7)))
    return gate


def inputs() -> tuple[Tensor, Tensor]:
    hidden = torch.randn(2, 3, DIM, generator=draw(3), dtype=torch.float64)
    return hidden, torch.randn(VOCAB, DIM, generator=draw(4), dtype=torch.float64)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def by_loops(
    gate: list[float],
    h: list[float],
    table: list[list[float]],
    near: list[tuple[int, float]],
    temperature: float | None,
) -> list[float]:
    """z of one position; near: token and squared distance of each neighbour."""
    near = [(token, far) for token, far in near if token >= 0]
    if not near:
        return h
    scores = [dot(table[token], h) - (0 if temperature is None else far / temperature) for token, far in near]
    total = sum(math.exp(score) for score in scores)
    mean = [0.0] * len(h)
    for score, (token, _) in zip(scores, near, strict=True):
        for at, y in enumerate(table[token]):
            mean[at] += math.exp(score) / total * y
    g = 1 / (1 + math.exp(-dot(gate, h)))
    return [(1 - g) * m + g * x for m, x in zip(mean, h, strict=True)]


@pytest.mark.parametrize("temperature", [None, 0.7])
def test_the_mixture_is_that_of_the_loops(temperature):
    gate, (hidden, table), near = gate_of(neighbour_temperature=temperature), inputs(), found()
    mixed = gate(hidden, table, near)
    weights = gate.gate.weight[0].tolist()
    for row in range(2):
        for at in range(3):
            pairs = list(zip(near.tokens[row, at].tolist(), near.distances[row, at].tolist(), strict=True))
            expected = by_loops(weights, hidden[row, at].tolist(), table.tolist(), pairs, temperature)
            torch.testing.assert_close(mixed[row, at], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(mixed[0, 1], hidden[0, 1])  # without neighbours


@pytest.mark.parametrize("temperature", [None, 0.7])
def test_gradients_are_those_of_differences(temperature):
    """Of the hidden states, of the embeddings and of the gate; finite also where there are no neighbours."""
    gate, (hidden, table), near = gate_of(neighbour_temperature=temperature), inputs(), found()

    def mixed(hidden: Tensor, table: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(gate, {"gate.weight": weight}, (hidden, table, near))

    asked = [x.clone().requires_grad_() for x in (hidden, table, gate.gate.weight.detach())]
    assert torch.autograd.gradcheck(mixed, asked)


def test_embeddings_learn_from_what_is_mixed_in():
    """Those of the neighbours' tokens, and no others."""
    (hidden, table), near, gate = inputs(), found(), gate_of()
    table.requires_grad_()
    gate(hidden, table, near).sum().backward()
    learned = set() if table.grad is None else set(table.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert learned == set(near.tokens.flatten().tolist()) - {-1}


def model_of(**options: object) -> LanguageModel:
    shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": VOCAB, "neighbours": K, "seed": 2, **options}
    return LanguageModel(ModelConfig(**shape)).double().eval()


def test_logits_are_the_tied_embedding_of_what_is_mixed():
    """With a local memory too: the hidden states are those of the decoder without neighbours."""
    memory = {"memory": "recent(length=4)", "max_length": 5, "position": "transformer_xl"}
    model, plain = model_of(**memory), model_of(**memory, neighbours=0)
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if "mixture" not in name})
    tokens, near = torch.randint(VOCAB, (2, 13), generator=draw(1)), found(5, (2, 13))
    hidden = plain.hidden(tokens).hidden
    assert model.mixture is not None
    expected = model.mixture(hidden, model.table.weight, near) @ model.table.weight.T
    torch.testing.assert_close(model(tokens, neighbours=near).logits, expected, rtol=0, atol=1e-12)
    state, parts = model.initial_state(2), []
    for first, piece in zip((0, 4, 5), tokens.split([4, 1, 8], 1), strict=True):
        cut = NeighbourTokens(*(x[:, first : first + piece.shape[1]] for x in near))
        got = model(piece, state=state, neighbours=cut)
        assert got.state is not None
        state, _ = got.state, parts.append(got.logits)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-10)


def test_what_is_no_neighbour_is_refused():
    model, plain = model_of(), model_of(neighbours=0)
    tokens, near = torch.zeros(2, 3, dtype=torch.int64), found()
    with pytest.raises(UnsupportedError, match="the tokens of 4 neighbours, and none are given"):
        model(tokens)
    with pytest.raises(UnsupportedError, match="mixes in no neighbours"):
        plain(tokens, neighbours=near)
    with pytest.raises(ShapeError, match=r"tokens of neighbours must be \(2, 2, k\)"):
        model(tokens[:, :2], neighbours=near)
    for wrong in (VOCAB, -2):
        with pytest.raises(InputError, match="from 0 to 8, or -1"):
            model(tokens, neighbours=near._replace(tokens=near.tokens.clone().fill_(wrong)))
    for wrong, said in (
        ({"neighbours": -1}, "neighbours must be at least 0"),
        ({"neighbours": 0, "neighbour_temperature": 1.0}, "goes with neighbours"),
        ({"neighbour_temperature": 0.0}, "must be more than 0"),
        ({"tied": False}, "tied must be True"),
        ({"depth": "universal"}, "depth must be 'fixed'"),
    ):
        with pytest.raises(ConfigError, match=said):
            model_of(**wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [None, 0.7])
def test_in_autocast_it_is_the_mixture_rounded(dtype, temperature):
    """Products are of fewer bits than embeddings and hidden states; training has finite gradients."""
    gate, (hidden, table), near = gate_of(neighbour_temperature=temperature).float(), inputs(), found()
    hidden, table = hidden.float(), table.float().requires_grad_()
    wanted = gate(hidden, table, near)
    for states in (hidden, hidden.to(dtype)):
        with torch.autocast("cpu", dtype=dtype):
            got = gate(states, table, near)
        assert got.dtype == states.dtype
        torch.testing.assert_close(got.float(), wanted, rtol=0, atol=0.05)
        (slope,) = torch.autograd.grad(got.float().square().sum(), [table])
        assert slope.isfinite().all()


def test_squared_distances_beyond_float16_are_told_apart():
    """Of keys of length 500: infinite in float16, which would weigh all alike, or none."""
    (hidden, table), gate = inputs(), gate_of(neighbour_temperature=1e4)
    near = found()._replace(distances=torch.tensor([1e5, 2e5, 3e5, 4e5]).expand(2, 3, 4))
    got = gate.half()(hidden.half(), table.half(), near)
    wanted = gate.double()(hidden.half().double(), table.half().double(), near)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=0.01)
