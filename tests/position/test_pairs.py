"""Every position scheme with every mechanism: it works in every form that the mechanism has, or is refused at build."""

from pathlib import Path

import pytest
import torch

from regard import AttentionLayer, Heads, catalog
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError
from regard.head_mix import HeadMix
from regard.memory.recent import Recent
from regard.position import build_position, names, position_class
from regard.position.alibi import Alibi
from regard.position.rotary import Rotary
from regard.position.t5_bias import T5Bias
from regard.testing import record
from regard.testing.counting import Count
from regard.testing.position_pairs import position_pair

LONG, WINDOW = 65_536, 64
TESTED = Path(__file__).parents[2] / "build" / "tested" / "pairs"
"""read by docs/pages.py"""


@pytest.mark.parametrize("scheme", names())
@pytest.mark.parametrize("mechanism", catalog.names())
def test_a_pair_works_in_every_form_or_says_why_not(mechanism, scheme):
    """What decides: a scheme with biases needs a mechanism that adds them, one that turns q and k needs both."""
    cls, _ = catalog.resolve(mechanism)
    info, needs = cls.describe(cls.samples[0]), position_class(scheme)
    pair = position_pair(mechanism, scheme)
    if needs.biased and not info.supports.bias:
        assert "adds a bias to the logits" in pair.reason
        assert "regard list --supports bias" in pair.reason
        assert cls.reasons.get("bias", "") in pair.reason
    elif needs.transforms and not {"q", "k"} <= set(info.reads):
        assert "changes queries and keys" in pair.reason
    else:
        streams, remembers = (info.supports.causal and has for has in (info.supports.state, info.supports.prefix))
        wanted = [("training", True), ("streaming", streams), ("segments", remembers)]
        assert pair.reason == ""
        assert pair.forms == tuple(form for form, has in wanted if has)
    record.keep(TESTED, f"{mechanism} {scheme}", {"forms": pair.forms, "reason": pair.reason})


class TestATryThatMustFail:
    """Each mistake is seen, by the part that is meant to see it."""

    def fails(self, scheme: str, message: str) -> None:
        with pytest.raises(AssertionError, match=message):
            position_pair("softmax", scheme)

    def test_a_rotation_that_counts_from_its_own_piece(self, monkeypatch):
        honest = Rotary._rotate
        monkeypatch.setattr(Rotary, "_rotate", lambda self, x, at: honest(self, x, at - at[0]))
        self.fails("rotary", "pieces with a state")

    def test_a_memory_that_forgets(self, monkeypatch):
        honest = Recent.write

        def forget(self, state, x, **given):
            after, losses = honest(self, state, x, **given)
            return type(after)({"hidden": after["hidden"][:, 1:]}, after.length), losses

        monkeypatch.setattr(Recent, "write", forget)
        self.fails("rotary", "segments with a memory")

    def test_a_scheme_that_does_nothing(self, monkeypatch):
        monkeypatch.setattr(
            Alibi, "bias", lambda self, q, low, high: ScoreBias(high=high, curve=q.new_zeros(4, high + 1 - low))
        )
        self.fails("alibi", "it is ignored")

    def test_a_weight_without_a_gradient(self, monkeypatch):
        honest = T5Bias.bias
        monkeypatch.setattr(
            T5Bias,
            "bias",
            lambda self, q, low, high: ScoreBias(high=high, curve=honest(self, q, low, high).curve.detach()),
        )
        self.fails("t5_bias", "no gradient reaches table")


@pytest.mark.parametrize("scheme", [name for name in names() if position_class(name).biased])
def test_a_bias_has_one_column_per_distance_of_the_window(scheme):
    """At any length: what a scheme makes follows the reach of the mechanism."""
    heads = Heads(count=2, key_dim=8, causal=True, max_length=LONG)
    mechanism = catalog.build(f"local(window={WINDOW})", heads)
    low, high = mechanism.bias_distances(LONG, LONG)
    assert (low, high) == (0, WINDOW)
    q = torch.randn(1, 2, 3, 8, generator=torch.Generator().manual_seed(0))
    bias = build_position(scheme, heads, 16).bias(q, low, high)
    assert (bias.high, bias.distances, bias.table) == (WINDOW, WINDOW + 1, None)


@pytest.mark.parametrize("scheme", names())
def test_long_sequences_under_a_window_need_no_square(scheme):
    """Forward and backward at 65,536 positions: no tensor of more than twice the numbers of the hidden states."""
    dim = 4
    layer = AttentionLayer(dim, f"local(window={WINDOW})", heads=1, position=scheme, max_length=LONG, causal=True)
    x = torch.randn(1, LONG, dim, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Count() as counted:
        layer(x).hidden.sum().backward()
    assert counted.largest <= 2 * LONG * dim, counted.largest / (LONG * dim)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("scheme", names())
def test_heads_of_a_mix_get_their_own_part(scheme):
    """Two windows side by side are the two layers apart, with every scheme."""
    layer = AttentionLayer(
        16,
        "local(window=2):2 + softmax:2",
        heads=4,
        kv_heads=2,
        position=scheme,
        max_length=32,
        seed=1,
        causal=True,
    ).double()
    assert isinstance(layer.attention, HeadMix)
    x = torch.randn(2, 11, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    apart = []
    for part, spec in ((slice(0, 8), "local(window=2)"), (slice(8, 16), "softmax")):
        alone = AttentionLayer(
            16, spec, heads=4, kv_heads=2, position=layer.position, max_length=32, causal=True
        ).double()
        alone.load_state_dict(layer.state_dict())
        alone.projections.output = torch.nn.Identity()
        apart.append(alone(x).hidden[..., part])
    wanted = torch.cat(apart, -1) @ layer.projections.output.weight.T
    assert (layer(x).hidden - wanted).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("alibi", {"heads": 2}),
        ("t5_bias", {"causal": False}),
        ("rotary", {"key_dim": 8}),
        ("shaw_keys", {"key_dim": 8}),
        ("sinusoidal", {"dim": 32}),
    ],
)
def test_a_shared_scheme_built_for_another_layer_is_refused(scheme, options):
    shared = build_position(scheme, Heads(count=4, key_dim=4, causal=True), 16)
    layer = {"dim": 16, "spec": "softmax", "heads": 4, "key_dim": 4, "value_dim": 4, "position": shared, "causal": True}
    AttentionLayer(**layer)
    with pytest.raises(ConfigError, match=r"the shared position serves dim=16 and Heads\(count=4.* this layer needs"):
        AttentionLayer(**{**layer, **options})
