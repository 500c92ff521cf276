"""Published LSH attention agrees with reformer-pytorch where both define the same thing, and its faults show.

Given attend_across_buckets=False, the port's query sees the tokens of its own bucket in its own chunk and in the one
before, itself only where it is alone, by keys of unit length over sqrt(d): the same as ours, once per round in which a
key is met or once in all. One case is left out and shown to be wrong: the port's first chunk looks back at the last
one, which has its bucket if one bucket holds the first token of the order and the last.
"""

import math

import pytest
import torch
from torch import Tensor

from regard import Heads
from regard.testing import assert_close, assert_identical
from regard_lab.published.lsh_published import LshPublished

port = pytest.importorskip(
    "reformer_pytorch.reformer_pytorch", reason="reformer-pytorch is not installed; `make external`"
)

pytestmark = pytest.mark.external

HEADS, DIM, LENGTH, CHUNK = 2, 8, 48, 6


def vectors(seed: int, length: int = LENGTH) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(1, HEADS, length, DIM, generator=draw, dtype=torch.float64)


def pair(
    rounds: int,
    *,
    causal: bool,
    duplicates: bool,
    length: int = LENGTH,
    chunk: int = CHUNK,
):
    """Ours, and theirs as a function of (batch, heads, length, dim), with the same hash matrices."""
    theirs = port.LSHAttention(
        bucket_size=chunk,
        n_hashes=rounds,
        causal=causal,
        allow_duplicate_attention=duplicates,
        attend_across_buckets=False,
    ).eval()
    buckets = length // chunk
    heads = Heads(count=HEADS, key_dim=DIM, causal=causal)
    ours = LshPublished(heads, num_buckets=buckets, rounds=rounds, bucket_size=chunk, duplicates=duplicates).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        ours.lsh.rotations = (
            torch.randn(1, DIM, rounds, buckets // 2, dtype=torch.float64).transpose(1, 2).repeat(2, 1, 1, 1)
        )

    def attend(x: Tensor, v: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            values, _, chosen = theirs(x.flatten(0, 1), v.flatten(0, 1))
        offsets = buckets * torch.arange(rounds).repeat_interleave(length)
        assert torch.equal((chosen - offsets).view(HEADS, rounds, length).mT, ours.decisions(x, x).keys[0].long())
        return values.view_as(v)

    return ours.eval(), attend


def wraps(ours: LshPublished, x: Tensor) -> bool:
    """Whether the first token in the order of (bucket, position) has the bucket of the last, in the only round."""
    chosen = ours.decisions(x, x).keys
    return ours.rounds == 1 and bool((chosen.amin(2) == chosen.amax(2)).any())


@pytest.mark.parametrize("duplicates", [True, False])
@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_lsh_is_theirs(causal: bool, rounds: int, duplicates: bool) -> None:
    """Where a key counts once, they take log(N + 1e-9) in float32."""
    tolerance = 1e-10 if duplicates else 1e-7
    ours, theirs = pair(rounds, causal=causal, duplicates=duplicates)
    other, _ = pair(rounds, causal=causal, duplicates=not duplicates)
    differ = 0.0
    for seed in range(6):
        x, v = vectors(seed), vectors(seed + 50)
        assert not wraps(ours, x)
        expected = theirs(x, v)
        assert_close(ours(x, x, v).values, expected, tolerance=tolerance, what=f"{causal=}, {rounds=}, {seed=}")
        assert_close(ours.definition(x, x, v), expected, tolerance=tolerance, what="the definition")
        differ = max(differ, (other(x, x, v).values - expected).abs().max().item())
    assert (differ > 0.01) == (rounds > 1), "counting a key once or once a round would make no difference"


def test_gradients_are_theirs() -> None:
    ours, theirs = pair(3, causal=True, duplicates=False)
    x, v, way = (vectors(seed) for seed in (0, 1, 2))
    slopes = []
    for attend in (lambda x, v: ours(x, x, v).values, theirs):
        leaves = [y.clone().requires_grad_() for y in (x, v)]
        slopes.append(torch.autograd.grad((attend(*leaves) * way).sum(), leaves))
    for name, got, wanted in zip(("x", "v"), *slopes, strict=True):
        assert wanted.any()
        assert_close(got, wanted, tolerance=1e-7, what=name)


def test_the_port_leaks_and_the_mechanism_of_the_library_does_not() -> None:
    """A last token of the lowest bucket moves all others up by a place, over the ends of chunks."""
    published, theirs = pair(1, causal=True, duplicates=True)
    exact = published.lsh
    changes = {"theirs": 0.0, "published": 0.0}
    for seed in range(8):
        x, v = vectors(seed), vectors(seed + 50)
        other = x.clone()
        chosen = exact.decisions(x, x).keys[0, 0, :, 0]
        other[:, :, -1] = x[:, :, int(chosen.argmin())]
        for name, attend in (("theirs", theirs), ("published", lambda x, v: published(x, x, v).values)):
            before, after = (attend(y, v)[:, :, :-1] for y in (x, other))
            changes[name] = max(changes[name], (before - after).abs().max().item())
        before, after = (exact(y, y, v).values[:, :, :-1] for y in (x, other))
        assert_identical(before, after, what=f"of the library, {seed=}")
    assert min(changes.values()) > 0.01


def test_the_first_chunk_of_the_port_looks_back_at_the_last() -> None:
    """All tokens in one bucket, two chunks: a query of the first sees the second too, as if it stood before."""
    length, chunk = 2 * CHUNK, CHUNK
    ours, theirs = pair(1, causal=False, duplicates=True, length=length, chunk=chunk)
    x, v = vectors(3, 1) + 0.1 * vectors(0, length), vectors(1, length)
    assert wraps(ours, x)
    logits = x @ torch.nn.functional.normalize(x, dim=-1).mT / DIM**0.5
    logits = logits.masked_fill(torch.eye(length, dtype=torch.bool), -math.inf)
    before = logits.clone()
    before[:, :, :chunk, chunk:] = -math.inf
    assert_close(ours(x, x, v).values, before.softmax(-1) @ v, tolerance=1e-10, what="own chunk and the one before")
    assert_close(theirs(x, v), logits.softmax(-1) @ v, tolerance=1e-10, what="the last chunk before the first")
    assert (theirs(x, v) - ours(x, x, v).values)[:, :, :chunk].abs().max() > 0.01


def test_the_port_looks_back_across_buckets_and_rounds_by_default() -> None:
    """Its default: a value that only the last chunk of the last round holds reaches the first chunk of the first."""
    attention = port.LSHAttention(bucket_size=CHUNK, n_hashes=1, causal=False).eval()
    x, v = vectors(0), vectors(1)
    ours, _ = pair(1, causal=False, duplicates=True)
    chosen = ours.decisions(x, x).keys[0, 0, :, 0].long()
    order = (chosen * LENGTH + torch.arange(LENGTH)).argsort()
    first, last = order[:CHUNK], order[-CHUNK:]
    assert chosen[first[-1]] < chosen[last[0]]
    louder = v.clone()
    louder[:, :, last] += 10

    def attend(v: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return attention(x[:, 0], v[:, 0])[0]

    assert (attend(louder) - attend(v))[:, first].abs().max() > 0.1
    assert_identical(ours(x, x, louder).values[0, 0, first], ours(x, x, v).values[0, 0, first], what="ours")
