"""The gap of copied keys: by loops, where it is nothing, and what has none."""

import pytest
import torch

from regard.core.errors import UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.testing.inputs import randn
from regard_lab.benchmark.key_gap import key_gap

TOKENS = torch.arange(2 * 7).reshape(2, 7) * 7 % 20


def model_of(**options: object) -> LanguageModel:
    shape = {"dim": 16, "heads": 2, "layers": 3, "vocab_size": 20, "position": "none", "depth": "early_exit"}
    model = LanguageModel(ModelConfig(**{**shape, **options}))  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return model.double().eval()


def test_by_loops():
    model, told = model_of(), TOKENS % 3 + 1
    entered: dict[tuple[int, bool], torch.Tensor] = {}
    with torch.no_grad():
        for full in (False, True):
            x = model.embeddings(TOKENS)
            for at, block in enumerate(model.blocks):
                entered[at, full] = x
                x = torch.where((full | (told > at))[..., None], block(x).hidden, x)
        for at, gap in enumerate(key_gap(model, TOKENS, told)):
            for kind in (0, 1):
                found = []
                block = model.blocks[at]
                own, full = (
                    block.attention.projections(block.attended(entered[at, way]))[kind] for way in (False, True)
                )
                for row in range(2):
                    for t in range(7):
                        if told[row, t] <= at:
                            one, other = own[row, :, t].flatten(), full[row, :, t].flatten()
                            found.append((sum((one - other) ** 2) / sum(other**2)).sqrt().item())
                if not found:
                    assert gap is None
                else:
                    assert gap[kind] == pytest.approx(sum(found) / len(found), rel=1e-9)


def test_none_skips_and_the_next_block_has_the_same_keys():
    model = model_of()
    assert key_gap(model, TOKENS, torch.full_like(TOKENS, 3)) == [None] * 3
    first, second, third = key_gap(model, TOKENS, torch.ones_like(TOKENS))
    assert first is None
    assert second == (0.0, 0.0)
    assert third is not None
    assert min(third) > 0.01


def test_sums_are_no_keys():
    with pytest.raises(UnsupportedError, match="block 1 keeps no keys"):
        key_gap(model_of(attention=("linear",)), TOKENS, torch.ones_like(TOKENS))
