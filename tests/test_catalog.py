"""Names in, mechanisms out: lists, specifications, mixes over heads, third parties."""

from typing import final

import pytest
import torch

import regard
from regard import catalog
from regard.attention.dense.softmax import Softmax
from regard.core.attention import Attention
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads, Info, Supports
from regard.testing.compare import assert_identical

HEADS = Heads(count=4, key_dim=8, causal=True)


def test_names_by_pattern_and_capability():
    every = regard.names()
    assert set(regard.names("lin*")) == {name for name in every if name.startswith("lin")}
    assert regard.names("nothing*") == []
    for capability in Supports.__dataclass_fields__:
        wanted = {name for name in every if getattr(regard.describe(name).supports, capability)}
        assert set(regard.names(supports=[capability])) == wanted
    both = set(regard.names(supports=["causal"])) & set(regard.names(supports=["dropout"]))
    assert set(regard.names("s*", supports=["causal", "dropout"])) == {name for name in both if name.startswith("s")}
    assert "linformer" not in regard.names(supports=["causal"])


def test_an_unknown_capability_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown capability 'casual': did you mean 'causal'\?"):
        regard.names(supports=["casual"])


def test_names_are_sorted_by_family():
    families = [catalog.family(name) for name in regard.names()]
    assert families == sorted(families)


def test_mechanisms_with_the_words_in_a_name_are_sorted_by_the_length_of_that_name():
    found = ["local", "adaptive_span", "bigbird", "etc", "local_atrous", "longformer", "local_linear"]
    assert catalog.search("window") == found


def test_options_come_from_the_specification_or_beside_it():
    assert regard.build("local(window=5)", HEADS).window == 5
    assert regard.build("local", HEADS, window=6).window == 6
    assert regard.build("local(window=5, dilation=2)", HEADS, window=7).window == 7
    assert regard.build("local(window=5, dilation=2)", HEADS, window=7).dilation == 2


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("softmx", {}, r"unknown mechanism 'softmx': did you mean 'softmax'\?"),
        ("local(windw=3)", {}, r"mechanism local has no option 'windw': did you mean 'window'\?"),
        ("local", {"windw": 3}, r"mechanism local has no option 'windw': did you mean 'window'\?"),
        ("local(window='3')", {}, r"mechanism local: option window='3' is not valid"),
        ("local(window=3.5)", {}, r"option window=3.5 is not valid"),
        ("softmax:2 + linear", {}, r"'linear' in 'softmax:2 \+ linear' must name its heads"),
        ("softmax:2 + linear:0", {}, "must name its heads"),
        ("softmax:2 + linear:1", {}, r"serve 2 \+ 1 = 3 heads, the layer has 4"),
        ("softmax:2 + linear:2", {"scale": 1.0}, r"options of a mix belong to its parts, got \['scale'\]"),
        ("no.such.module:Thing", {}, "cannot import 'no.such.module:Thing'"),
        ("collections:OrderedDict", {}, "collections:OrderedDict is not a subclass of"),
        ("regard.core.attention:Attention", {}, "regard.core.attention:Attention lacks attend and reference"),
        ("regard.attention.dense:Dense", {}, "lacks reference, so it cannot be built; write in the class"),
        ("softmax:² + linear:2", {}, "must name its heads"),
        (f"local(window={'-' * 5000}1)", {}, "cannot read"),
        (f"local(window={'(' * 300}1{')' * 300})", {}, "cannot read"),
        (f"local(window={'1' * 5000})", {}, "cannot read"),
        ("local(window={[]: 1})", {}, "an option is a number"),
        (None, {}, "a specification is a text such as 'local\\(window=64\\)' or 'my_module:Mine', got None"),
        (b"local", {}, "a specification is a text"),
    ],
)
def test_what_cannot_be_built(spec, options, message):
    with pytest.raises(ConfigError, match=message):
        regard.build(spec, HEADS, **options)


def test_an_import_path_is_a_specification():
    path = "regard.attention.dense.softmax:Softmax"
    assert type(regard.build(path, HEADS)) is Softmax
    assert regard.describe(path) == Softmax.default_info


def test_an_import_path_takes_options():
    path = "regard.attention.sparse.local:Local"
    assert regard.build(f"{path}(window=3)", HEADS).window == 3
    assert regard.build(f"{path}(window=3, dilation=2)", HEADS, window=5).window == 5
    assert regard.describe(f"{path}(window=3)") == regard.describe("local(window=3)")
    mixed = regard.build(f"{path}(window=3):3 + {path}:1", HEADS)
    assert [part.window for part in mixed.mechanisms] == [3, regard.build("local", HEADS).window]
    with pytest.raises(ConfigError, match="has no option 'windw': did you mean 'window'"):
        regard.build(f"{path}(windw=3)", HEADS)
    with pytest.raises(ConfigError, match="option window='a' is not valid"):
        regard.describe(f"{path}(window=a)")


def test_a_mix_supports_what_all_its_parts_do():
    found = regard.describe("softmax:2 + local(window=3):2")
    parts = [regard.describe("softmax").supports, regard.describe("local").supports]
    for capability in ("causal", "bidirectional", "cross", "key_mask", "bias", "state", "prefix", "dropout"):
        assert getattr(found.supports, capability) == all(getattr(part, capability) for part in parts)
    assert found.state == "length"
    with pytest.raises(UnsupportedError, match="linformer does not support causal=True"):
        regard.build("softmax:2 + linformer:2", HEADS)


def test_a_mix_is_its_parts_side_by_side():
    q, k, v = torch.randn(3, 2, 4, 11, 8, generator=torch.Generator().manual_seed(0))
    mixed = regard.build("softmax:1 + local(window=2):3", HEADS)(q, k, v).values
    for spec, heads in (("softmax", slice(0, 1)), ("local(window=2)", slice(1, 4))):
        own = regard.build(spec, Heads(count=heads.stop - heads.start, key_dim=8, causal=True))
        assert_identical(mixed[:, heads], own(q[:, heads], k[:, heads], v[:, heads]).values, what=spec)


@final
class HalfSum(Attention):
    """Half the sum of all values."""

    default_info = Info(title="Half sum", source="none", supports=Supports(bidirectional=True), rows_sum_to_one=False)

    def attend(self, q, k, v, call):
        return regard.Attended(0.5 * v.sum(2, keepdim=True).expand(*q.shape[:3], v.shape[-1]))

    def reference(self, q, k, v, call):
        return self.attend(q, k, v, call).values


@pytest.fixture
def registered():
    catalog.register(HalfSum)
    yield
    catalog.unregister("half_sum")


def test_a_third_party_is_listed_described_and_built(registered):
    assert regard.names()[-1] == "half_sum"
    assert "half_sum" not in regard.names(supports=["causal"])
    assert regard.describe("half_sum") is HalfSum.default_info
    assert catalog.family("half_sum") == HalfSum.__module__
    assert catalog.outline("half_sum") is HalfSum.default_info
    assert "Half the sum" in catalog.docstring("half_sum")
    found = regard.attend(*torch.ones(3, 1, 2, 5, 4), "half_sum")
    assert found.unique().tolist() == [2.5]
    with pytest.raises(UnsupportedError, match="half_sum does not support causal=True"):
        regard.build("half_sum", HEADS)


def test_registering_twice_is_once_and_another_of_the_name_is_refused(registered):
    assert catalog.register(HalfSum) is HalfSum
    assert regard.names().count("half_sum") == 1
    with pytest.raises(ConfigError, match="the name 'half_sum' is taken"):
        catalog.register(type("HalfSum", (Attention,), dict(vars(HalfSum))))
    with pytest.raises(ConfigError, match="the name 'softmax' is taken"):
        catalog.register(type("Softmax", (Attention,), {"default_info": HalfSum.default_info}))


def test_what_cannot_be_registered():
    with pytest.raises(ConfigError, match="is not a subclass of"):
        catalog.register(dict)
    with pytest.raises(ConfigError, match="NoFacts has no class attribute `default_info"):
        catalog.register(type("NoFacts", (Attention,), {}))
    with pytest.raises(ConfigError, match="'half_sum' was not registered"):
        catalog.unregister("half_sum")
    with pytest.raises(ConfigError, match="unknown mechanism 'half_sum'"):
        regard.describe("half_sum")
