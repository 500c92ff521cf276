"""The whole contract on a CUDA device: the suite's own numbers, moved there."""

import pytest

from regard import catalog, memory, position
from regard.layer import AttentionLayer
from regard.memory import caches
from regard.models import LanguageModel, blocks, depth
from regard.models.encoder_decoder import CrossBlock, EncoderDecoder
from regard.testing import CHECKS, check_attention
from tests.laws import check_part

COUNTED = {"cost", "cost_is_reached"}
"""which count operations: they are the same on every device"""
PARTS = [*(position.position_class(name) for name in position.names())]
PARTS += [memory.memory_class(name) for name in memory.names()]
PARTS += [blocks.block_class(name) for name in blocks.names()]
PARTS += [depth.depth_class(name) for name in depth.names()]
PARTS += [caches.cache_class(name) for name in caches.names()]
PARTS += [AttentionLayer, LanguageModel, CrossBlock, EncoderDecoder]


@pytest.mark.parametrize("name", catalog.names())
def test_mechanisms(name):
    results = check_attention(name, checks=[check for check in CHECKS if check not in COUNTED], device="cuda")
    failed = [f"{r.check} {dict(r.options)}: {r.message}" for r in results if r.status == "failed"]
    assert not failed, "\n\n".join(failed)
    assert any(r.status == "passed" for r in results)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_parts(part):
    results = check_part(part, device="cuda")
    failed = [f"{r.check}: {r.message}" for r in results if r.status == "failed"]
    assert not failed, "\n\n".join(failed)
    assert any(r.status == "passed" for r in results)
