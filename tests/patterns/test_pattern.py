"""Patterns: literal key sets, interval arithmetic against brute force, texts."""

import copy
import gc
import random
from collections.abc import Callable

import pytest
import torch

import regard
from regard import catalog
from regard.core.errors import ConfigError
from regard.patterns import Pattern, block, causal, everything, parse, per_head, random_blocks, window
from regard.patterns.intervals import FAR, Possibility, Span
from regard.patterns.pattern import resolve
from regard.testing.inputs import Subject

DEFINITIONS: dict[str, Callable[[int, int], bool]] = {
    "causal": lambda i, j: j <= i,
    "everything": lambda i, j: True,
    "window(5)": lambda i, j: -5 <= i - j <= 5,
    "window(0)": lambda i, j: i == j,
    "dilated(3, 4)": lambda i, j: abs(i - j) in (0, 4, 8, 12),
    "strided(6)": lambda i, j: (i - j) in range(-600, 601, 6),
    "block(7)": lambda i, j: i // 7 == j // 7,
    "block(4, 1)": lambda i, j: j // 4 in (i // 4, i // 4 - 1),
    "summary(6, 2)": lambda i, j: j % 6 in (4, 5),
    "summary(7, 2, 3)": lambda i, j: j % 7 in (2, 3),
    "first(9)": lambda i, j: j < 9,
    "causal & (window(2) | strided(5))": lambda i, j: j <= i and (i - j <= 2 or (i - j) % 5 == 0),
    "~(window(2) | strided(4)) & causal": lambda i, j: j <= i and i - j > 2 and (i - j) % 4 != 0,
    "causal & window(3) | first(2)": lambda i, j: (j <= i and i - j <= 3) or j < 2,
}

DEFINITIONS_OF_HEADS: list[Callable[[int, int], bool]] = [
    lambda i, j: -3 <= i - j <= 3,
    lambda i, j: j % 5 == 4,
    lambda i, j: i // 4 == j // 4,
]


def brute(definition: Callable[[int, int], bool], queries: list[int], keys: list[int]) -> torch.Tensor:
    return torch.tensor([[definition(i, j) for j in keys] for i in queries], dtype=torch.bool)


@pytest.mark.parametrize("text", DEFINITIONS)
def test_masks_are_the_literal_sets(text: str) -> None:
    pattern = parse(text)
    for n in range(1, 41):
        positions = list(range(n))
        expected = brute(DEFINITIONS[text], positions, positions)
        assert torch.equal(pattern.mask(torch.arange(n), torch.arange(n)), expected), n


def progression(rng: random.Random) -> tuple[list[int], Span]:
    low, step, count = rng.randint(0, 60), rng.choice([1, 1, 1, 2, 3, 4, 8]), rng.randint(1, 12)
    positions = [low + step * t for t in range(count)]
    return positions, Span(low, positions[-1], step if count > 1 else 0)


@pytest.mark.parametrize("text", DEFINITIONS)
def test_spans_are_safe_and_mostly_decisive(text: str) -> None:
    """`some` never misses a pair, `every` never invents one; and both are exact nearly always."""
    pattern, rng, exact = parse(text), random.Random(text), 0
    trials = 400
    for _ in range(trials):
        (queries, i), (keys, j) = progression(rng), progression(rng)
        held, truth = brute(DEFINITIONS[text], queries, keys), pattern.over(i, j)
        assert bool(truth.may) or not held.any(), (queries, keys)
        assert not bool(truth.must) or held.all(), (queries, keys)
        exact += bool(truth.may) == bool(held.any()) and bool(truth.must) == bool(held.all())
    assert exact >= 0.85 * trials


def test_span_arithmetic_contains_every_value() -> None:
    operations = [
        lambda x: x % 5,
        lambda x: x % 8,
        lambda x: x // 3,
        lambda x: x // 4,
        abs,
        lambda x: -x,
        lambda x: 3 * x,
        lambda x: x * -2,
        lambda x: x + 7,
        lambda x: x - 4,
        lambda x: 9 - x,
    ]
    rng = random.Random(0)
    for _ in range(3000):
        values, span = progression(rng)
        values, span = [x - 30 for x in values], span - 30
        for operation in rng.choices(operations, k=rng.randint(1, 4)):
            values, span = [operation(x) for x in values], operation(span)
        low, high, step = int(span.lo), int(span.hi), int(span.step)
        assert (low == high) if step == 0 else (high - low) % step == 0
        assert set(values) <= set(range(low, high + 1, max(step, 1)))


@pytest.mark.parametrize("text", DEFINITIONS)
def test_alive_is_what_a_future_query_sees(text: str) -> None:
    pattern = parse(text)
    for first in (0, 1, 7, 24, 41):
        future = brute(DEFINITIONS[text], list(range(first, first + 120)), list(range(50))).any(0)
        assert torch.equal(pattern.alive(torch.arange(50), first), future), first


@pytest.mark.parametrize("text", DEFINITIONS)
def test_facts_hold(text: str) -> None:
    pattern, n = parse(text), 48
    mask = pattern.mask(torch.arange(n), torch.arange(n))
    distance = torch.arange(n)[:, None] - torch.arange(n)
    low, high = pattern.distances
    assert not mask[(distance < low) | (distance > high)].any()
    shifted = pattern.mask(torch.arange(n) + 5, torch.arange(n) + 5)
    assert torch.equal(mask, shifted) is not pattern.anchored


def test_per_head_is_a_mask_for_each_head() -> None:
    texts = ("window(3)", "summary(5, 1)", "block(4)")
    pattern, positions = causal & ~~per_head(*map(parse, texts)) | parse("first(1)"), torch.arange(30)
    assert pattern.heads == 3
    expected = torch.stack(
        [
            brute(lambda i, j, h=h: (j <= i and DEFINITIONS_OF_HEADS[h](i, j)) or j < 1, [*range(30)], [*range(30)])
            for h in range(3)
        ]
    )
    assert torch.equal(pattern.mask(positions, positions), expected)
    for head in range(3):
        assert torch.equal(pattern.of(head).mask(positions, positions), expected[head])
    assert torch.equal(
        pattern.mask(positions[None].expand(2, 30), positions[None].expand(2, 30)), expected.expand(2, 3, 30, 30)
    )
    assert parse(pattern.text) == pattern
    assert causal.heads is None
    assert causal.of(2) is causal


def test_per_head_facts_are_those_of_all_heads() -> None:
    pattern = causal & per_head(window(3), block(4))
    assert pattern.distances == (0, 3)
    assert pattern.anchored
    assert not per_head(window(3), causal).anchored
    keys = torch.arange(12)
    assert pattern.alive(keys, 9).tolist() == [j >= 6 for j in range(12)]
    assert not per_head(window(3), window(9)).over(Span(0, 3), Span(0, 9)).must
    assert per_head(window(3), window(9)).over(Span(0, 3), Span(5, 9)).may


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: per_head(), "got none"),
        (lambda: per_head(causal, per_head(causal)), "for head 1"),
        (lambda: per_head(causal, window(1)) & per_head(causal), "2 and of 1 heads"),
    ],
)
def test_per_head_refusals(make: Callable[[], Pattern], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_random_blocks() -> None:
    table = torch.tensor([[0, 3], [2, -1], [4, 4]])
    pattern = random_blocks(4, table)
    picked = {0: {0, 3}, 1: {2}, 2: {4}}
    positions = list(range(20))
    expected = brute(lambda i, j: j // 4 in picked.get(i // 4, set()), positions, positions)
    assert torch.equal(pattern.mask(torch.arange(20), torch.arange(20)), expected)
    rng = random.Random(1)
    for _ in range(300):
        (queries, i), (keys, j) = progression(rng), progression(rng)
        truth, held = pattern.over(i, j), pattern.mask(torch.tensor(queries), torch.tensor(keys))
        assert bool(truth.may) or not held.any()
        assert not bool(truth.must) or held.all()
    assert not pattern.over(Span(0, 3), Span(4, 11)).may
    assert pattern.over(Span(0, 3), Span(12, 15)).must
    assert pattern.alive(torch.arange(20), 4).nonzero().flatten().tolist() == [8, 9, 10, 11, 16, 17, 18, 19]


def test_a_rule_that_spans_cannot_follow_is_maybe_everywhere() -> None:
    seen = torch.tensor([0, 1, 0, 2, 1])
    for rule in (
        lambda i, j: seen[i] == seen[j],
        lambda i, j: (i * j) % 3 == 0,
        lambda i, j: torch.where(i > j, True, i < 2),
        lambda i, j: (i > j) and (i < 9),
    ):
        truth = Pattern(rule).over(Span(0, 3), Span(0, 4))
        assert bool(truth.may)
        assert not bool(truth.must)
    half = causal & Pattern(lambda i, j: (i * j) % 3 == 0)
    assert not half.over(Span(0, 3), Span(4, 9)).may  # the other half still decides
    with pytest.raises(ConfigError, match="booleans"):
        Pattern(lambda i, j: i - j).mask(torch.arange(3), torch.arange(3))
    assert Pattern(lambda i, j: True).mask(torch.arange(2), torch.arange(3)).tolist() == [[True] * 3] * 2


def test_text_is_the_identity() -> None:
    pattern = causal & (window(3) | ~block(4, past=1))
    assert parse(pattern.text) == pattern
    assert hash(parse(pattern.text)) == hash(pattern)
    assert pattern != causal
    assert parse("window(size=3)") == window(3)
    assert copy.deepcopy(pattern) is pattern
    assert everything.text == "everything"


def test_a_function_has_a_name_while_it_lives() -> None:
    pattern = causal & Pattern(lambda i, j: i != j)
    text = pattern.text
    assert torch.equal(
        resolve(text).mask(torch.arange(4), torch.arange(4)), torch.ones(4, 4, dtype=torch.bool).tril(-1)
    )
    with pytest.raises(ConfigError, match="unknown name"):
        parse(text)  # a user's text cannot reach it
    del pattern
    gc.collect()
    with pytest.raises(ConfigError, match="unknown name"):
        resolve(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windw(3)", "did you mean 'window'"),
        ("window(", "cannot read"),
        ("causal()", "takes no arguments"),
        ("window", r"write window\(size\)"),
        ("window(1.5)", "no integer of 0 or more"),
        ("window(-1)", "no integer of 0 or more"),
        ("strided(0)", "at least 1"),
        ("window(1, 2)", "too many"),
        ("causal + window(1)", "not allowed"),
        ("causal and window(1)", "not allowed"),
        ("window(1).rule", "not allowed"),
        ("__import__('os')", "unknown name"),
        ("(lambda: causal)()", "not allowed"),
        ("window(*[1])", "no integer of 0 or more"),
        ("causal; causal", "cannot read"),
        ("(" * 500 + "causal" + ")" * 500, "cannot read"),
        ("\0", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_bad_texts(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_products_beyond_64_bits() -> None:
    """Spans without end leave the integers first; there the rule is computed for every pair, and is right."""
    large = (1 << 20) - 1

    def attend(factor: int, length: int) -> torch.Tensor:
        rule = Pattern(lambda i, j: (i - j) * large * large * factor <= large * large * factor * 4)
        x = torch.randn(1, 1, length, 4, generator=torch.Generator().manual_seed(0))
        mechanism = regard.build("pattern", regard.Heads(count=1, key_dim=4, causal=True), rule=rule)
        values = mechanism(x, x, x).values
        torch.testing.assert_close(values, regard.attend(x, x, x, "local(window=4)", causal=True))
        first, rest = x[:, :, :30], x[:, :, 30:]
        state = mechanism(first, first, first, state=mechanism.initial_state(1)).state
        torch.testing.assert_close(mechanism(rest, rest, rest, state=state).values, values[:, :, 30:])
        return values

    attend(1, 300)
    attend(1 << 10, 300)
    with pytest.raises(ConfigError, match=r"rule_\d+ computes with numbers that 64 bits cannot hold at position 3"):
        attend(large, 300)
    both = causal & Pattern(lambda i, j: i * large * large * large >= j)
    with pytest.raises(ConfigError, match="64 bits"):
        both.over(Span(0, 300), Span(0, 300))


def test_spans_stay_on_their_device() -> None:
    """Numbers on a CPU among them end in an error of some operators, which a rule is forgiven: no key would ever go."""
    span = Span(torch.arange(3, device="meta"), torch.arange(3, device="meta") + 7)
    made = [span, span + 2, 5 - span, -span, span * 3, abs(span - 4), span // 2, span % 3, span // 2 * 3 % 4 - 1]
    assert {x.device.type for each in made for x in (each.lo, each.hi, each.step)} == {"meta"}
    for answer in (span <= 3, span - 3 >= span, span == 4, span % 2 != 1):
        assert {answer.may.device.type, answer.must.device.type} == {"meta"}


@pytest.mark.parametrize("name", ["bigbird", "image_local_1d", "image_local_2d", "fixed_union", "strided_union"])
def test_rules_of_mechanisms_are_followed_on_another_device(name: str) -> None:
    cls, _ = catalog.resolve(name)
    for options in cls.samples:
        subject = Subject(cls, options)
        pattern = subject.fresh(subject.modes[0]).pattern
        first, keys = torch.tensor(5, device="meta"), torch.arange(9, device="meta")
        for head in range(pattern.heads or 1):
            found = pattern.of(head).rule(Span(first, first + FAR), Span(keys, keys, 0))
            assert isinstance(found, Possibility)
