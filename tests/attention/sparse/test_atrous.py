"""atrous: literal key sets, its state, its limits."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build


def test_the_reader_of_key_sets_notices_other_weights(keys_of):
    with pytest.raises(AssertionError, match="not 1 / count"):
        keys_of("softmax_plus_one", 5)


@pytest.mark.parametrize("dilation", [2, 7, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_key_sets(keys_of, dilation, causal):
    for n in range(1, 41):
        expected = []
        for i in range(n):
            keys = set()
            for j in range(n):
                if (i - j) % dilation == 0 and (j <= i or not causal):
                    keys.add(j)
            expected.append(keys)
        for impl in ("auto", "torch") if n % 13 == 0 else ("auto",):
            assert keys_of(f"atrous(dilation={dilation}, impl={impl})", n, causal=causal) == [expected], n


def test_decoding(decodes):
    decodes("atrous(dilation=3)", lambda i, h: {j for j in range(i + 1) if (i - j) % 3 == 0})


def test_it_is_dense_attention_inside_each_residue_class():
    q, k, v = torch.randn(3, 1, 2, 50, 8, generator=torch.Generator().manual_seed(0)).double()
    for causal in (True, False):
        heads = Heads(count=2, key_dim=8, causal=causal)
        out, dense = build("atrous(dilation=4)", heads)(q, k, v).values, build("softmax", heads)
        for r in range(4):
            expected = dense(*(x[:, :, r::4] for x in (q, k, v))).values
            torch.testing.assert_close(out[:, :, r::4], expected, rtol=0, atol=1e-10)


def test_refusals():
    with pytest.raises(
        ConfigError, match="atrous: option dilation=1 is not valid: Input should be greater than or equal to 2"
    ):
        build("atrous(dilation=1)", Heads(count=1, key_dim=4))
    with pytest.raises(UnsupportedError, match="same positions"):
        build("atrous", Heads(count=1, key_dim=4))(*(torch.zeros(1, 1, n, 4) for n in (3, 5, 5)))
