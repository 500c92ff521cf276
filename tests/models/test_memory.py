"""A decoder that reads segments with a memory (Transformer-XL), against the same network with everything in view."""

import re
from copy import deepcopy

import pytest
import torch

from regard import catalog, position
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads
from regard.models import LanguageModel, ModelConfig
from regard.specs import Spec
from regard.testing.compare import assert_close, assert_identical

LENGTH, SEGMENT = 20, 6


def model_of(memory: str | tuple[str, ...], position: str = "transformer_xl", **options) -> LanguageModel:
    shape = {"dim": 16, "layers": 3, "heads": 2, "vocab_size": 20, "max_length": SEGMENT, "seed": 3, **options}
    return LanguageModel(ModelConfig(memory=memory, position=position, **shape)).double().eval()


def like(model: LanguageModel, **changes) -> LanguageModel:
    """The same weights under another configuration."""
    shape = {"memory": "none", "position": model.config.position, **changes}
    other = model_of(**shape, attention=model.config.attention, short_convolution=model.config.short_convolution)
    other.load_state_dict(model.state_dict())
    return other


def tokens_of(batch: int = 2, length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    return torch.randint(20, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", ["transformer_xl", "rotary", "alibi", "none", "sinusoidal"])
@pytest.mark.parametrize("convolution", [0, 3])
def test_a_memory_of_the_whole_past_is_full_context(position, convolution):
    """SPEC H1: with M >= the past, every layer is that of one long sequence."""
    model = model_of("recent(length=64)", position, short_convolution=convolution)
    full, tokens = like(model), tokens_of()
    with torch.no_grad():
        assert_close(model(tokens).logits, full(tokens).logits, tolerance=1e-12, what="logits")


def test_the_first_layer_sees_a_window_of_its_own_for_every_token():
    """M below the past, one layer: token t of a segment sees the t before it and the M before the segment."""
    memory = 4
    model = model_of(f"recent(length={memory})", layers=1)
    full, tokens = like(model, layers=1), tokens_of()
    slots = torch.arange(LENGTH)
    begin = slots // SEGMENT * SEGMENT - memory
    with torch.no_grad():
        layer = full.blocks[0].attention
        x = full.blocks[0].attended(full.embeddings(tokens))
        q, (k, v) = layer.projections.queries(x), layer.projections(x)
        bias = layer.position.bias(q, 0, LENGTH - 1).logits(slots, slots)
        q, k = layer.position.transform(q, k, slots, slots)
        logits = q @ k.mT * layer.attention.factor + bias
        seen = (slots <= slots[:, None]) & (slots >= begin[:, None])
        values = logits.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        hidden = full.embeddings(tokens) + layer.output(values, x)
        hidden = hidden + full.blocks[0].mlp(full.blocks[0].mlp_norm(hidden))
        assert_close(model.hidden(tokens).hidden, full.norm(hidden), tolerance=1e-10, what="windows of every token")


@pytest.mark.parametrize("memory", ["recent(length=4)", "recent(length=64)"])
@pytest.mark.parametrize("split", [(1, 8, 1, 10), (6, 6, 6, 2), (20,), (1,) * 20])
def test_any_split_with_a_state_is_one_call(memory, split):
    model, tokens = model_of(memory, short_convolution=3), tokens_of()
    with torch.no_grad():
        whole, state, pieces = model(tokens).logits, model.initial_state(2), []
        for piece in tokens.split(split, 1):
            got = model(piece, state=state)
            state, _ = got.state, pieces.append(got.logits)
    assert_close(torch.cat(pieces, 1), whole, tolerance=1e-12, what="pieces")
    assert (state.length, state.running) == (LENGTH, LENGTH % SEGMENT)


def test_segments_of_ones_own_length_carry_the_memories_alone():
    model, tokens = model_of("recent(length=64)"), tokens_of()
    full = like(model)
    with torch.no_grad():
        state, pieces = model.initial_state(2, segments=True), []
        for piece in tokens.split([3, 5, 2, 6, 4], 1):
            got = model(piece, state=state)
            state, _ = got.state, pieces.append(got.logits)
        assert not state.streaming
        assert_close(torch.cat(pieces, 1), full(tokens).logits, tolerance=1e-12, what="segments")


def test_the_mask_of_every_segment_is_its_own():
    """Holes in every segment, each time elsewhere: what is real sees what it sees in full context."""
    model, tokens = model_of("recent(length=64)", position="rotary", short_convolution=3), tokens_of()
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, [1, 8, 9, 16, 19]] = keep[1, [7, 10, 12]] = False
    with torch.no_grad():
        wanted = like(model)(tokens, key_mask=keep).logits
        assert_close(model(tokens, key_mask=keep).logits[keep], wanted[keep], tolerance=1e-12, what="one call")
        state, pieces = model.initial_state(2), []
        for piece, mask in zip(tokens.split([4, 9, 7], 1), keep.split([4, 9, 7], 1), strict=True):
            got = model(piece, key_mask=mask, state=state)
            state, _ = got.state, pieces.append(got.logits)
        assert_close(torch.cat(pieces, 1)[keep], wanted[keep], tolerance=1e-12, what="pieces with a state")


def test_a_loss_is_the_mean_over_the_segments():
    """Segment by segment by hand, in a copy: training moves the codebooks."""
    codes = ("vector_quantized(num_codes=5, block_size=2)",)
    model, tokens = model_of("recent(length=4)", position="none", attention=codes).train(), tokens_of(length=15)
    copy = deepcopy(model)
    losses = model(tokens).losses
    state, each = copy.initial_state(2, segments=True), []
    for piece in tokens.split(SEGMENT, 1):
        got = copy(piece, state=state)
        state, _ = got.state, each.append(got.losses)
    assert len(each) == 3
    assert losses.keys() == set(model.loss_weights) == {"commitment"}
    for name, loss in losses.items():
        parts = torch.stack([part[name] for part in each])
        assert parts.unique().numel() == 3
        assert_close(loss, parts.sum() / 3, tolerance=1e-12, what=name)


def test_misuse_is_refused():
    for spec, message in (("recnt", "did you mean 'recent'"), ("recent(length=0)", "greater than or equal to 1")):
        with pytest.raises(ConfigError, match=message):
            model_of(spec)
    plain = model_of("none", position="rotary")
    with pytest.raises(UnsupportedError, match="segments are for a model with a memory"):
        plain.initial_state(2, segments=True)
    model, tokens = model_of("recent", position="rotary"), tokens_of()
    with pytest.raises(UnsupportedError, match="counts slots"):
        model(tokens, positions=torch.arange(LENGTH))
    leaking = "regard_lab.published.lsh_published:LshPublished(num_buckets=4)"
    with pytest.raises(UnsupportedError, match="does not support a memory"):
        model_of("recent", position="none", attention=(leaking,))


def stated_options(name: str) -> list[str]:
    """Every specification of a mechanism that its own samples give."""
    return [str(Spec(name, dict(options))) for options in catalog.resolve(name)[0].samples]


def reads_beyond(model: LanguageModel) -> bool:
    """Whether three segments go through, at once and token by token."""
    tokens = tokens_of(length=2 * SEGMENT + 3)
    with torch.no_grad():
        model(tokens)
        state = model.initial_state(2) if model.streams else None
        for token in tokens.split(1, 1) if state is not None else ():
            state = model(token, state=state).state
    return model.limit is None


@pytest.mark.parametrize("name", position.names())
def test_a_scheme_with_a_table_takes_no_memory(name):
    """Refused when built, not where the table ends; every other scheme reads any number of segments."""
    if position.position_class(name).sized:
        with pytest.raises(
            ConfigError, match=rf"recent.* max_length=6 positions, and position {name} is built for that many"
        ):
            model_of("recent(length=8)", position=name)
        assert model_of("none", position=name).limit == SEGMENT
    else:
        assert reads_beyond(model_of("recent(length=8)", position=name))


@pytest.mark.parametrize("spec", [spec for name in catalog.names() for spec in stated_options(name)])
def test_a_mechanism_with_a_size_takes_no_memory(spec):
    """As schemes: lsh by the size of its buckets, bigbird, blockwise and the synthesizer have a size."""
    shape = {"position": "none", "layers": 1, "attention": (spec,)}
    heads = Heads(count=2, key_dim=8, causal=True, max_length=SEGMENT)
    try:
        able = catalog.build(spec, heads).info.supports.prefix
    except UnsupportedError:
        able = False
    if not able:
        with pytest.raises(UnsupportedError):
            model_of("recent(length=8)", **shape)
    elif model_of("none", **shape).limit == SEGMENT:
        with pytest.raises(ConfigError, match=rf"attention {re.escape(spec)} is built for that many and no more"):
            model_of("recent(length=8)", **shape)
    else:
        assert reads_beyond(model_of("recent(length=8)", **shape))


@pytest.mark.parametrize(
    "kind", ["recent(length=8)", "compressive(length=4, compressed=4, rate=2)", "memorizing(top=4)"]
)
def test_a_batch_of_nothing(kind):
    options = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 50, "max_length": 8}
    model = LanguageModel(ModelConfig(**options, memory=kind)).train()
    answer = model(torch.zeros(0, 24, dtype=torch.long))
    assert answer.logits.shape == (0, 24, 50)
    assert all(loss.item() == 0 for loss in answer.losses.values())


@pytest.mark.parametrize("memory", ["recent(length=9)", "compressive(length=5, compressed=3, rate=2)"])
@pytest.mark.parametrize("attention", ["softmax", "linear", "additive", "shaw", "vector_quantized(num_codes=5)"])
def test_a_row_that_is_emptied_reads_as_a_new_text(attention, memory):
    """Also where scores of rotated queries and keys are none of distances alone."""
    model, tokens = model_of(memory, "rotary", attention=(attention,)), tokens_of(3, 40)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)))
        state = model(tokens[:, : 3 * SEGMENT], state=model.initial_state(3, dtype=torch.float64, segments=True)).state
        rest = tokens[:, 3 * SEGMENT :]
        emptied = model.forget(state, torch.tensor([True, False, True]))
        whole = model(rest, state=emptied).logits
        assert_close(whole[[0, 2]], model(rest[[0, 2]]).logits, tolerance=1e-12, what="emptied")
        assert_close(whole[1], model(rest, state=state).logits[1], tolerance=1e-12, what="kept")


@pytest.mark.parametrize("width", [2, 4])
def test_a_row_that_is_emptied_has_no_tail_of_the_convolution(width):
    """The first tokens of the new text would be mixed with the last ones of the old."""
    model, tokens = model_of("recent(length=9)", short_convolution=width), tokens_of(2, 3 * SEGMENT)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)))
        state = model(tokens[:, : 2 * SEGMENT], state=model.initial_state(2, dtype=torch.float64, segments=True)).state
        rest = tokens[:, 2 * SEGMENT :]
        found = model(rest, state=model.forget(state, torch.tensor([True, False]))).logits
        assert_close(found[:1], model(rest[:1]).logits, tolerance=1e-12, what="emptied")
        assert_close(found[1], model(rest, state=state).logits[1], tolerance=1e-12, what="kept")


MIXED = {
    "none": ("none", "recent(length=7)", "recent(length=3)"),
    "compressive": ("compressive(length=4, compressed=3, rate=2)", "none", "memorizing(pairs=9, top=2, recent=2)"),
}


@pytest.mark.parametrize("memory", MIXED)
def test_a_state_of_other_memories_in_each_layer_is_loaded_again(memory):
    """Of a running segment, whose mechanisms have other leading slots: what was dumped goes on to the same bits."""
    model, tokens = model_of(MIXED[memory]), tokens_of(2, 24)
    with torch.no_grad():
        state = model(tokens[:, :15], state=model.initial_state(2, dtype=torch.float64)).state
        again = model.initial_state(2, dtype=torch.float64).load(state.dump())
        assert_identical(
            model(tokens[:, 15:], state=again).logits, model(tokens[:, 15:], state=state).logits, what="loaded"
        )
