"""local_atrous: literal key sets, its state, two layers reach everything."""

import pytest

from regard import ConfigError, Heads, build
from regard.engines.kernels import forced


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
        with forced("tiles" if n % 13 == 0 else ""):
            spec = f"local_atrous(window={window}, dilation={dilation})"
            assert keys_of(spec, n, causal=causal) == [expected], n


def test_refusals():
    for option, low in (("window=-1", 0), ("dilation=0", 1)):
        with pytest.raises(ConfigError, match=f"option {option} is not valid: .* greater than or equal to {low}"):
            build(f"local_atrous({option})", Heads(count=1, key_dim=4))
