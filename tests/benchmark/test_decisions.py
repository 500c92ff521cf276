"""Spans of heads and blocks of tokens, against what weights were set to and what single calls say."""

import math

import pytest
import torch

from regard.models import LanguageModel, ModelConfig
from regard.testing.inputs import randn
from regard_lab.benchmark.decisions import HeadSpan, _counted, learned_spans, lookers, most_steps, observe
from regard_lab.tasks import build_task
from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.config import RecallConfig
from regard_lab.training.batches import Batch

TASK = build_task(RecallConfig(vocab_size=16, length=16, num_pairs=2, num_held_out=20))
SHAPE = {"dim": 12, "heads": 3, "layers": 2, "vocab_size": TASK.vocab_size, "position": "rotary", "max_length": 32}

CHOOSING = "dynamic_span(max_span=20, ramp=4)"


def model_of(**options: object) -> LanguageModel:
    model = LanguageModel(ModelConfig(**{**SHAPE, **options}))  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.3 * randn(*weight.shape, seed=name))
    return model.eval()


def by_place(spans: list[HeadSpan]) -> dict[tuple[int, int], float]:
    return {(one.layer, one.head): one.span for one in spans}


def test_every_head_of_every_layer_has_its_own_span():
    model = model_of(attention=("adaptive_span(max_span=40, ramp=4)",))
    wanted = {(layer, head): 10.0 * layer + 3.0 * head + 1 for layer in range(2) for head in range(3)}
    for layer, mechanism in enumerate(model.mechanisms):
        mechanism.span.data = torch.tensor([wanted[layer, head] / 40 for head in range(3)])  # type: ignore[union-attr]
    found = learned_spans(model)
    assert by_place(found) == pytest.approx(wanted)
    assert all(one.low == one.high == pytest.approx(one.span) for one in found)
    assert {(one.mechanism, one.max_span, one.ramp) for one in found} == {("adaptive_span", 40, 4)}
    assert [one.kept for one in found] == [40] * 6  # one step of 64 slots, cut to the longest span
    assert by_place(observe(model, TASK, limit=2).spans) == pytest.approx(wanted)


def test_what_the_state_keeps_follows_the_longest_span_of_a_layer():
    model = model_of(attention=("adaptive_span(max_span=500, ramp=4)",))
    for mechanism, share in zip(model.mechanisms, (0.0, 0.2), strict=True):
        mechanism.span.data = torch.tensor([0.0, share, 0.0])  # type: ignore[union-attr]
    assert [one.kept for one in learned_spans(model)] == [64] * 3 + [128] * 3


def test_heads_of_a_mix_keep_their_numbers():
    mix = "local(window=4):1 + adaptive_span(max_span=20, ramp=4):2"
    model = model_of(attention=("softmax", mix))
    assert [(one.layer, one.first) for one in lookers(model)] == [(1, 1)]
    lookers(model)[0].mechanism.span.data = torch.tensor([0.25, 0.5])  # type: ignore[union-attr]
    assert by_place(learned_spans(model)) == {(1, 1): 5.0, (1, 2): 10.0}


@pytest.mark.parametrize(
    "attention", ["dynamic_span(max_span=20, ramp=4)", "softmax:1 + dynamic_span(max_span=20, ramp=4):2"]
)
def test_spans_that_tokens_choose_are_those_of_the_targets(attention):
    model = model_of(attention=(attention,))
    first = 1 if "+" in attention else 0
    assert learned_spans(model) == []
    chosen: dict[tuple[int, int], list[float]] = {}
    examples = TASK.examples("valid")
    for number in range(len(examples)):
        tokens, targets = (torch.from_numpy(x) for x in examples[number][:2])
        for at, block in enumerate(model.blocks):
            inputs = block.attention.inputs  # type: ignore[union-attr]
            (projection,) = inputs.values()  # type: ignore[operator]
            read: list[torch.Tensor] = []
            hook = projection.register_forward_hook(lambda module, given, made, read=read: read.append(made))
            with torch.no_grad():
                model(tokens[None])
            hook.remove()
            spans = [made for made in read if made.shape[1] == len(tokens)]
            for place in (targets != IGNORE).nonzero()[:, 0].tolist():
                for head in range(spans[0].shape[2]):
                    z = 20 / (1 + math.exp(-spans[0][0, place, head].item()))
                    chosen.setdefault((at, first + head), []).append(z)
    found = observe(model, TASK, limit=0).spans
    assert by_place(found) == pytest.approx({where: sum(z) / len(z) for where, z in chosen.items()}, rel=1e-5)
    for one in found:
        z = torch.tensor(chosen[one.layer, one.head], dtype=torch.float64)
        assert (one.low, one.high) == pytest.approx(tuple(torch.quantile(z, q).item() for q in (0.1, 0.9)), rel=1e-5)
        assert one.low < one.span < one.high


@pytest.mark.parametrize(
    ("depth", "most"),
    [
        ("early_exit(threshold=0.03)", 3),
        ("early_exit(threshold=0.5, confidence=multinomial, exits=aligned)", 3),
        ("light_exit(threshold=0.6)", 3),
        ("universal(steps=4, epsilon=0.3)", 4),
    ],
)
def test_blocks_are_counted_where_there_is_a_target(depth, most):
    model = model_of(depth=depth, layers=1 if "universal" in depth else 3)
    if "universal" in depth:
        for weight in model.depth.parameters():
            weight.data.mul_(0.1)  # odds around 1/2
    assert most_steps(model) == most
    examples, counts = TASK.examples("valid"), [0] * most
    nats = right = 0.0
    for number in range(len(examples)):
        tokens, targets = (torch.from_numpy(x) for x in examples[number][:2])
        with torch.no_grad():
            output = model(tokens[None])
        assert output.steps is not None
        for place in (targets != IGNORE).nonzero()[:, 0].tolist():
            counts[output.steps[0, place] - 1] += 1
            nats -= output.logits[0, place].double().log_softmax(-1)[targets[place]].item()
            right += float(output.logits[0, place].argmax() == targets[place])
    found = observe(model, TASK, limit=0, batch_size=4)
    assert found.taken == counts
    assert sum(count > 0 for count in counts) > 1, "a test of one number would see no mistake"
    assert found.total.tokens == sum(counts)
    assert (found.total.nats, found.total.correct) == pytest.approx((nats, right), rel=1e-5)


def test_of_whole_examples_real_positions_count():
    tokens, keep = torch.zeros(2, 3, dtype=torch.long), torch.tensor([[True, True, False], [True] * 3])
    for mask, wanted in ((keep, keep), (None, torch.ones_like(keep))):
        batch = Batch([0, 1], tokens, torch.tensor([[5], [6]]), mask, [0, 1], [0, 0])
        assert torch.equal(_counted(batch, tokens), wanted)


@pytest.mark.parametrize("depth", ["fixed", "universal(steps=4, halting=False)"])
def test_where_all_take_the_same_nothing_is_counted(depth):
    model = model_of(depth=depth)
    assert most_steps(model) is None
    assert observe(model, TASK, limit=2).taken == []
