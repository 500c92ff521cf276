"""Names of weights that moved: followed in the library's own modules, and never where a name is taken."""

import re

import pytest
import torch
from torch import nn

import regard
from regard.errors import CheckpointError
from regard.models import LanguageModel, ModelConfig
from regard.moved import current_names, follow

CONFIG = ModelConfig(dim=16, heads=2, layers=2, vocab_size=9)
OLD, NEW = "blocks.1.attention.query.weight", "blocks.1.attention.projections.query.weight"


class Labelled(LanguageModel):
    """Calls a table of its own as version 0.1 called the one of the tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(3, config.dim)


class Weighed(regard.AttentionLayer):
    """Parts of its own with the names that the projections had: a module, a parameter and a buffer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.query = nn.Linear(3, 2)
        self.key = nn.ParameterDict({"weight": nn.Parameter(torch.randn(2))})
        self.register_buffer("value", torch.randn(2))


class AttentionLayer(nn.Module):
    """A third party's, whose name says nothing about the library's."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(2, 2)
        follow(self)


def test_an_old_name_is_followed_on_every_way():
    model = LanguageModel(CONFIG)
    written = model.state_dict()
    written[OLD] = written.pop(NEW) + 1
    expected = written[OLD].clone()
    assert model.load_state_dict(written).missing_keys == []
    assert torch.equal(model.get_parameter(NEW), expected)
    assert OLD in written, "the caller's own"
    assert current_names(model, [OLD]) == {OLD: NEW}


@pytest.mark.parametrize("wrapped", [False, True])
def test_both_names_of_a_weight_are_refused_and_nothing_is_loaded(wrapped):
    model = LanguageModel(CONFIG)
    outer = nn.Sequential(model) if wrapped else model
    before = {name: x.clone() for name, x in outer.state_dict().items()}
    written = {name: x + 1 for name, x in before.items()}
    prefix = "0." if wrapped else ""
    written[prefix + OLD] = written[prefix + NEW].clone()
    pair = re.escape(f"{prefix}{OLD} and {prefix}{NEW} are one weight")
    with pytest.raises(CheckpointError, match=pair):
        outer.load_state_dict(written)
    assert all(torch.equal(x, before[name]) for name, x in outer.state_dict().items())
    with pytest.raises(CheckpointError, match=pair):
        current_names(outer, written)


@pytest.mark.parametrize("build", [lambda: Labelled(CONFIG), lambda: Weighed(16, "softmax", heads=2)])
def test_a_subclass_loads_what_it_wrote(build):
    one, other = build(), build()
    with torch.no_grad():
        for x in one.parameters():
            x.add_(1)
    other.load_state_dict(one.state_dict())
    assert all(torch.equal(x, one.state_dict()[name]) for name, x in other.state_dict().items())
    assert all(name == now for name, now in current_names(one, one.state_dict()).items())


def test_a_subclass_still_loads_what_an_earlier_version_wrote():
    layer = Weighed(16, "softmax", heads=2)
    assert current_names(layer, ["output.weight"]) == {"output.weight": "projections.output.weight"}


def test_a_class_of_the_same_name_is_left_alone():
    module = AttentionLayer()
    assert current_names(module, ["query.weight"]) == {"query.weight": "query.weight"}
    found = module.load_state_dict({**module.state_dict(), "query.weight": torch.ones(1)}, strict=False)
    assert found.unexpected_keys == ["query.weight"]


def test_a_layer_that_is_shared_is_followed_under_each_of_its_names():
    layer = regard.AttentionLayer(16, "softmax", heads=2, causal=True)
    both = nn.ModuleList([layer, layer])
    old = {name.replace("projections.", ""): x for name, x in both.state_dict().items()}
    both.load_state_dict(old)
    assert current_names(both, old) == dict(zip(old, both.state_dict(), strict=True))
