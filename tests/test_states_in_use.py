"""States as callers use them: forked, rewound, joined by rows, written to files, given to the wrong mechanism."""

import copy
import functools
import operator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import regard
from regard import Heads, build, catalog
from regard.core.bias import ScoreBias
from regard.core.errors import ShapeError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.patterns import Pattern, parse

HEADS = Heads(count=2, key_dim=8, causal=True, max_length=64)
WIDE = torch.float64


def draw(length, batch=1, seed=0, heads=2):
    return torch.randn(3, batch, heads, length, 8, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def built(spec, heads=HEADS):
    return build(spec, heads).double().eval()


def after(mechanism, x, state=None, **more):
    state = mechanism.initial_state(x.shape[1], dtype=WIDE) if state is None else state
    return mechanism(*x, state=state, **more)


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "local(window=5)", "softmax:1 + local(window=5):1"])
def test_a_rewound_state_overwrites_no_other(spec):
    mechanism, x, other = built(spec), draw(16), draw(8, seed=1)
    whole = mechanism(*x).values
    prompt = after(mechanism, x[..., :8, :]).state
    draft = after(mechanism, x[..., 8:11, :], prompt).state
    for count, newest in ((3, draft), (2, draft), (1, prompt)):
        after(mechanism, other, newest.rewind(count))  # thrown away
        after(mechanism, other[..., :1, :], newest.rewind(count))
    torch.testing.assert_close(after(mechanism, x[..., 8:, :], prompt).values, whole[..., 8:, :])
    torch.testing.assert_close(after(mechanism, x[..., 11:, :], draft).values, whole[..., 11:, :])
    torch.testing.assert_close(after(mechanism, x[..., 9:, :], draft.rewind(2)).values, whole[..., 9:, :])


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (("softmax", "linear", "local(window=5)", "lsh(rounds=2, bucket_size=8)"), {"max_length": 20}),
        (("softmax:1 + linear:1",), {"max_length": 6, "memory": "recent(length=6)", "position": "rotary"}),
    ],
)
def test_threads_with_states_of_their_own_share_a_model(layers, options):
    """From nothing, and from copies of one prompt: each gets what it would get alone."""
    shape = {"dim": 16, "heads": 2, "layers": len(layers), "vocab_size": 20, **options}
    model = LanguageModel(ModelConfig(attention=layers, **shape)).eval()
    texts = torch.randint(20, (8, 1, 10), generator=torch.Generator().manual_seed(0))

    def read(tokens, state):
        logits = []
        with torch.no_grad():
            for token in tokens.split(1, 1):
                found = model(token, state=state)
                state, _ = found.state, logits.append(found.logits)
        return torch.cat(logits, 1)

    with torch.no_grad():
        prompt = model(texts[0], state=model.initial_state(1)).state
    for begun in (lambda: model.initial_state(1), lambda: prompt.map(torch.clone)):
        alone = [read(tokens, begun()) for tokens in texts]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read, texts, [begun() for _ in texts]))
        assert all(map(torch.equal, found, alone))


@torch.no_grad()
def test_rows_of_states_that_keep_other_slots_are_refused():
    mechanism = built("longformer(window=2)", Heads(count=1, key_dim=8, causal=True))
    bias = ScoreBias(high=30, curve=-0.3 * torch.arange(30, -1, -1, dtype=WIDE)[None])
    marks = torch.zeros(2, 2, 9, dtype=torch.long)
    marks[0, :, 1] = marks[1, :, 6] = 1
    x = draw(9, batch=2, heads=1)
    first, second = (after(mechanism, x, bias=bias, marks=kept).state for kept in marks)
    with pytest.raises(ShapeError, match="positions differ"):
        first.where(torch.tensor([True, False]), second)
    with pytest.raises(ShapeError, match="rows must be bool"):
        first.where(torch.tensor([True, False, True]), first)


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "softmax:1 + local(window=5):1"])
def test_a_state_without_a_mask_joins_one_with_a_mask(spec):
    mechanism, x, rows = built(spec), draw(6, batch=2), torch.tensor([True, False])
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, -1] = False
    plain = after(mechanism, x[..., :5, :]).state
    masked = after(mechanism, x[..., :5, :], key_mask=mask).state
    for first, second in ((plain, masked), (masked, plain)):
        out = [after(mechanism, x[..., 5:, :], state).values for state in (first.where(rows, second), first, second)]
        torch.testing.assert_close(out[0], torch.where(rows[:, None, None, None], out[1], out[2]))


STREAMS = [n for n in regard.names(supports=["causal", "state"]) if not regard.describe(n).inputs]


@torch.no_grad()
@pytest.mark.parametrize("name", STREAMS)
def test_a_dump_that_lacks_a_tensor_is_refused(name):
    mechanism = built(name)
    x = draw(6, batch=2)
    dump = after(mechanism, x[[1, 1, 2]]).state.dump()
    fresh = mechanism.initial_state(1, dtype=WIDE)
    for gone in dump.keys() - {"spec_tag"}:
        with pytest.raises(ShapeError, match="this state has"):
            fresh.load({key: y for key, y in dump.items() if key != gone})
    with pytest.raises(ShapeError, match="this state has"):
        fresh.load({**dump, "more": torch.zeros(2)})
    with pytest.raises(ShapeError, match="length"):
        fresh.load({**dump, "length": torch.tensor(-1)})
    with pytest.raises(ShapeError, match="length"):
        fresh.load({**dump, "length": torch.tensor(6.5)})
    loaded = fresh.load(dump)
    assert loaded.length == 6


@torch.no_grad()
def test_parts_that_count_other_slots_are_refused():
    for kept in (built("softmax:1 + linear:1"), LanguageModel(ModelConfig(dim=16, heads=2, layers=2)).eval()):
        dump = kept.initial_state(1).dump()
        length = next(name for name in dump if name.endswith("length"))
        with pytest.raises(ShapeError, match="count the same slots"):
            kept.initial_state(1).load({**dump, length: torch.tensor(3)})


@torch.no_grad()
@pytest.mark.parametrize("name", STREAMS)
def test_a_state_of_another_batch_or_mechanism_is_refused(name):
    mechanism, x = built(name), draw(1, batch=2)
    x = x[[1, 1, 2]]
    with pytest.raises(ShapeError, match="begin with initial_state"):
        mechanism(*x, state=mechanism.initial_state(1, dtype=WIDE))
    with pytest.raises(ShapeError, match="begin with initial_state"):
        mechanism(*x, state=built("softmax:1 + local(window=5):1").initial_state(2, dtype=WIDE))
    other = built(name, Heads(count=2, key_dim=8, value_dim=5, causal=True, max_length=64))
    with pytest.raises(ShapeError, match="begin with initial_state"):
        mechanism(*x, state=other.initial_state(2, dtype=WIDE))


@torch.no_grad()
@pytest.mark.parametrize(
    ("whose", "asked"),
    [("linear", "efficient"), ("efficient", "linear"), ("softmax", "local(window=5)"), ("softmax", "shaw")],
)
def test_a_state_of_the_same_layout_is_refused_by_name(whose, asked):
    mechanism, x = built(asked), draw(6, batch=2)
    first = built(whose).initial_state(2, dtype=WIDE)
    one = after(built(whose), x[..., :5, :]).state
    loaded = first.load(one.dump())
    rows = one.select(torch.tensor([1, 0])).where(torch.tensor([True, False]), one).detach().map(torch.clone)
    for state in (first, one, loaded, rows):
        with pytest.raises(ShapeError, match=rf"{asked.partition('(')[0]}: this is the state of {whose}\(.*must be of"):
            after(mechanism, x[..., 5:, :], state)
        after(built(whose), x[..., 5:, :], state)


@torch.no_grad()
def test_a_state_behind_a_compiled_call_is_refused_by_name():
    first, x = built("linear"), draw(6, batch=2)
    compiled = torch.compile(first, backend="eager", fullgraph=True)
    state = compiled(*x[..., :5, :], state=first.initial_state(2, dtype=WIDE)).state
    assert state.spec_tag == first.spec_tag
    with pytest.raises(ShapeError, match=r"efficient: this is the state of linear\(.*must be of efficient\("):
        after(built("efficient"), x[..., 5:, :], state)


@torch.no_grad()
@pytest.mark.parametrize("name", STREAMS)
def test_a_state_of_other_options_is_refused(name):
    """As that of another mechanism: an option may change what the numbers mean, even where their shapes agree."""
    cls, _ = catalog.resolve(name)
    x, sets = draw(6, batch=2)[[1, 1, 2]], [{"impl": "reference"}, *cls.samples]
    infos = [(each, cls.describe(each)) for each in sets]
    served = [each for each, info in infos if info.supports.state and info.supports.causal and not info.inputs]
    for one, other in permutations([cls(HEADS, **each).double().eval() for each in served], 2):
        if one.spec_tag == other.spec_tag:  # by other means
            continue
        kept = after(one, x[..., :5, :]).state
        for state in (kept, one.initial_state(2, dtype=WIDE), kept.select(torch.tensor([1, 0]))):
            with pytest.raises(ShapeError, match=rf"{name}: this is the state of {name}\(.*must be of {name}\("):
                after(other, x[..., 5:, :], state)
            with pytest.raises(ShapeError, match=rf"this is the state of {name}\(.*must be of {name}\("):
                other.initial_state(2, dtype=WIDE).load(state.dump())


@torch.no_grad()
def test_what_options_say_nothing_of_a_state():
    """Copies, other means to the same numbers, a file of either, and what was built with the defaults written out."""
    x = draw(6, batch=2)
    first = built("linear")
    whole, state = first(*x).values, after(first, x[..., :5, :]).state
    others = [copy.deepcopy(first), *map(built, ("linear(impl=auto)", "linear(normalise=True, rotary=False)"))]
    assert "spec_tag" in state.dump()
    for other in others:
        for kept in (state, other.initial_state(2, dtype=WIDE).load(state.dump()), copy.deepcopy(state)):
            torch.testing.assert_close(after(other, x[..., 5:, :], kept).values, whole[..., 5:, :])


def capped(q, k):
    return 3 * torch.tanh(q @ k.mT)


@torch.no_grad()
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: regard.build("cosine", HEADS, gain=3), lambda: regard.build("cosine", HEADS, gain=3.0)),
        (lambda: regard.build("score", HEADS, function=capped), lambda: regard.build("score", HEADS, function=capped)),
        (
            lambda: regard.build("pattern", HEADS, rule=parse("window(2) | strided(3)")),
            lambda: regard.build("pattern", HEADS, rule=parse("window(2) | strided(3)")),
        ),
    ],
    ids=["numbers", "a function", "a pattern"],
)
def test_a_file_of_a_state_is_read_by_what_was_built_alike(one, other):
    x = draw(6, batch=2)[[1, 1, 2]]
    state = after(one().double(), x[..., :5, :]).state
    written = bytes(state.dump()["spec_tag"].tolist()).decode()
    assert "0x" not in written  # an address would be another one in another process
    assert other().double().initial_state(2, dtype=WIDE).load(state.dump()).length == 5


@torch.no_grad()
def test_a_parametrization_leaves_a_mechanism_its_states():
    """It puts a class of its own over that of the module; that of one built before, or removed since, is the same."""
    mechanism, x = built("bilinear"), draw(6, batch=2)
    before = after(mechanism, x[..., :5, :]).state
    name = next(iter(dict(mechanism.named_parameters())))
    parametrize.register_parametrization(mechanism, name, nn.Identity())
    assert type(mechanism) is not type(built("bilinear"))
    whole = mechanism(*x).values
    within = after(mechanism, x[..., :5, :]).state
    for state in (before, within):
        torch.testing.assert_close(after(mechanism, x[..., 5:, :], state).values, whole[..., 5:, :])
    parametrize.remove_parametrizations(mechanism, name)
    torch.testing.assert_close(after(mechanism, x[..., 5:, :], within).values, whole[..., 5:, :])


@torch.no_grad()
def test_sums_of_a_narrower_dtype_are_refused():
    mechanism = built("linear")
    with pytest.raises(ShapeError, match="does not fit a call"):
        mechanism(*draw(1), state=mechanism.initial_state(1, dtype=torch.float32))


@torch.no_grad()
def test_a_state_that_dropped_slots_says_so():
    state = after(built("length_switch(exact_keys=4)"), draw(9)).state
    with pytest.raises(UnsupportedError, match="keep the earlier state"):
        state.rewind(1)


@pytest.mark.parametrize("spec", ["softmax", "linear"])
def test_a_state_on_another_device_is_refused(spec):
    mechanism, x = built(spec), draw(3)
    state = after(mechanism, x).state
    with pytest.raises(ShapeError, match="is on meta, the call on cpu; move it"):
        after(mechanism, x, state.map(lambda tensor: tensor.to("meta")))


class Near:
    """A rule that is an object."""

    def __call__(self, i, j):
        return (i - j).abs() <= 3


@pytest.mark.parametrize("rule", [Near(), functools.partial(operator.ge), Pattern(lambda i, j: i >= j)])
def test_a_copy_of_a_mechanism_with_a_rule_goes_on_from_its_states(rule):
    own = regard.build("pattern", regard.Heads(count=2, key_dim=8, causal=True), rule=rule)
    q, k, v = torch.randn(3, 1, 2, 6, 8, generator=torch.Generator().manual_seed(0)).unbind()
    with torch.no_grad():
        state = own(q, k, v, state=own.initial_state(1)).state
        step = [x[:, :, :1] for x in (q, k, v)]
        wanted = own(*step, state=state).values
        for mechanism, past in ((copy.deepcopy(own), state), (own, copy.deepcopy(state))):
            assert torch.equal(mechanism(*step, state=past).values, wanted)
