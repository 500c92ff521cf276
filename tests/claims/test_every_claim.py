"""Every claim that there is: what it says of itself, and its small form from measurement to page."""

import dataclasses
import json
import math

import plotly.offline
import pytest

from evidence import claims
from evidence.claims import _page as page
from regard.core.errors import ConfigError
from tests.claims.silent import SILENT
from tests.claims.test_can_fail import FALLEN

CAUGHT_BY = {title for *_, title in FALLEN}
"""findings by which tests tell that something wrong was put into a claim"""


@pytest.mark.parametrize("name", claims.names())
def test_a_claim_says_all_of_itself_before_it_is_measured(name):
    about, claim = claims.outline(name), claims.build(name)
    assert all(vars(about).values())
    assert claim.controls
    assert claim.findings
    assert all(one.at_least is not None or one.at_most is not None for one in claim.findings)
    assert all(math.isfinite(one.expected) and one.tolerance >= 0 for one in claim.controls)
    assert claims.build(name, tiny=True) != claim, "the small form is no smaller"
    frozen = pytest.raises(dataclasses.FrozenInstanceError)
    with frozen:
        setattr(claim, dataclasses.fields(claim)[0].name, None)


@pytest.mark.study
@pytest.mark.parametrize("name", claims.names())
def test_the_small_form_reaches_its_controls(name, measured, monkeypatch):
    monkeypatch.setattr(plotly.offline, "get_plotlyjs", lambda: "")
    found = measured(name)
    assert [one["title"] for one in found["controls"] if not one["reached"]] == []
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert {one["verdict"] for one in found["findings"]} <= {"holds", "does not hold", "inconclusive"}
    fallen = {one["title"] for one in found["findings"] if one["verdict"] == "does not hold"}
    told = fallen & CAUGHT_BY - SILENT.get(name, set())
    assert not told, "a test takes this for the mark of a wrong thing, and the right one shows it too"
    drawn = page.figures(found)
    assert len(drawn) == len(found["plots"]) > 0
    assert all(json.loads(one["json"])["data"] for one in drawn), "a plot without curves"
    html = page.render([found])
    assert found["reason"].replace("'", "&#39;") in html
    assert "://" not in html, "the page asks the network for something"


def test_unknown_names_and_settings_name_the_nearest():
    with pytest.raises(ConfigError, match="'dot_product_variance'"):
        claims.outline("dot_product_varianc")
    with pytest.raises(ConfigError, match="did you mean 'dot_product_variance'"):
        claims.build("dot_product_varianc")
    with pytest.raises(ConfigError, match="has no setting 'rws': did you mean 'rows'"):
        claims.build("dot_product_variance", settings={"rws": 1})


def test_seeds_measure_differently_and_repeat_exactly():
    claim = claims.build("dot_product_variance", tiny=True)
    first, again = (claims.measure(claim, range(3))["observations"] for _ in range(2))
    assert first == again
    assert first[0]["values"] != first[1]["values"]
