"""Operations of a token by its blocks: as single steps of real decisions count them, and by arithmetic."""

import pytest
import torch

from regard_lab.benchmark.cost import counted
from regard_lab.benchmark.depth_costs import leaving_after, pareto, token_operations
from regard_lab.training.batches import collate
from tests.benchmark.test_decisions import TASK, model_of

EXAMPLE = collate(TASK.examples("valid"), [0], TASK.vocab_size, num_targets=TASK.num_targets)
TOKENS = EXAMPLE.inputs
DEPTHS = (
    "early_exit",
    "early_exit(threshold=0.03, decaying=True, horizon=8)",
    "early_exit(confidence=saturation)",
    "early_exit(thresholds=(None, -3.0))",
    "early_exit(threshold=0.5, confidence=multinomial, exits=aligned)",
    "early_exit(threshold=0.5, confidence=sequence, exits=aligned)",
    "light_exit(threshold=0.5, whole=0)",
    "universal(steps=3)",
)


def layers(depth: str) -> int:
    return 1 if "universal" in depth else 3


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("asks", [True, False])
def test_every_token_leaves_where_it_is_told(depth, asks):
    model = model_of(depth=depth, layers=layers(depth))
    before = model(TOKENS)
    for blocks in (1, 2, 3):
        with leaving_after(model, blocks, asks=asks):
            for _ in range(2):  # a second call begins anew
                told = model(TOKENS)
                assert (told.steps == blocks).all()
        if model.depth.obeys:
            assert torch.equal(told.logits, model(TOKENS, depths=torch.full_like(TOKENS, blocks)).logits)
    assert not model.depth._forward_pre_hooks
    after = model(TOKENS)
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.steps, before.steps)


@pytest.mark.parametrize("depth", ["early_exit(whole=2)", "light_exit(whole=2)"])
def test_first_tokens_that_take_every_block_still_do(depth):
    model = model_of(depth=depth, layers=3)
    with leaving_after(model, 1):
        assert model(TOKENS).steps.tolist() == [[3, 3] + [1] * (TOKENS.shape[1] - 2)]


@pytest.mark.parametrize(
    ("depth", "thresholds"),
    [("early_exit", (0.0, 0.02, 0.05, 0.2, 0.999)), ("light_exit(whole=0)", (0.0, 0.45, 0.5, 0.55, 0.999))],
)
@torch.no_grad()
def test_a_token_costs_what_its_blocks_cost(depth, thresholds):
    """A step is counted as its own decision has it, and must be what the table says of so many blocks."""
    model, seen = model_of(depth=depth, layers=3), set()
    deciding, _ = token_operations(model, EXAMPLE)
    place = TOKENS.shape[1] // 2
    for threshold in thresholds:
        model.depth.threshold = threshold
        for row in range(len(TASK.examples("valid"))):
            tokens = torch.from_numpy(TASK.examples("valid")[row].inputs)[None]
            state = model(tokens[:, :place], state=model.initial_state(1)).state
            step, taken = tokens[:, place : place + 1], []
            cost = counted(lambda: taken.append(model(step, state=state).steps))  # noqa: B023
            blocks = int(taken[0])
            seen.add(blocks)
            assert cost.operations == deciding[blocks - 1]
    assert seen == {1, 2, 3}


def test_the_operations_of_softmax_gaps_by_arithmetic():
    model = model_of(depth="early_exit", layers=3)
    deciding, fixed = token_operations(model, EXAMPLE)
    dim, keys = 12, TOKENS.shape[1] // 2 + 1
    mlp = 2 * sum(x.numel() for x in model.blocks[0].mlp.parameters())  # type: ignore[union-attr]
    readout = 2 * dim * TASK.vocab_size
    block = 2 * 4 * dim * dim + 2 * 2 * keys * dim + mlp
    remembered = 2 * 2 * dim * dim  # keys and values of a block that is skipped
    assert fixed == [n * block + (3 - n) * remembered + readout for n in (1, 2, 3)]
    assert [one - other for one, other in zip(deciding, fixed, strict=True)] == [readout, 2 * readout, 2 * readout]


def test_a_text_of_one_token_costs_what_its_token_does():
    model = model_of(depth="early_exit", layers=3)
    tokens = TOKENS[:, :1]
    deciding, fixed = token_operations(model, EXAMPLE.__class__([0], tokens, tokens, None, [0], [0]))
    assert 0 < fixed[0] < fixed[1] < deciding[2]


def test_learned_spans_cost_what_they_reach():
    costs = []
    for share in (0.0, 1.0):
        model = model_of(attention=("adaptive_span(max_span=900, ramp=4)",), max_length=1024)
        for mechanism in model.mechanisms:
            mechanism.span.data.fill_(share)  # type: ignore[union-attr]
        tokens = (torch.arange(800) % TASK.vocab_size)[None]
        example = EXAMPLE.__class__([0], tokens, tokens, None, [0], [0])
        both = token_operations(model, example)
        assert both[0] == both[1]
        costs.append(both[0])
    (short,), (long,) = costs
    per_key = 2 * 2 * 12 * 2  # logits and averages, two layers
    assert long - short == per_key * (401 - 65), "64 slots back and the token itself, or all 400"


def test_what_nothing_beats():
    points = [(3.0, 1.0), (1.0, 2.0), (2.0, 2.0), (4.0, 1.0), (2.0, 1.5)]
    assert pareto(points) == [1, 4, 0]
    assert pareto([]) == []
    assert pareto([(1.0, 1.0), (2.0, 1.0), (1.0, 1.0)]) == [0, 2], "an equal one beats nothing"
