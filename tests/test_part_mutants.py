"""Every broken part of a model is caught, by the check named for it; the part that it breaks passes that check."""

import pytest

from regard import memory, position
from regard.core.errors import ConfigError
from regard.layer import AttentionLayer
from regard.memory import caches
from regard.models import LanguageModel, blocks, depth
from regard.models.blocks.residual import Residual
from regard.models.encoder_decoder import CrossBlock, EncoderDecoder
from regard.position import Position
from regard_lab.tasks.text import Windows
from tests.laws import PART_CHECKS, check_part
from tests.mutants import MUTANTS, depths, exits, memories, parts, states_of_models
from tests.mutants.verdict import objection

OF_PARTS = {module.__name__ for module in (depths, exits, memories, parts, states_of_models)}
PART_MUTANTS = [mutant for mutant in MUTANTS if mutant.cls.__module__ in OF_PARTS]

SOUND = [*(position.position_class(name) for name in position.names())]
SOUND += [memory.memory_class(name) for name in memory.names()]
SOUND += [blocks.block_class(name) for name in blocks.names()]
SOUND += [depth.depth_class(name) for name in depth.names()]
SOUND += [caches.cache_class(name) for name in caches.names()]
SOUND += [AttentionLayer, LanguageModel, CrossBlock, EncoderDecoder, Windows]


@pytest.mark.parametrize("part", SOUND, ids=lambda part: part.__name__)
def test_ours_keep_every_law_of_their_kind(part):
    results = check_part(part)
    assert [result.message for result in results if result.status == "failed"] == []
    assert any(result.status == "passed" for result in results)
    run = {result.check for result in results if result.status == "passed"}
    stood_in = {result.reason.rpartition(": ")[2] for result in results if result.status == "excused"}
    assert stood_in <= run, "an excuse that names no check that ran in its place"


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", PART_MUTANTS, ids=lambda mutant: mutant.name)
def test_caught_by_its_check(mutant):
    assert objection(mutant) == ""


def test_every_block_has_a_check_of_its_own():
    """Besides the laws of all blocks: its formula."""
    for name in blocks.names():
        assert blocks.block_class(name) in {check.kind for check in PART_CHECKS.values()}, name


def test_every_memory_has_a_check_of_its_own():
    """Besides the laws of all memories: what it keeps."""
    for name in memory.names():
        assert memory.memory_class(name) in {check.kind for check in PART_CHECKS.values()}, name


def test_every_check_has_a_mutant():
    assert {mutant.caught_by for mutant in PART_MUTANTS} == set(PART_CHECKS)
    assert all(mutant.cls.__doc__ for mutant in PART_MUTANTS)
    assert len({mutant.name for mutant in PART_MUTANTS}) == len(PART_MUTANTS)


def test_a_scheme_of_ones_own_needs_a_definition():
    """Positions without a published formula to compare with are not waved through."""

    class Mine(Position):
        title, source, biased = "Mine", "nowhere", True

    (result,) = check_part(Mine, checks=["published_logits"])
    assert result.status == "failed"
    assert "no definition of mine" in result.message


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ConfigError, match="unknown check"):
        check_part(Residual, checks=["residual_onse"])
    with pytest.raises(ConfigError, match="is none of AttentionLayer, Block, Cache, Compressive, CrossBlock"):
        check_part(int)
    with pytest.raises(ConfigError, match="is none of"):
        check_part(Residual, checks=["targets_are_next"])
