"""Claims on sparse patterns: with a wrong thing in the place of the right one."""

import math

import pytest
import torch

from evidence import claims
from evidence.claims._letters import LETTERS, pair_bits, samples, text
from evidence.claims.blockwise_memory import blockwise
from evidence.claims.graph_mixing import reached, second_eigenvalue
from evidence.claims.receptive_field import depends
from regard import patterns as masks
from regard.core.attention import generator

pytestmark = pytest.mark.study


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"local": "local(window=4)"}, "window: furthest pair - L w, worst depth, positions"),
        ({"local": "local(window=2)"}, "causal window: pairs unlike 0 <= i - j <= L w"),
        (
            {"local": "pattern(rule='window({window}) & ~strided(2)')"},
            "window: pairs unlike |i - j| <= L w, all depths",
        ),
        ({"atrous": "atrous(dilation=2)"}, "atrous, every depth: pairs unlike i = j mod dilation"),
        ({"both": "local(window={window})"}, "local and atrous, 2 layers: share reached"),
        ({"both": "softmax"}, "local and atrous, 1 layer: share reached"),
    ],
)
def test_a_field_that_is_not_layers_times_window(verdicts, settings, failing):
    verdict, found, missed = verdicts("receptive_field", **settings)
    assert (verdict, missed) == ("does not hold", [])
    assert found[failing] == "does not hold"


def test_a_measure_that_full_attention_does_not_fill(verdicts):
    verdict, _, missed = verdicts("receptive_field", full="local(window=22)")
    assert (verdict, missed) == ("inconclusive", ["full attention, 1 layer: share reached"])


def test_what_an_output_depends_on():
    """Position i of a shift by two, beside itself through the residual."""
    x = torch.randn(6, 2, generator=generator(0), dtype=torch.float64)
    seen = depends(x, [lambda h: h.roll(2, 1)])
    assert seen.nonzero().tolist() == sorted([[i, i] for i in range(6)] + [[i, (i - 2) % 6] for i in range(6)])


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"random": "local(window=4)"}, "window and random: diameter / log2 n"),
        ({"random": "local(window=4)"}, "spectral gap, window and random / window alone"),
        ({"random": "local(window=30)"}, "window and random: edges / window alone"),
        ({"globally": "local(window=8)"}, "window and global: diameter"),
        ({"window": "softmax"}, "window alone: diameter at n / at n/4"),
    ],
)
def test_graphs_that_mix_otherwise(verdicts, settings, failing):
    verdict, found, missed = verdicts("graph_mixing", **settings)
    assert (verdict, missed) == ("does not hold", [])
    assert found[failing] == "does not hold"


def test_graphs_of_known_diameter():
    for length in range(2, 30):
        at = torch.arange(length)
        for size in (1, 2, 5):
            diameter, shares = reached(masks.window(size).mask(at, at))
            assert diameter == math.ceil((length - 1) / size)
            assert shares[-1] == 1
    star = masks.first(1).mask(at, at) | masks.window(0).mask(at, at)
    with pytest.raises(ValueError, match="is all that is ever reached"):
        reached(star)  # everybody sees the first; it sees nobody
    assert reached(star | star.mT)[0] == 2


def test_known_second_eigenvalues():
    ring = torch.eye(12, dtype=torch.bool)
    ring = ring | ring.roll(1, 0) | ring.roll(-1, 0)
    assert second_eigenvalue(ring) == pytest.approx((1 + 2 * math.cos(2 * math.pi / 12)) / 3, abs=1e-12)
    halves = masks.block(6).mask(torch.arange(12), torch.arange(12))
    assert second_eigenvalue(halves) == pytest.approx(1, abs=1e-12)  # two graphs never mix


def test_patterns_that_are_exchanged(verdicts):
    """On the images, which decide; the text is hardly trained, which its control tells."""
    plain = claims.build("sparse_transformer_patterns")
    exchanged = {"strided": plain.fixed, "fixed": plain.strided, "steps_text": 2}
    verdict, found, missed = verdicts("sparse_transformer_patterns", **exchanged)
    assert (verdict, missed) == ("inconclusive", ["text: full attention, accuracy"])
    assert found["images: accuracy, strided - fixed"] == "does not hold"


def test_images_repeat_and_text_answers_itself():
    claim = claims.build("sparse_transformer_patterns", settings={"rows": 6, "stride": 4, "back": 2})
    pixels, answers = claim.images(3, generator(0))
    assert pixels.shape == answers.shape == (3, 23)
    for row, asked in zip(pixels.tolist(), answers.tolist(), strict=True):
        assert asked[:7] == [-100] * 7
        assert asked[7:] == row[:16]
    tokens, answers = claim.text(5, generator(1))
    for row, asked in zip(tokens.tolist(), answers.tolist(), strict=True):
        facts = {token // 4: token % 4 for token in row if token < 16}
        assert len(facts) == 4
        assert [facts[row[at] - 16] for at in range(24) if asked[at] >= 0] == [a for a in asked if a >= 0]
        assert min(at for at in range(24) if asked[at] >= 0) >= 18


def test_windows_that_do_not_matter():
    """Equal windows in every schedule cannot differ."""
    small = {"steps": 3, "samples": 4}
    found = claims.build("window_schedule", tiny=True, settings={"windows": (3, 3), "equal": (3, 3), **small}).observe(
        0
    )
    assert found.values["reverse - growing"] == found.values["equal - growing"] == 0


def test_a_model_that_sees_more_than_a_letter_is_no_table_of_pairs():
    """Within its steps it does better than the control allows."""
    claim = claims.build("window_schedule", tiny=True, settings={"samples": 100})
    new = samples("valid", claim.samples, claim.length, generator(0, "valid"))
    table = float(pair_bits()[new[:, :-1], new[:, 1:]].mean())
    (control,) = claim.controls
    assert claim.bits((4, 4), new, 0)[0] < table - control.tolerance
    assert abs(claim.bits((0, 0), new, 0)[0] - table) < control.tolerance


def test_the_table_of_pairs_is_that_of_the_text():
    begin, whole = generator(3), text("train")
    table = pair_bits()
    assert table.exp2().reciprocal().sum(1).allclose(torch.ones(LETTERS, dtype=torch.float64))
    first, second = whole[1000].item(), whole[1001].item()
    after = whole[1:][whole[:-1] == first]
    share = ((after == second).sum().item() + 0.5) / (len(after) + 0.5 * LETTERS)
    assert table[first, second].item() == pytest.approx(-math.log2(share), rel=1e-12)
    drawn = samples("train", 3, 7, begin)
    assert drawn.shape == (3, 8)
    valid = samples("valid", 200, 20, generator(4))
    pieces = {tuple(row) for row in valid.tolist()}
    assert len(pieces) > 190


@pytest.mark.parametrize("spec", ["softmax", "local(window=1)", "blockwise(blocks={blocks}, shift=0)"])
def test_what_is_no_blockwise_attention(verdicts, spec):
    verdict, found, missed = verdicts("blockwise_memory", spec=spec)
    assert (verdict, missed) == ("inconclusive", ["ours - published form, largest difference"])
    assert spec != "softmax" or found["ours: operations ~ blocks to the power of"] == "does not hold"


def test_the_published_form_is_the_definition():
    """Block b of head h sees block b + h, by a double loop."""
    q, k, v = torch.randn(3, 1, 2, 12, 4, generator=generator(5), dtype=torch.float64)
    found = blockwise(q, k, v, 3)
    for head in range(2):
        for i in range(12):
            seen = [j for j in range(12) if j // 4 == (i // 4 + head) % 3]
            p = (k[0, head, seen] @ q[0, head, i] / 2).softmax(0)
            torch.testing.assert_close(found[0, head, i], p @ v[0, head, seen], rtol=1e-10, atol=1e-10)


def test_documents_answer_their_questions():
    claim = claims.build("etc_lookup", settings={"sentences": 3, "words": 4, "keys": 5, "values": 4, "asked": 6})
    document = claim.documents(4, generator(0))
    for tokens, marks, answers in zip(document.tokens, document.marks.tolist(), document.answer.tolist(), strict=True):
        assert marks == [-1, -2, -3, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0]
        known = {}
        for sentence in tokens[3:15].unflatten(0, (3, 4)).tolist():
            (key,) = (word for word in sentence if word < 5)
            (value,) = (word - 5 for word in sentence if 5 <= word < 9)
            known[key] = value
        assert [known[key] for key in tokens[15:].tolist()] == answers
        assert list(known)[-1] not in tokens[15:].tolist()


def test_a_lookup_without_global_tokens(verdicts):
    verdict, found, missed = verdicts("etc_lookup", hard="local(window=1)", soft="local(window=1)")
    assert (verdict, missed) == ("does not hold", [])
    assert found["hard mask: accuracy"] == "does not hold"
