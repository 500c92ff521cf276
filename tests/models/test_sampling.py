"""Sampling against distributions written out by hand."""

import pytest
import torch

from regard.core.errors import ConfigError, NumericsError
from regard.models.sampling import Sampling

PROBABILITIES = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15], dtype=torch.float64)


def frequencies(sampling: Sampling, logits: torch.Tensor, steps: int = 20000) -> torch.Tensor:
    """The share of every token under evenly spaced uniforms: the distribution itself, up to 1/steps per token."""
    uniforms = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    picked = sampling.pick(logits.expand(steps, -1), uniforms)
    return torch.bincount(picked, minlength=len(logits)).double() / steps


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),  # 4/7 of what top_k left already reaches one half
        ({"temperature": 1e-300}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
    ],
)
def test_distribution(options: dict, expected: list[float]) -> None:
    got = frequencies(Sampling(**options), PROBABILITIES.log() + 3)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.75, 3)])
def test_top_p_ends_with_the_token_that_reaches_it(top_p: float, kept: int) -> None:
    """Four equal probabilities are exact, so that their sums are at the boundary."""
    got = frequencies(Sampling(top_p=top_p), torch.zeros(4))
    assert (got > 0).tolist() == [at < kept for at in range(4)]


def test_temperature_is_an_exponent() -> None:
    squared = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    got = frequencies(Sampling(temperature=0.5), PROBABILITIES.log())
    torch.testing.assert_close(got, squared, rtol=0, atol=1e-3)


def test_rows_do_not_mix() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, uniforms = torch.randn(6, 9, generator=draw), torch.rand(6, generator=draw, dtype=torch.float64)
    sampling = Sampling(top_k=5, top_p=0.8)
    together = sampling.pick(logits, uniforms)
    alone = torch.cat([sampling.pick(logits[at : at + 1], uniforms[at : at + 1]) for at in range(6)])
    assert torch.equal(together, alone)
    assert len(set(together.tolist())) > 1


def test_edges_of_the_uniform_stay_inside_what_was_kept() -> None:
    logits = PROBABILITIES.log()[None].expand(2, -1)
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert Sampling(top_k=2).pick(logits, edges).tolist() == [1, 3]
    assert Sampling().pick(logits, edges).tolist() == [0, 4]
    for draw in range(50):
        many = torch.randn(200, 30, generator=torch.Generator().manual_seed(draw))
        assert Sampling().pick(many, edges[1:].expand(200)).max() == 29


def test_tokens_of_probability_zero_never_come() -> None:
    logits = torch.tensor([0.0, float("-inf"), 0.0])
    assert frequencies(Sampling(), logits)[1] == 0
    first = torch.tensor([[float("-inf"), 0.0, 0.0]])
    assert Sampling().pick(first, torch.zeros(1)).tolist() == [1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(bad: float, temperature: float) -> None:
    logits = torch.zeros(2, 4)
    logits[1, 2] = bad
    with pytest.raises(NumericsError, match="not finite"):
        Sampling(temperature=temperature).pick(logits, torch.zeros(2))


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sampling(**options)
