"""Layers whose global tokens have projections of their own, against dense attention with explicit masks."""

import pytest
import torch
from torch import Tensor

from regard import AttentionLayer, ConfigError
from regard.models import EncoderConfig
from regard.models.encoder import Encoder

N, DIM, HEADS = 23, 12, 2
MARKS = torch.zeros(2, N, dtype=torch.long)
MARKS[0, [0, 9]], MARKS[1, [4, 5, 17]] = 1, 1
KEEP = torch.arange(N) < torch.tensor([[N], [N - 6]])


def layer_of(spec: str, projections: str, *, dim: int = DIM, kv_heads: int = 1, **options) -> AttentionLayer:
    return AttentionLayer(
        dim, spec, heads=HEADS, kv_heads=kv_heads, causal=False, projections=projections, max_length=64, **options
    ).double()


def hidden_states(dim: int = DIM, seed: int = 0) -> Tensor:
    return torch.randn(2, N, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    assert (a - b).abs().max() <= 1e-10 * b.abs().max()


def untied(layer: AttentionLayer) -> AttentionLayer:
    """Every projection other than the one it began as."""
    with torch.no_grad():
        for at, weight in enumerate(layer.parameters()):
            weight.add_(
                0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(at), dtype=weight.dtype)
            )
    return layer


SPECS = ("longformer(window=3, num_global=1)", "bigbird(block_size=4, form=etc, num_global=1)", "etc(window=3)")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("projections", ["global", "separate"])
@pytest.mark.parametrize("position", [None, "rotary", "alibi", "shaw_keys(max_distance=3)", "sinusoidal"])
def test_they_begin_as_copies(spec: str, projections: str, position: str | None) -> None:
    """Few global tokens, and more than a head is wide."""
    x = hidden_states()
    marks = -MARKS if spec.startswith("etc") else MARKS
    many = marks.new_full(marks.shape, int(marks.min() + marks.max()))
    many[:, 12:] = 0
    own = layer_of(spec, projections, position=position, bias=True, seed=3)
    all_rows = layer_of(spec, "all", position=position, bias=True, seed=3)
    for given in (None, marks, many):
        for keep in (None, KEEP):
            close(own(x, marks=given, key_mask=keep).hidden, all_rows(x, marks=given, key_mask=keep).hidden)


def heads_of(projection: torch.nn.Module, x: Tensor, count: int) -> Tensor:
    return projection(x).reshape(*x.shape[:2], count, -1).transpose(1, 2).repeat_interleave(HEADS // count, 1)


def dense(layer: AttentionLayer, x: Tensor, marks: Tensor, keep: Tensor, window: int) -> Tensor:
    """One pair at a time: which projections each has, and a softmax over the pairs that the paper allows."""
    rows = layer.projections.global_rows
    assert rows is not None
    kinds = {
        "l2l": (layer.projections.query, layer.projections.key, layer.projections.value),
        "g2l": (rows.query, rows.key, rows.value),
    }
    kinds["l2g"] = (
        layer.projections.query,
        rows.key_l2g or layer.projections.key,
        rows.value_l2g or layer.projections.value,
    )
    kinds["g2g"] = (rows.query, rows.key_g2g or rows.key, rows.value_g2g or rows.value)
    made = {
        kind: (heads_of(q, x, HEADS), heads_of(k, x, layer.heads.kv_heads), heads_of(v, x, layer.heads.kv_heads))
        for kind, (q, k, v) in kinds.items()
    }
    out = torch.zeros(2, HEADS, N, DIM // HEADS, dtype=torch.float64)
    for b in range(2):
        spread = {j for j in range(N) if marks[b, j] != 0 and keep[b, j]}
        for h in range(HEADS):
            for i in range(N):
                logits, values = [], []
                for j in range(N):
                    if keep[b, j] and (i in spread or j in spread or abs(i - j) <= window):
                        q, k, v = made[f"{'g' if i in spread else 'l'}2{'g' if j in spread else 'l'}"]
                        logits.append(q[b, h, i] @ k[b, h, j] / (DIM // HEADS) ** 0.5)
                        values.append(v[b, h, j])
                if logits:
                    out[b, h, i] = torch.stack(logits).softmax(0) @ torch.stack(values)
    return layer.projections.output(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("projections", ["global", "separate"])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("many", [False, True])
def test_each_pair_has_its_projections(projections: str, kv_heads: int, many: bool) -> None:
    """Few global tokens move the weights to the queries, many project every token: values and gradients."""
    layer = untied(layer_of("longformer(window=2, num_global=0)", projections, kv_heads=kv_heads, bias=True))
    marks = MARKS.clone()
    if many:
        marks[:, 6:16] = 1
    x, way = hidden_states().requires_grad_(), hidden_states(seed=1)
    weights = [x, *layer.parameters()]
    found = layer(x, marks=marks, key_mask=KEEP).hidden
    expected = dense(layer, x, marks, KEEP, 2)
    close(found, expected)
    grads = zip(*(torch.autograd.grad((y * way).sum(), weights) for y in (found, expected)), strict=True)
    largest = max(float(one.detach().abs().max()) for one in weights)
    for one, other in grads:  # a bias of keys has a gradient of 0 in theory
        assert (one - other).abs().max() <= 1e-10 * max(float(other.abs().max()), largest)


def test_few_global_rows_never_project_all_keys() -> None:
    layer = layer_of("longformer(window=2, num_global=1)", "global", kv_heads=2)
    calls: list[int] = []
    assert layer.projections.global_rows is not None
    for each in (layer.projections.global_rows.key, layer.projections.global_rows.value):
        each.register_forward_hook(lambda module, given, out: calls.append(given[0].shape[1]))
    layer(hidden_states())
    assert calls == []


@pytest.mark.parametrize("content", [1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
@pytest.mark.parametrize("projections", ["global", "separate"])
def test_what_is_hidden_has_no_influence(projections: str, few: bool, content: float) -> None:
    x, hidden = hidden_states(), ~KEEP[..., None]
    marks = MARKS.clone()
    if few:  # one global token in each row: its weights go over hidden states that are never projected
        marks[0, 9:], marks[1, 5:] = 0, 0
    layer = untied(layer_of("longformer(window=2)", projections))
    wanted = layer(x.masked_fill(hidden, 0), marks=marks, key_mask=KEEP).hidden
    found = layer(x.masked_fill(hidden, content), marks=marks, key_mask=KEEP).hidden
    close(found[0], wanted[0])
    close(found[1, : N - 6], wanted[1, : N - 6])


@pytest.mark.parametrize("spec", ["longformer(window=3, num_global=1)", "bigbird(block_size=4)"])
@pytest.mark.parametrize("position", [None, "rotary", "alibi"])
def test_a_causal_layer_streams_with_marks(spec: str, position: str | None) -> None:
    layer = AttentionLayer(DIM, spec, heads=2, position=position, max_length=64, causal=True).double()
    x = hidden_states()
    whole, state, at = layer(x, marks=MARKS).hidden, layer.initial_state(2), 0
    for count in (7, 1, 1, N - 9):
        piece = slice(at, at + count)
        got = layer(x[:, piece], marks=MARKS[:, piece], state=state)
        close(got.hidden, whole[:, piece])
        at, state = at + count, got.state


@pytest.mark.parametrize(
    ("spec", "causal", "message"),
    [("longformer", True, "is causal: no row is global"), ("local", False, "has no global tokens")],
)
def test_without_global_rows_there_is_nothing_to_project(spec: str, causal: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AttentionLayer(DIM, spec, heads=2, causal=causal, projections="global")


def test_a_model_takes_them_from_its_configuration() -> None:
    sizes = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 11, "attention": ("longformer(window=2)",)}
    own, shared = (Encoder(EncoderConfig(**sizes, projections=each)) for each in ("global", "all"))
    assert sum("global_rows.query.weight" in name for name, _ in own.named_parameters()) == 2
    assert not any("global_rows" in name for name, _ in shared.named_parameters())
