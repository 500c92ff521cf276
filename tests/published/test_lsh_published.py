"""Published LSH attention against SPEC D2: double loops over the keys of buckets within chunks, and its leak."""

import pytest
import torch

import regard
from regard import ConfigError, Heads, LimitError, UnsupportedError
from regard.testing.compare import assert_close, assert_identical
from regard_lab.published.lsh_published import LshPublished
from tests.attention.routed import test_lsh
from tests.attention.routed.test_lsh import buckets_of, loops, randn

SPEC = "regard_lab.published.lsh_published:LshPublished"


def make(causal: bool = True, count: int = 2, **options: object) -> LshPublished:
    heads = Heads(count=count, key_dim=6, value_dim=5, causal=causal, seed=3)
    return LshPublished(heads, **options).double().eval()


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_buckets_within_chunks(causal):
    size = 3
    mechanism = make(causal, num_buckets=2, rounds=3, bucket_size=size)
    for n in (1, 2, 5, 11, 40):
        x, v = randn(1, 2, n, 6, seed=n), randn(1, 2, n, 5, seed=n + 100)
        hashed = buckets_of(mechanism.lsh, x)
        sets = []
        for tokens in hashed:
            chunks = []
            for r in range(3):
                order = sorted(range(n), key=lambda j: (tokens[j][r], j))
                chunks.append({j: place // size for place, j in enumerate(order)})
            rows = []
            for i in range(n):
                seen = {
                    j: 1.0
                    for j in range(i if causal else n)
                    if j != i
                    and any(tokens[i][r] == tokens[j][r] and chunks[r][i] - chunks[r][j] in (0, 1) for r in range(3))
                }
                rows.append(seen or {i: 1.0})
            sets.append(rows)
        assert_close(mechanism(x, x, v).values, loops(x, x, v, sets, True), tolerance=1e-10, what=f"{n} tokens")


def test_it_leaks_and_the_mechanism_of_the_library_does_not():
    """A last token in the lower bucket moves every token of the upper one up by a place, over the ends of chunks."""
    x, v = randn(1, 1, 24, 6), randn(1, 1, 24, 5, seed=1)
    published, strict = (of(count=1, num_buckets=2, rounds=1, bucket_size=4) for of in (make, test_lsh.make))
    code = published.decisions(x, x).keys[0, 0, :, 0]
    assert_identical(strict.decisions(x, x).keys[0, 0, :, 0], code, what="the buckets")
    other = x.clone()
    other[:, :, -1] = x[:, :, int((code[:-1] != code[-1]).nonzero()[0])]
    for mechanism, leaks in ((published, True), (strict, False)):
        before, after = (mechanism(y, y, v).values[:, :, :-1] for y in (x, other))
        assert mechanism.info.leaks == leaks
        assert ((before - after).abs().max() > 0.01) == leaks
        assert torch.equal(before, after) != leaks
    assert regard.describe(SPEC).leaks


def test_gradients_with_duplicates_and_a_mask_are_those_of_the_definition():
    mechanism = make(num_buckets=4, rounds=2, bucket_size=5, duplicates=True)
    x, v, way = (randn(2, 2, 40, width, seed=width).requires_grad_() for width in (6, 5, 5))
    keep = torch.rand(2, 40, generator=torch.Generator().manual_seed(0)) > 0.2
    got, want = (
        torch.autograd.grad((values * way.detach()).sum(), (x, v))
        for values in (mechanism(x, x, v, key_mask=keep).values, mechanism.definition(x, x, v, key_mask=keep))
    )
    for name, one, other in zip("xv", got, want, strict=True):
        assert_close(one, other, tolerance=1e-10, what=f"gradient of {name}")


def test_refusals():
    with pytest.raises(ConfigError, match="give num_buckets"):
        make()
    with pytest.raises(ConfigError, match="no option 'share'"):
        make(num_buckets=2, share=False)
    with pytest.raises(UnsupportedError, match="whole sequence"):
        make(num_buckets=2).initial_state(1)
    short = LshPublished(Heads(count=2, key_dim=6, value_dim=5, max_length=8), bucket_size=2)
    with pytest.raises(LimitError, match="max_length=8"):
        short(*(randn(1, 2, 9, width, dtype=torch.float32) for width in (6, 6, 5)))
