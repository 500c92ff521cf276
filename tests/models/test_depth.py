"""Who runs the blocks: the loop of a model, and a scheme that stops early, which needs nothing more of the protocol."""

from typing import Annotated

import pytest
import torch
from annotated_types import Ge, Le

from regard.core.errors import ConfigError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import Depth, Looped, Threads, build_depth
from regard.models.depth.fixed import Fixed
from regard.testing.compare import assert_close


class SmallSteps(Depth):
    """Leaves when the hidden state of a token moves by less than `step`; skipped blocks get the keys of what left."""

    step: Annotated[float, Ge(0), Le(10)] = 0.5

    def forward(self, blocks, x, threads, *, tokens):
        states, memories, losses = list(threads.states), list(threads.memories), [{} for _ in blocks]
        self.used = torch.zeros(x.shape[:2], dtype=torch.long)
        active = torch.ones(len(x), dtype=torch.bool)
        for at, block in enumerate(blocks):
            before, given = states[at], tokens.given(block, at)
            if not active.any():
                states[at] = block.remember(x, **given, state=before)
                continue
            got = block(x, **given, state=before)
            skipped = block.remember(x, **given, state=before)
            states[at] = got.state.where(active, skipped)
            moved = (got.hidden - x).norm(dim=-1).amax(1) / x.norm(dim=-1).amax(1)
            x = torch.where(active[:, None, None], got.hidden, x)
            self.used[active] += 1
            active = active & (moved >= self.step)
        return Looped(x, states, memories, losses)


def model_of(**options) -> LanguageModel:
    config = ModelConfig(dim=16, layers=4, heads=2, vocab_size=20, attention=("softmax",), seed=3, **options)
    return LanguageModel(config).double().eval()


def tokens_of(batch: int, length: int) -> torch.Tensor:
    return torch.randint(20, (batch, length), generator=torch.Generator().manual_seed(1))


def test_a_threshold_of_nothing_is_the_fixed_depth():
    model, tokens = model_of(), tokens_of(2, 9)
    with torch.no_grad():
        wanted = model(tokens, state=model.initial_state(2))
        model.depth = SmallSteps(model.config, step=0.0)
        got = model(tokens, state=model.initial_state(2))
    assert_close(got.logits, wanted.logits, tolerance=1e-12, what="logits")
    assert (model.depth.used == 4).all()
    for name, tensor in wanted.state.tensors().items():
        assert_close(got.state.tensors()[name], tensor, tolerance=1e-12, what=name)


def test_rows_leave_at_different_depths_and_their_states_stay_whole():
    """Skipped layers keep W h of the state that left, row by row, so that later tokens see every slot."""
    model, tokens = model_of(), tokens_of(6, 5)
    model.depth = SmallSteps(model.config, step=0.6)
    with torch.no_grad():
        state, together, depths = model.initial_state(6), [], []
        for at in range(5):
            got = model(tokens[:, at : at + 1], state=state)
            state, _, _ = got.state, together.append(got.logits), depths.append(model.depth.used[:, 0].clone())
        assert state.length == 5
        assert len(torch.stack(depths).unique()) > 1, "every row leaves at the same depth, so nothing is tested"
        for row in range(6):
            single, alone = model.initial_state(1), []
            for at in range(5):
                got = model(tokens[row : row + 1, at : at + 1], state=single)
                single, _ = got.state, alone.append(got.logits)
            assert_close(torch.cat(together, 1)[row], torch.cat(alone, 1)[0], tolerance=1e-12, what=f"row {row}")


def test_depths_by_name():
    assert isinstance(build_depth("fixed", ModelConfig()), Fixed)
    for spec, message in (("fixd", "did you mean 'fixed'"), ("fixed(steps=2)", "has no options, got 'steps'")):
        with pytest.raises(ConfigError, match=message):
            build_depth(spec, ModelConfig())
    with pytest.raises(ConfigError, match="less than or equal to 10"):
        SmallSteps(ModelConfig(), step=11.0)
    with pytest.raises(ConfigError, match="depth: unknown depth 'univrsal'"):
        ModelConfig(depth="univrsal")


def test_threads_without_a_state_keep_nothing():
    model, tokens = model_of(), tokens_of(2, 4)
    with torch.no_grad():
        x = model.embeddings(tokens)
        looped = model.depth(list(model.blocks), x, Threads([None] * 4, [None] * 4))
    assert looped.states == looped.memories == [None] * 4
    assert looped.exits == ()
