import pytest
import torch

from regard import Heads, build
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.head_parts import cut_at, head_part


def test_the_weights_of_a_part_are_those_of_its_heads():
    whole = build("cosine", Heads(count=6, key_dim=4, causal=True))
    with torch.no_grad():
        whole.log_gain.copy_(torch.arange(6.0).view_as(whole.log_gain))
    part = head_part(whole, 1, 3)
    assert (part.heads.count, part.heads.kv_heads) == (2, 2)
    assert part.log_gain.flatten().tolist() == [2.0, 3.0]
    assert cut_at(whole, part) == {"log_gain": 0}
    part.log_gain.data.zero_()
    assert whole.log_gain.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_part_may_stand_in_any_dimension_and_has_no_holes():
    """Weights by head stand behind another dimension here, and fused optimizers overlook strides."""
    whole = build("mixed_chunk", Heads(count=4, key_dim=4, causal=True))
    part = head_part(whole, 1, 2)
    assert cut_at(whole, part)["query_gain"] == 1
    assert part.query_gain.is_contiguous()
    assert part.query_gain.equal(whole.query_gain[:, 2:])


def test_heads_that_do_not_divide_are_refused():
    whole = build("softmax", Heads(count=6, key_dim=4, kv_count=2))
    with pytest.raises(ConfigError, match="6 heads with 2 of keys cannot be shared by 3 processes"):
        head_part(whole, 0, 3)


def test_a_weight_without_a_slice_is_refused():
    whole = build("additive", Heads(count=4, key_dim=4))
    whole.combine = torch.nn.Parameter(torch.zeros(5, 8))
    with pytest.raises(UnsupportedError, match="which is no slice"):
        head_part(whole, 0, 2)
