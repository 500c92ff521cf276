"""Depth schemes by name."""

import pytest

from regard.core.errors import ConfigError
from regard.models import ModelConfig
from regard.models.depth import build_depth
from regard.models.depth.fixed import Fixed


def test_depths_by_name():
    assert isinstance(build_depth("fixed", ModelConfig()), Fixed)
    for spec, message in (("fixd", "did you mean 'fixed'"), ("fixed(steps=2)", "has no options, got 'steps'")):
        with pytest.raises(ConfigError, match=message):
            build_depth(spec, ModelConfig())
    with pytest.raises(ConfigError, match="depth: unknown depth 'univrsal'"):
        ModelConfig(depth="univrsal")
