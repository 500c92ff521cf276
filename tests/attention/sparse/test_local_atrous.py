"""local_atrous: literal key sets, its state, two layers reach everything."""

import pytest
import torch

from regard import ConfigError, Heads, build


@pytest.mark.parametrize(("window", "dilation"), [(0, 2), (3, 3), (2, 5), (5, 4), (1, 64), (50, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_key_sets(keys_of, window, dilation, causal):
    for n in range(1, 41):
        expected = []
        for i in range(n):
            keys = set()
            for j in range(n):
                near, far = abs(i - j) <= window, (i - j) % dilation == 0
                if (near or far) and (j <= i or not causal):
                    keys.add(j)
            expected.append(keys)
        for impl in ("auto", "torch") if n % 13 == 0 else ("auto",):
            spec = f"local_atrous(window={window}, dilation={dilation}, impl={impl})"
            assert keys_of(spec, n, causal=causal) == [expected], n


def test_decoding(decodes):
    decodes(
        "local_atrous(window=2, dilation=5)",
        lambda i, h: {j for j in range(i + 1) if i - j <= 2 or (i - j) % 5 == 0},
    )


@pytest.mark.parametrize(("window", "dilation"), [(3, 6), (3, 7), (4, 9)])
def test_two_layers_connect_every_pair_away_from_the_ends(keys_of, reachable, window, dilation):
    """Every distance is a multiple of the dilation, up to half of it more or less; at the ends one side is missing."""
    inner = slice(window, 60 - window)
    for size, full in ((window, True), ((dilation - 2) // 2 - (dilation % 2 == 0), False)):
        (sets,) = keys_of(f"local_atrous(window={size}, dilation={dilation})", 60, causal=False)
        assert bool(reachable(sets, sets, residual=False)[inner].all()) is full


def test_two_layers_with_a_window_of_one_less_than_the_dilation(keys_of, reachable):
    past = torch.ones(60, 60).tril() > 0
    for window, full in ((6, True), (5, False)):
        (sets,) = keys_of(f"local_atrous(window={window}, dilation=7)", 60)
        assert torch.equal(reachable(sets, sets, residual=False), past) is full


def test_a_window_over_everything_is_softmax():
    q, k, v = torch.randn(3, 1, 2, 30, 8, generator=torch.Generator().manual_seed(0)).double()
    heads = Heads(count=2, key_dim=8)
    expected = build("softmax", heads)(q, k, v).values
    found = build("local_atrous(window=30, dilation=4)", heads)(q, k, v).values
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_refusals():
    for option, low in (("window=-1", 0), ("dilation=0", 1)):
        with pytest.raises(ConfigError, match=f"option {option} is not valid: .* greater than or equal to {low}"):
            build(f"local_atrous({option})", Heads(count=1, key_dim=4))
