"""image_local_2d: its order of generation, literal key sets, its state."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build
from regard.engines.kernels import forced

CAUSAL = Heads(count=1, key_dim=4, causal=True)


def generated(width, height, channels, block):
    """(row, column, channel) in the order of generation, by loops."""
    order = []
    for top in range(0, height, block[0]):
        for left in range(0, width, block[1]):
            for row in range(top, top + block[0]):
                for column in range(left, left + block[1]):
                    order.extend((row, column, channel) for channel in range(channels))
    return order


SHAPES = [
    (6, 1, (2, 3), (2, 3)),
    (6, 1, (2, 3), (0, 0)),
    (4, 3, (1, 2), (1, 1)),
    (8, 1, (3, 2), (1, 3)),
    (6, 2, (2, 2), (5, 1)),
    (5, 1, (1, 5), (2, 0)),
    (4, 1, (4, 1), (3, 2)),
]


@pytest.mark.parametrize(("width", "channels", "block", "flange"), SHAPES)
def test_key_sets(keys_of, width, channels, block, flange):
    places = generated(width, 60 // block[0] * block[0], channels, block)
    for n in range(1, 41):
        expected = []
        for i in range(n):
            row, column, _ = places[i]
            top, left = row - row % block[0], column - column % block[1]
            keys = set()
            for j in range(i + 1):
                r, c, _ = places[j]
                if top - flange[0] <= r < top + block[0] and left - flange[1] <= c < left + block[1] + flange[1]:
                    keys.add(j)
            expected.append(keys)
        with forced("tiles" if n % 13 == 0 else ""):
            spec = f"image_local_2d(width={width}, channels={channels}, query_block={block}, flange={flange})"
            assert keys_of(spec, n) == [expected], n


def test_the_block_to_the_right_is_not_seen_and_the_one_above_it_is(keys_of):
    """Width 4, blocks of 2 x 2, flange 2: slots 0-3, 4-7 | 8-11, 12-15. Slot 8 is generated before the block 12-15."""
    (sets,) = keys_of("image_local_2d(width=4, query_block=(2, 2), flange=(2, 2))", 16)
    assert sets[3] == {0, 1, 2, 3}
    assert sets[8] == {0, 1, 2, 3, 4, 5, 6, 7, 8}
    assert sets[13] == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
    (narrow,) = keys_of("image_local_2d(width=4, query_block=(2, 2), flange=(1, 1))", 16)
    assert narrow[8] == {2, 3, 6, 8}
    assert narrow[12] == {3, 6, 7, 9, 11, 12}


@pytest.mark.parametrize(("width", "channels", "block", "flange"), SHAPES)
def test_order(width, channels, block, flange):
    height = 2 * block[0]
    mechanism = build("image_local_2d", CAUSAL, width=width, channels=channels, query_block=block, flange=flange)
    places = generated(width, height, channels, block)
    expected = [(row * width + column) * channels + channel for row, column, channel in places]
    assert mechanism.order(height).tolist() == expected
    raster = torch.arange(height * width * channels) * 7
    back = torch.empty_like(raster)
    back[mechanism.order(height)] = raster[mechanism.order(height)]
    assert torch.equal(back, raster)
    with pytest.raises(ConfigError, match="do not divide an image of height=0"):
        mechanism.order(0)


def test_equal_options_share_one_layout():
    one, other = (build("image_local_2d(width=8, query_block=(2, 4))", CAUSAL) for _ in range(2))
    assert one.pattern == other.pattern
    assert one.pattern != build("image_local_2d(width=8, query_block=(4, 4))", CAUSAL).pattern


def test_refusals():
    for spec, message in (
        ("image_local_2d(width=28)", "16 columns do not divide width=28; these do: 1, 2, 4, 7, 14, 28"),
        ("image_local_2d(channels=0)", "option channels=0 is not valid: .* greater than or equal to 1"),
        (
            "image_local_2d(query_block=(0, 4))",
            r"option query_block=\(0, 4\) is not valid: .* greater than or equal to 1",
        ),
        ("image_local_2d(flange=(-1, 4))", r"option flange=\(-1, 4\) is not valid: .* greater than or equal to 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(spec, CAUSAL)
    with pytest.raises(ConfigError, match="blocks of 8 rows do not divide an image of height=28"):
        build("image_local_2d", CAUSAL).order(28)
    with pytest.raises(UnsupportedError, match="generated before"):
        build("image_local_2d", Heads(count=1, key_dim=4))
