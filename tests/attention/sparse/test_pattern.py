"""pattern: any rule, from a text or a function, and the state that it leaves."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, build, describe
from regard.attention.sparse.pattern import Pattern
from regard.engines.kernels import forced
from regard.patterns import random_blocks, strided, window

RULES: dict[str, Callable[[int, int], bool]] = {
    "window(2) | strided(5)": lambda i, j: abs(i - j) <= 2 or (i - j) % 5 == 0,
    "block(6)": lambda i, j: i // 6 == j // 6,
    "block(4) | summary(4, 1)": lambda i, j: i // 4 == j // 4 or j % 4 == 3,
    "first(3) | window(4)": lambda i, j: j < 3 or abs(i - j) <= 4,
    "~window(3)": lambda i, j: abs(i - j) > 3,
}


def draw(n: int, m: int | None = None, *, batch: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    m = n if m is None else m
    shapes = (batch, 4, n, 8), (batch, 2, m, 8), (batch, 2, m, 6)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)


def heads(causal: bool = True) -> Heads:
    return Heads(count=4, key_dim=8, value_dim=6, kv_count=2, causal=causal)


def by_loops(rule: Callable[[int, int], bool], q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """One query at a time, one key at a time; the last queries of the keys where causal."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for query in range(q.shape[2]):
        i = query + (k.shape[2] - q.shape[2] if causal else 0)
        keys = [j for j in range(k.shape[2]) if rule(i, j) and (j <= i or not causal)]
        for head in range(4) if keys else ():
            logits = torch.stack([(q[:, head, query] * k[:, head // 2, j]).sum(-1) / 8**0.5 for j in keys], -1)
            out[:, head, query] = torch.einsum("bj,bjd->bd", logits.softmax(-1), v[:, head // 2, keys])
    return out


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("causal", [True, False])
def test_against_loops(text: str, causal: bool) -> None:
    for n, engine in ((1, ""), (23, ""), (70, "tiles")):
        q, k, v = draw(n)
        expected = by_loops(RULES[text], q, k, v, causal=causal)
        with forced(engine):
            found = Pattern(heads(causal), rule=text)(q, k, v).values
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("text", RULES)
def test_cross_counts_both_from_zero(text: str) -> None:
    mechanism = build(f'pattern(rule="{text}")', heads(causal=False))
    for n, m in ((5, 17), (17, 5)):
        q, k, v = draw(n, m)
        expected = by_loops(RULES[text], q, k, v, causal=False)
        torch.testing.assert_close(mechanism(q, k, v).values, expected, rtol=0, atol=1e-10)
        state = mechanism(q[:, :, :0], k, v, state=mechanism.initial_state(2, dtype=torch.float64)).state
        found = mechanism(q, k[:, :, :0], v[:, :, :0], state=state).values
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_one_query_gathers_few_keys_out_of_many() -> None:
    mechanism = Pattern(heads(), rule="strided(50)")
    q, k, v = draw(2000, batch=1)
    with torch.no_grad():
        state = mechanism.initial_state(1, dtype=torch.float64)
        state = mechanism(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], state=state).state
        last = mechanism(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], state=state).values
    expected = by_loops(lambda i, j: (i - j) % 50 == 0, q[:, :, -1:], k, v, causal=True)
    torch.testing.assert_close(last, expected, rtol=0, atol=1e-10)


def test_rules_as_functions() -> None:
    segment = torch.tensor([0] * 20 + [1] * 3 + [2] * 47)
    table = torch.tensor([[0, 3], [2, 1], [4, 0], [1, 1], [4, 2]])
    rules: list[tuple[object, Callable[[int, int], bool]]] = [
        (lambda i, j: abs(i - j) <= 4, lambda i, j: abs(i - j) <= 4),
        (lambda i, j: segment[i] == segment[j], lambda i, j: bool(segment[i] == segment[j])),
        (lambda i, j: (i * j) % 7 < 3, lambda i, j: (i * j) % 7 < 3),
        (window(2) | strided(9), lambda i, j: abs(i - j) <= 2 or (i - j) % 9 == 0),
        (random_blocks(16, table), lambda i, j: j // 16 in table[i // 16].tolist()),
    ]
    q, k, v = draw(70)
    for rule, definition in rules:
        expected = by_loops(definition, q, k, v, causal=True)
        for impl, engine in (("auto", ""), ("auto", "tiles"), ("reference", "")):
            mechanism = copy.deepcopy(Pattern(heads(), rule=rule, impl=impl))
            with forced(engine):
                torch.testing.assert_close(mechanism(q, k, v).values, expected, rtol=0, atol=1e-10)


def test_facts_follow_the_rule() -> None:
    assert describe("pattern").state == "length"
    bounded = describe('pattern(rule="window(8) & ~window(2)")')
    assert (bounded.state, bounded.time, bounded.anchored) == ("window", 1, False)
    assert describe('pattern(rule="block(8)")').anchored
    assert describe('pattern(rule="strided(8)")').time == 2


def test_a_rule_for_each_head() -> None:
    texts = ("window(4)", "block(6)", "window(4)", "summary(4, 1) | window(0)")
    rules: list[Callable[[int, int], bool]] = [
        lambda i, j: i - j <= 4,
        lambda i, j: i // 6 == j // 6,
        lambda i, j: i - j <= 4,
        lambda i, j: j % 4 == 3 or i == j,
    ]
    for n in (23, 90):
        mechanism = build("pattern", heads(), rule=f"per_head({', '.join(texts)})")
        q, k, v = draw(n)
        expected = torch.stack([by_loops(rules[h], q, k, v, causal=True)[:, h] for h in range(4)], 1)
        torch.testing.assert_close(mechanism(q, k, v).values, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(mechanism.definition(q, k, v), expected, rtol=0, atol=1e-10)
        state, found = mechanism.initial_state(2, dtype=torch.float64), []
        for a, b in ((0, 5), (5, 6), (6, 7), (7, n - 1), (n - 1, n)):
            values, state, *_ = mechanism(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], state=state)
            found.append(values)
        torch.testing.assert_close(torch.cat(found, 2), expected, rtol=0, atol=1e-10)
        alive = [j for j in range(n) if n - j <= 4 or n // 6 == j // 6 or j % 4 == 3]
        assert state.tensors()["positions"].tolist() == alive
    with pytest.raises(ConfigError, match="4 heads and patterns for 2"):
        Pattern(heads(), rule="per_head(causal, causal)")


def test_bad_rules() -> None:
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        build('pattern(rule="windw(3)")', heads())
    with pytest.raises(ConfigError, match="booleans"):
        Pattern(heads(), rule=lambda i, j: i - j)(*draw(5))


def test_a_rule_of_one_position_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pattern calls a rule with two positions, as in lambda i, j"):
        build("pattern", Heads(count=2, key_dim=8), rule=lambda i: i > 0)
    whole, keys = build("pattern", Heads(count=2, key_dim=8), rule=torch.ge), torch.arange(5)
    assert torch.equal(whole.pattern.mask(keys, keys), torch.ones(5, 5).tril().bool())
