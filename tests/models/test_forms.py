"""A model with a constant state moves between the parallel and the recurrent form wherever it likes."""

import pytest
import torch
from torch import Tensor

from regard import catalog
from regard.models import LanguageModel, ModelConfig
from regard.specs import Spec

LENGTH = 70
FORMS = {
    "all at once, then token by token": [40, *[1] * 30],
    "tokens, a chunk, tokens, a chunk": [1, 1, 1, 29, 1, 1, 1, 35],
    "over the chunks of the engine": [17, 1, 48, 1, 3],
}
"""lengths of the calls"""


def constant() -> list[str]:
    """Every sample of a causal mechanism whose state does not grow, by its facts."""
    found = []
    for name in catalog.names(supports=["causal", "state"]):
        for options in catalog.resolve(name)[0].samples:
            spec = str(Spec(name, options))
            facts = catalog.describe(spec)
            if facts.supports.causal and facts.supports.state and facts.state == "constant" and not facts.leaks:
                found.append(spec)
    return found


def model_of(spec: str) -> LanguageModel:
    config = ModelConfig(
        vocab_size=23, dim=16, heads=2, layers=2, mlp_dim=24, max_length=LENGTH, position="learned", attention=(spec,),
        short_convolution=3,
    )  # fmt: skip
    return LanguageModel(config).eval()


def inputs(*, masked: bool, padded: bool = True) -> tuple[Tensor, Tensor | None]:
    """Tokens; and a mask that hides the start of a row (unless padded=False, all of it), holes, and whole calls."""
    tokens = torch.randint(0, 23, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    if not masked:
        return tokens, None
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    mask[0, 0 if padded else 1 : 9] = False
    mask[1, 2::5] = False
    mask[2, 30:52] = False
    return tokens, mask


def streamed(model: LanguageModel, tokens: Tensor, mask: Tensor | None, lengths: list[int]) -> Tensor:
    state, parts, past = model.initial_state(len(tokens)), [], 0
    for length in lengths:
        here = slice(past, past + length)
        got = model(tokens[:, here], key_mask=None if mask is None else mask[:, here], state=state)
        assert got.state is not None
        state, past = got.state, past + length
        parts.append(got.logits)
    assert past == LENGTH
    return torch.cat(parts, 1)


def test_there_are_mechanisms_with_a_constant_state() -> None:
    names = {spec.partition("(")[0] for spec in constant()}
    assert {"linear", "performer", "rfa", "efficient", "local_linear", "mixed_chunk"} <= names


@pytest.mark.parametrize(
    ("spec", "masked"),
    [(spec, masked) for spec in constant() for masked in {False, catalog.describe(spec).supports.key_mask}],
)
@torch.no_grad()
def test_forms_may_change_at_any_token(spec: str, masked: bool) -> None:
    tokens, mask = inputs(masked=masked, padded=not catalog.describe(spec).anchored)
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    model = model_of(spec)
    single = model(tokens, key_mask=mask).logits
    switched = {form: streamed(model, tokens, mask, lengths) for form, lengths in FORMS.items()}
    model = model.double()
    whole = model(tokens, key_mask=mask).logits
    lost = (single - whole)[real].abs().max().item()  # of totals of signed features near 0 more than of others
    for form, got in switched.items():
        off = (got - single)[real].abs().max().item()
        assert off <= 1e-5 * single[real].abs().max().item() + 4 * lost, (form, off, lost)
    for form, lengths in FORMS.items():
        off = (streamed(model, tokens, mask, lengths) - whole)[real].abs().max().item()
        assert off <= 1e-10, (form, off)


@torch.no_grad()
def test_the_comparison_notices_a_state_that_lost_a_token() -> None:
    model, (tokens, _) = model_of("linear").double(), inputs(masked=False)
    whole = model(tokens).logits
    state = model(tokens[:, :30], state=model.initial_state(3)).state
    off = (model(tokens[:, 31:], state=state).logits - whole[:, 31:]).abs().max().item()
    assert off > 1e-3
