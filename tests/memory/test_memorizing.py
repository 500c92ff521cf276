"""The searched memory: what is found, how it is mixed, what leaves, and that it is bounded."""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.layer import AttentionLayer
from regard.memory import MemoryState, build_memory
from regard.memory.memorizing import Memorizing
from regard.models import LanguageModel, ModelConfig
from regard.testing.compare import assert_close, assert_identical

DIM, HEADS, KV_HEADS, SEGMENT = 16, 4, 2, 5


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(memory: str, **options: Any) -> AttentionLayer:
    shape = {"heads": HEADS, "kv_heads": KV_HEADS, "position": "rotary", "causal": True, **options}
    layer = AttentionLayer(DIM, "softmax", memory=memory, **shape).double().eval()
    with torch.no_grad():
        layer.memory.gates.copy_(randn(HEADS, seed=3))
        layer.memory.log_gain.add_(randn(HEADS, seed=4))
    return layer


def segments(layer: AttentionLayer, x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, MemoryState]:
    memory, pieces = layer.memory.initial_state(len(x), dtype=x.dtype), []
    masks = [None] * len(x[0]) if key_mask is None else key_mask.split(SEGMENT, 1)
    for piece, mask in zip(x.split(SEGMENT, 1), masks, strict=False):
        got = layer(piece, memory=memory, key_mask=mask)
        memory, _ = got.memory, pieces.append(got.hidden)
    return torch.cat(pieces, 1), memory


def defined(layer: AttentionLayer, x: Tensor, pairs: int, top: int, keep: Tensor) -> Tensor:
    """Every query of every head on its own: its segment by softmax, the memory by sorting cosines, and the gate."""
    plain = (
        AttentionLayer(DIM, "softmax", heads=HEADS, kv_heads=KV_HEADS, position="rotary", causal=True).double().eval()
    )
    plain.load_state_dict({n: w for n, w in layer.state_dict().items() if not n.startswith("memory.")})
    q, (k, v) = layer.projections.queries(x), layer.projections(x)
    out = []
    for first in range(0, x.shape[1], SEGMENT):
        cut = slice(first, first + SEGMENT)
        local = plain.values(x[:, cut], key_mask=keep[:, cut]).values
        mixed = local.clone()
        for row in range(len(x)):
            places = [at for at in range(max(first - pairs, 0), first) if keep[row, at]]
            if not places:
                continue
            for head in range(HEADS):
                own, gate = head * KV_HEADS // HEADS, layer.memory.gates[head].sigmoid()
                for at in range(local.shape[2]):
                    query = q[row, head, first + at] / q[row, head, first + at].norm()
                    scores = [(query @ k[row, own, j] / k[row, own, j].norm()).item() for j in places]
                    best = sorted(zip(scores, places, strict=True), reverse=True)[:top]
                    weights = (torch.tensor([s for s, _ in best]) * layer.memory.log_gain[head].exp()).softmax(0)
                    found = sum(w * v[row, own, j] for w, (_, j) in zip(weights.double(), best, strict=True))
                    mixed[row, head, at] = gate * found + (1 - gate) * local[row, head, at]
        out.append(layer.output(mixed, x[:, cut]))
    return torch.cat(out, 1)


@pytest.mark.parametrize(("pairs", "top"), [(100, 100), (100, 3), (7, 3), (5, 1), (2, 9)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_joint_definition(pairs, top, masked):
    """SPEC J3: k of the memory or more is dense attention over it; fewer are those that sorting finds; of a full one
    the oldest leave."""
    layer, x = layer_of(f"memorizing(pairs={pairs}, top={top})"), randn(2, 18, DIM)
    keep = torch.ones(2, 18, dtype=torch.bool)
    if masked:
        keep[0, [2, 7, 8]] = keep[1, :6] = False
    with torch.no_grad():
        got, memory = segments(layer, x, keep if masked else None)
        torch.set_default_dtype(torch.float64)
        try:
            wanted = defined(layer, x, pairs, top, keep)
        finally:
            torch.set_default_dtype(torch.float32)
    assert_close(got[keep], wanted[keep], tolerance=1e-10, what="every token")
    assert memory["keys"].shape[2] == min(pairs, 18)
    assert memory.length == 18


def test_a_search_in_blocks_finds_the_same(monkeypatch):
    """Buffers of a few scores: queries one by one, rows one by one."""
    layer, x = layer_of("memorizing(pairs=9, top=4)"), randn(3, 18, DIM)
    keep = torch.ones(3, 18, dtype=torch.bool)
    keep[1, 4:9] = False
    with torch.no_grad():
        wanted = segments(layer, x, keep)[0]
        for size in (1, 30, 100):
            monkeypatch.setattr("regard.memory.memorizing._BUFFER", size)
            assert_close(segments(layer, x, keep)[0], wanted, tolerance=1e-12, what=f"buffer of {size}")


def model_of(memory: str | tuple[str, ...], **options: Any) -> LanguageModel:
    shape = {"dim": 16, "layers": 3, "heads": 2, "vocab_size": 20, "max_length": 6, "position": "t5_bias", **options}
    return LanguageModel(ModelConfig(memory=memory, **shape)).double().eval()


NEAR_THE_TOP = ("recent(length=6)", "memorizing(pairs=11, top=4, recent=6)", "recent(length=6)")


def test_one_layer_has_it_and_the_others_are_recent():
    model = model_of(NEAR_THE_TOP)
    assert [type(layer.memory).__name__ for layer in model.layers] == ["Recent", "Memorizing", "Recent"]
    one = model_of(("none", "none", "memorizing(pairs=11, top=4)"))
    assert [layer.memory is None for layer in one.layers] == [True, True, False]
    tokens = torch.randint(20, (2, 20), generator=torch.Generator().manual_seed(1))
    for each in (model, one):
        with torch.no_grad():
            whole, state, pieces = each(tokens).logits, each.initial_state(2), []
            for piece in tokens.split([1, 8, 1, 10], 1):
                got = each(piece, state=state)
                state, _ = got.state, pieces.append(got.logits)
            assert_close(torch.cat(pieces, 1), whole, tolerance=1e-12, what="pieces")
            again = each.initial_state(2).load(state.dump())
            more = tokens[:, :7]
            assert_identical(each(more, state=again).logits, each(more, state=state).logits, what="from a file")
            assert (state.length, state.running) == (20, 2)


def test_misuse_is_refused():
    heads = Heads(count=2, key_dim=4, causal=True)
    assert build_memory("memorizing(pairs=262144)", heads, 8).pairs == 262_144
    for spec in ("memorizing(pairs=262145)", "memorizing(pairs=0)", "memorizing(top=0)", "memorizing(gain=0.0)"):
        with pytest.raises(ConfigError, match="should be"):
            build_memory(spec, heads, 8)
    for memory, message in (
        (("recent", "recent"), "memory must be a tuple of one specification, or of one for each of the 3 layers"),
        (("recent", "recnt", "none"), "unknown memory 'recnt': did you mean 'recent'"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of(memory)
    assert not ModelConfig(memory=("none", "none")).remembers
    assert ModelConfig(memory=("recent",), layers=3).memories == ("recent",) * 3
    assert isinstance(Memorizing(heads, 8), Memorizing)
