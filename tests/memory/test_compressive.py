"""The compressive memory: which positions are where, what a slot is, and what its losses train."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads
from regard.layer import AttentionLayer
from regard.memory import MemoryState, build_memory
from regard.memory.compressive import Compressive
from regard.models import LanguageModel, ModelConfig
from regard.testing.compare import assert_close, assert_identical

FUNCTIONS = ("max", "mean", "convolution", "dilated_convolution", "most_used")
DIM, HEADS = 8, 2


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def memory_of(dim: int = DIM, **options: Any) -> Compressive:
    heads = Heads(count=HEADS, key_dim=max(dim // HEADS, 1), causal=True)
    return Compressive(heads, dim, **options).double()


def written(memory: Compressive, x: Tensor, lengths: list[int], key_mask: Tensor | None = None) -> MemoryState:
    """The state after these segments, with the hidden states themselves as queries, keys and values."""
    state, first = memory.initial_state(len(x), dtype=x.dtype), 0
    for length in lengths:
        cut = slice(first, first + length)
        own, mask = x[:, cut], None if key_mask is None else key_mask[:, cut]
        q, k, v = (own.unflatten(2, (memory.heads.count, -1)).transpose(1, 2),) * 3
        state = memory.write(state, own, q=q, k=k, v=v, project=split, key_mask=mask)[0]
        first += length
    return state


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    parts = x.unflatten(2, (HEADS, -1)).transpose(1, 2)
    return parts, parts


def places(memory: Compressive, lengths: list[int]) -> tuple[list[int], list[int], int]:
    """Integers as hidden states: those that are kept, those whose slots are, and what the state counts. `max` keeps the
    last of a block."""
    total = sum(lengths)
    numbers = torch.arange(total, dtype=torch.float64)[None, :, None].expand(1, -1, 2)
    state = written(memory, numbers, lengths)
    hidden, slots = (state[name][0, :, 0].int().tolist() for name in ("hidden", "compressed"))
    return hidden, slots, state.length


def test_the_bookkeeping_of_the_specification():
    """SPEC H2: 6 segments of 6 with 6 positions and 4 slots of 3; the horizon is 6 + 3 4 = 18."""
    memory = memory_of(2, length=6, compressed=4, rate=3, function="max")
    hidden, slots, length = places(memory, [6] * 6)
    assert hidden == list(range(30, 36))
    assert slots == [20, 23, 26, 29]
    assert length == 36
    assert length - (slots[0] - 2) == 18


@pytest.mark.parametrize("function", FUNCTIONS[:4])
def test_what_a_slot_is(function):
    """Every slot by its definition, position by position."""
    memory, x, rate = memory_of(length=4, compressed=50, rate=3, function=function), randn(2, 22, DIM), 3
    if hasattr(memory, "taps"):
        nn.init.normal_(memory.taps, generator=torch.Generator().manual_seed(1))
    slots = written(memory, x, [5, 8, 9])["compressed"]
    assert slots.shape[1] == (22 - 4) // 3
    for at in range(slots.shape[1]):
        block = x[:, at * rate : (at + 1) * rate]
        wanted = {"max": block.amax(1), "mean": block.mean(1)}.get(function)
        if wanted is None:
            apart, wanted = (1 if function == "convolution" else 2), torch.zeros(2, DIM, dtype=x.dtype)
            for tap in range(rate):
                place = (at + 1) * rate - 1 - apart * (rate - 1 - tap)
                if place >= 0:
                    wanted = wanted + x[:, place] @ memory.taps[tap]
        assert_close(slots[:, at], wanted, tolerance=1e-12, what=f"slot {at} of {function}")


def test_most_used_are_those_that_later_segments_attended_to():
    """Attention received, by loops over rows, heads and queries, from every segment that found a position there."""
    memory = memory_of(length=9, compressed=50, rate=2, function="most_used", loss="none")
    lengths, x = [3, 5, 3, 4, 4, 8], randn(2, 27, DIM)
    q = k = x.unflatten(2, (HEADS, -1)).transpose(1, 2)
    for row in range(2):
        used, kept, slots, first = [0.0] * 27, [], [], 0
        for length in lengths:
            before = [*slots, *kept]
            for head in range(HEADS):
                for at in range(first, first + length) if before else ():
                    weights = (k[row, head, before] @ q[row, head, at] * (DIM // HEADS) ** -0.5).softmax(0)
                    for place, weight in zip(before, weights.tolist(), strict=True):
                        used[place] += weight
            kept = [*kept, *range(first, first + length)]
            first += length
            leaving = max(len(kept) - 9, 0) // 2 * 2
            old, kept = kept[:leaving], kept[leaving:]
            slots += sorted(sorted(old, key=lambda place: -used[place])[: leaving // 2])
        state = written(memory, x, lengths)
        assert_identical(state["compressed"][row], x[row, slots], what=f"row {row}: slots of {slots}")
        assert_identical(state["hidden"][row], x[row, kept], what=f"row {row}: positions {kept}")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_masked_has_no_part_in_a_slot(function):
    memory, x = memory_of(length=2, compressed=9, rate=3, function=function), randn(2, 14, DIM)
    keep = torch.ones(2, 14, dtype=torch.bool)
    keep[0, 1] = keep[1, 5] = False
    keep[1, 0:3] = False
    lengths = [4, 5, 5]
    one = written(memory, x, lengths, keep)
    other = written(memory, x.masked_fill(~keep[..., None], float("nan")), lengths, keep)
    for name, tensor in one.tensors().items():
        assert_identical(other[name], tensor, what=name)
    assert not one["compressed"].isnan().any()
    if function == "most_used":
        for row in range(2):
            found = [(x[row, keep[row]] == slot).all(1).any().item() for slot in one["compressed"][row]]
            assert found == one["compressed_mask"][row].tolist() == [row == 0, True, True, True]
        return
    assert one["compressed_mask"].tolist() == [[True] * 4, [False, True, True, True]]
    if function == "mean":
        assert_close(one["compressed"][0, 0], x[0, [0, 2]].mean(0), tolerance=1e-12, what="mean of the real ones")
    if function == "max":
        assert_close(one["compressed"][1, 1], x[1, [3, 4]].amax(0), tolerance=1e-12, what="largest of the real ones")


@pytest.mark.parametrize("masked", [[], [4, 5], [0, 5]])
def test_the_losses_by_their_definitions(masked):
    """Of what is masked the second segment keeps 4 and 5, and compresses 0, which is position 6 of the text."""
    x, keep = randn(2, 12, DIM), torch.ones(2, 6, dtype=torch.bool)
    keep[1, masked] = False
    x[1, 6:] = x[1, 6:] * keep[1, :, None]  # as it is kept
    real = torch.ones(2, 6, dtype=torch.bool)
    real[:, 4:] = keep[:, :2]
    for loss in ("attention", "auto_encoding"):
        memory = memory_of(length=3, compressed=4, rate=2, function="convolution", loss=loss)
        for weight in memory.parameters():
            nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))
        layer = AttentionLayer(DIM, "softmax", heads=HEADS, memory=memory, causal=True).double().train()
        state = layer.memory.initial_state(2, dtype=x.dtype)
        state = layer(x[:, :6], memory=state).memory
        got = layer(x[:, 6:], key_mask=keep if masked else None, memory=state).losses[f"memory.{loss}"]
        # 6 = 3 + 2 + 1: the first segment leaves 0 1; 4 + 6 = 3 + 3 2 + 1: the second leaves 2 to 7.
        old, total = x[:, 2:8], 0.0
        new = torch.stack([sum(old[:, 2 * b + t] @ memory.taps[t] for t in range(2)) for b in range(3)], 1)
        for row in range(2):
            squares = 0.0
            if loss == "auto_encoding":
                for at in real[row].nonzero()[:, 0].tolist():
                    again = new[row, at // 2] @ memory.decoder[at % 2]
                    squares = squares + (old[row, at] - again).square().sum()
            else:
                q = layer.projections.queries(x[:, 6:])[row, :, keep[row]]
                for head in range(HEADS):
                    found = []
                    for kept, there in ((old, real[row]), (new, slice(None))):
                        k, v = (part[row, head, there] for part in layer.projections(kept))
                        found.append((q[head] @ k.T * (DIM // HEADS) ** -0.5).softmax(-1) @ v)
                    squares = squares + (found[0] - found[1]).square().sum()
            total = total + squares**0.5 / 2
        assert_close(got, total, tolerance=1e-12, what=loss)


@pytest.mark.parametrize("loss", ["attention", "auto_encoding"])
@pytest.mark.parametrize("function", ["convolution", "dilated_convolution"])
def test_the_loss_trains_the_function_alone_and_the_task_does_not(loss, function):
    config = ModelConfig(
        dim=DIM, heads=HEADS, layers=2, vocab_size=11, max_length=4, position="transformer_xl",
        memory=f"compressive(length=3, compressed=4, rate=2, function={function}, loss={loss})",
    )  # fmt: skip
    model = LanguageModel(config).double().train()
    tokens = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))
    got = model(tokens)
    assert set(got.losses) == {f"memory.{loss}"} == set(model.loss_weights)
    own = {name for name, _ in model.named_parameters() if ".memory." in name}
    assert len(own) == 2 * (1 + (loss == "auto_encoding"))
    got.losses[f"memory.{loss}"].backward(retain_graph=True)
    for name, weight in model.named_parameters():
        assert (weight.grad is not None) is (name in own), name
        assert name not in own or weight.grad.any(), name
    model.zero_grad()
    got.logits.square().sum().backward()
    for name, weight in model.named_parameters():
        assert (weight.grad is None) is (name in own), name


def test_without_slots_it_is_recent():
    shape = {"dim": 16, "layers": 2, "heads": 2, "vocab_size": 20, "max_length": 6, "position": "transformer_xl"}
    tokens = torch.randint(20, (2, 26), generator=torch.Generator().manual_seed(1))
    recent = LanguageModel(ModelConfig(memory="recent(length=5)", **shape)).double().eval()
    without = LanguageModel(ModelConfig(memory="compressive(length=5, compressed=0)", **shape)).double().eval()
    with_slots = LanguageModel(ModelConfig(memory="compressive(length=5, compressed=9, rate=1)", **shape))
    for other in (without, with_slots.double().eval()):
        other.load_state_dict(recent.state_dict(), strict=False)
    with torch.no_grad():
        assert_identical(without(tokens).logits, recent(tokens).logits, what="no slots")
        assert not torch.equal(with_slots(tokens).logits, recent(tokens).logits)
        full = LanguageModel(ModelConfig(**{**shape, "max_length": 64})).double().eval()
        full.load_state_dict(recent.state_dict())
        long = (
            LanguageModel(ModelConfig(memory="compressive(length=2, compressed=99, rate=1)", **shape)).double().eval()
        )
        long.load_state_dict(recent.state_dict(), strict=False)
        assert_close(long(tokens).logits, full(tokens).logits, tolerance=1e-12, what="slots of one position")


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("sizes", [(1, 8, 1, 16), (6, 6, 6, 6, 2), (1,) * 26])
def test_any_split_with_a_state_is_one_call(function, sizes):
    memory = f"compressive(length=4, compressed=3, rate=4, function={function})"
    config = ModelConfig(dim=16, layers=2, heads=2, vocab_size=20, max_length=6, memory=memory, short_convolution=3)
    model = LanguageModel(config).double().eval()
    tokens = torch.randint(20, (2, 26), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(2, 26, dtype=torch.bool)
    keep[0, [3, 9]] = keep[1, 0:7] = False
    for mask in (None, keep):
        with torch.no_grad():
            whole, state, pieces, first = model(tokens, key_mask=mask).logits, model.initial_state(2), [], 0
            for size in sizes:
                cut = slice(first, first + size)
                got = model(tokens[:, cut], key_mask=None if mask is None else mask[:, cut], state=state)
                state, first, _ = state.load(got.state.dump()) if first == 0 else got.state, first + size, None
                pieces.append(got.logits)
        real = slice(None) if mask is None else mask
        assert_close(torch.cat(pieces, 1)[real], whole[real], tolerance=1e-12, what="pieces")


def test_misuse_is_refused():
    heads = Heads(count=2, key_dim=4, causal=True)
    for spec, message in (
        ("compressive(rate=0)", "greater than or equal to 1"),
        ("compressive(function=mode)", "function='mode' is not valid"),
        ("compressive(compresed=3)", "did you mean 'compressed'"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_memory(spec, heads, 8)
    for spec in ("compressive", "compressive(function=most_used, loss=none)", "memorizing"):
        with pytest.raises(UnsupportedError, match=r"compares the layer's queries with keys, and .* query_dim=2"):
            AttentionLayer(8, "additive", heads=2, query_dim=2, memory=spec, causal=True)
    AttentionLayer(8, "additive", heads=2, query_dim=2, memory="compressive(function=mean, loss=none)", causal=True)


def test_padding_that_is_no_number_leaves_loss_and_gradient_finite():
    for function in ("convolution", "most_used"):
        for loss in ("attention", "auto_encoding"):
            memory = memory_of(length=3, compressed=4, rate=2, function=function, loss=loss)
            layer = AttentionLayer(DIM, "softmax", heads=HEADS, memory=memory, causal=True).double().train()
            x, keep = randn(2, 12, DIM), torch.ones(2, 12, dtype=torch.bool)
            keep[0, [2, 9]] = keep[1, :7] = False
            found = []
            for content in (0.0, float("nan")):
                filled = x.masked_fill(~keep[..., None], content)
                state = layer.memory.initial_state(2, dtype=x.dtype)
                state = layer(filled[:, :6], key_mask=keep[:, :6], memory=state).memory
                got = layer(filled[:, 6:], key_mask=keep[:, 6:], memory=state).losses[f"memory.{loss}"]
                layer.zero_grad()
                if got.requires_grad:
                    got.backward()
                own = [weight.grad for weight in memory.parameters()]
                found.append(torch.cat([got.detach().view(1), *(grad.flatten() for grad in own if grad is not None)]))
            assert found[0].isfinite().all()
            assert_identical(found[1], found[0], what=f"{function}, {loss}")
