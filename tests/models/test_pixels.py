"""Levels drawn slot by slot: from the model's own distribution, streamed as in parallel, row by row."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from regard.core.errors import ConfigError, ShapeError
from regard.models import EncoderDecoder, EncoderDecoderConfig, LanguageModel, ModelConfig
from regard.models.pixels import sample
from regard.models.sampling import Sampling

LEVELS, CHANNELS, SLOTS = 5, 3, 24
OFFSETS = torch.arange(SLOTS) % CHANNELS * LEVELS
START = LEVELS * CHANNELS
SHAPE = {
    "dim": 16,
    "heads": 2,
    "layers": 2,
    "vocab_size": START + 1,
    "targets": LEVELS,
    "tied": False,
    "max_length": SLOTS,
}
RECTANGLE = "image_local_2d(width=4, channels=3, query_block=(1, 2), flange=(1, 1))"
SPECS = ["image_local_1d(block_size=6)", RECTANGLE, "strided(stride=4, part='heads')", "softmax"]


def decoder(spec: str = "image_local_1d(block_size=6)") -> LanguageModel:
    return LanguageModel(ModelConfig(**SHAPE, position="learned", attention=(spec,), seed=2))


def both(spec: str = "image_local_1d(block_size=6)") -> EncoderDecoder:
    return EncoderDecoder(
        EncoderDecoderConfig(**SHAPE, position="learned", attention=(spec,), start_token=START, seed=2)
    )


def source() -> Tensor:
    return torch.randint(0, START, (3, 6), generator=torch.Generator().manual_seed(0))


def draw(model: nn.Module, **options: object) -> Tensor:
    read = {"source": source()} if isinstance(model, EncoderDecoder) else {}
    return sample(model, **{"rows": 3, "start": START, "offsets": OFFSETS, **read, **options})  # type: ignore[arg-type]


def logits(model: nn.Module, levels: Tensor) -> Tensor:
    """All at once, of the levels in every slot."""
    first = torch.full((len(levels), 1), START)
    tokens = torch.cat([first, (levels + OFFSETS[: levels.shape[1]])[:, :-1]], 1)
    with torch.no_grad():
        return model(source(), tokens).logits if isinstance(model, EncoderDecoder) else model(tokens).logits


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("make", [decoder, both])
def test_greedy_levels_are_the_arg_max_of_the_parallel_form(make, spec: str) -> None:
    model = make(spec).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)  # so that levels differ
    found = draw(model, sampling=Sampling(temperature=0.0))
    assert torch.equal(logits(model, found).argmax(-1), found)
    assert len(found.unique()) > 1


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("make", [decoder, both])
def test_streaming_draws_what_recomputing_draws(make, spec: str) -> None:
    model = make(spec).double()
    streamed = draw(model, seed=4)
    assert torch.equal(streamed, draw(model, seed=4, use_state=False))
    assert torch.equal(streamed, draw(model, seed=4))
    assert not torch.equal(streamed, draw(model, seed=5))
    assert model.training


def test_given_levels_stay_and_the_rest_follows_from_them() -> None:
    model = decoder().double()
    whole = draw(model, seed=1)
    assert torch.equal(draw(model, seed=1, given=whole[:, :10]), whole)
    other = (whole[:, :10] + 1) % LEVELS
    found = draw(model, seed=1, given=other)
    assert torch.equal(found[:, :10], other)
    assert torch.equal(draw(model, given=whole), whole)


def test_draws_have_the_probabilities_of_the_model() -> None:
    """All 125 triples of a pixel: their probabilities sum to 1, and frequencies lie within 5 standard errors."""
    model = decoder().double().eval()
    triples = torch.tensor(list(itertools.product(range(LEVELS), repeat=3)))
    logp = logits(model, triples).log_softmax(-1).gather(-1, triples[..., None]).sum((1, 2))
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-12)
    rows = 4000
    found = draw(model, rows=rows, offsets=OFFSETS[:3])
    counts = torch.bincount(found @ torch.tensor([25, 5, 1]), minlength=125).double()
    p = logp.exp()
    assert ((counts - rows * p) / (rows * p * (1 - p)).sqrt()).abs().max() < 5


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="an encoder-decoder needs a source"):
        sample(both(), rows=3, start=START, offsets=OFFSETS)
    with pytest.raises(ShapeError, match="no other model reads one"):
        draw(decoder(), source=source())
    with pytest.raises(ShapeError, match=r"given levels must be \(3, at most 24\), got \(2, 4\)"):
        draw(decoder(), given=torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"targets=5 are other outputs than the tokens.*set tied=False"):
        ModelConfig(targets=5)
    with pytest.raises(ConfigError, match=r"targets=5 are other outputs than the tokens.*set tied=False"):
        EncoderDecoderConfig(targets=5)
