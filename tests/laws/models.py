"""Laws of blocks, of the encoder-decoder, and of the targets of language models."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.layer import AttentionLayer
from regard.models.blocks import Block
from regard.models.blocks.gated_unit import GatedUnit
from regard.models.blocks.parallel import Parallel
from regard.models.blocks.residual import Residual
from regard.models.blocks.reversible import Reversible
from regard.models.config import ModelConfig
from regard.models.encoder_decoder import CrossBlock, EncoderDecoder
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import here, randn
from regard.testing.registry import check
from regard.text.tokenizer import ByteTokenizer
from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.text import Windows
from regard_lab.tasks.token_files import Tokens

DIM = 16


def _moved(module: Any) -> Any:
    """In float64, in evaluation, with weights off their initial values: a norm's gain is not 1."""
    module.to(here())
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return module.double().eval()


def _hidden(layer: AttentionLayer, *source: Tensor) -> Callable[[Tensor], Tensor]:
    """The layer as a function of hidden states."""
    return lambda x: layer(x, *source).hidden


def _both(block: Any) -> Callable[[Tensor], Tensor]:
    """Attention and MLP of the same hidden states."""
    return lambda x: block.attention(x).hidden + block.mlp(x)


def _sublayer(x: Tensor, branch: Any, norm: Any, place: str) -> Tensor:
    """Vaswani et al. 2017, section 5.4: norm(x + f(x)); Radford et al. 2019, section 2.3: x + f(norm(x))."""
    return norm(x + branch(x)) if place == "post" else x + branch(norm(x))


@check(kind=AttentionLayer)
def global_rows_have_their_own_projections(part: type[AttentionLayer]) -> None:
    """Rows of global tokens are those of a dense layer with their projections, all others of one with the ordinary."""
    layer = _moved(part(DIM, "longformer(window=1, num_global=2)", heads=2, causal=False, projections="global"))
    x, slots = randn(2, 7, DIM, seed="hidden", dtype=torch.float64), torch.arange(7, device=here())
    near, spread = (slots[:, None] - slots).abs() <= 1, slots < 2
    seen = near | spread[:, None] | spread
    with torch.no_grad():
        dense = []
        for projections in (layer.projections, layer.projections.global_rows):
            q, k, v = (
                each(x).unflatten(-1, (2, -1)).transpose(1, 2)
                for each in (projections.query, projections.key, projections.value)
            )
            logits = (q @ k.mT / (DIM // 2) ** 0.5).masked_fill(~seen, float("-inf"))
            dense.append((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        wanted = layer.projections.output(torch.where(spread[:, None], dense[1], dense[0]))
        assert_close(layer(x).hidden, wanted, tolerance=1e-10, what="two global tokens")


@check(kind=Residual)
def residual_once(part: type[Residual]) -> None:
    """A block is two sublayers, each with one residual connection and one norm in its place."""
    for place in ("pre", "post"):
        config = ModelConfig(dim=DIM, heads=2, norm=place, bias=True)
        block = _moved(part(config, AttentionLayer(DIM, "softmax", heads=2, bias=True, causal=True), seed=0))
        x = randn(2, 7, DIM, seed="hidden", dtype=torch.float64)
        with torch.no_grad():
            wanted = _sublayer(x, _hidden(block.attention), block.attention_norm, place)
            wanted = _sublayer(wanted, block.mlp, block.mlp_norm, place)
            assert_close(block(x).hidden, wanted, tolerance=1e-12, what=f"{place}-norm")


@check(kind=Parallel)
def branches_side_by_side(part: type[Parallel]) -> None:
    """Attention and MLP read one normalised input; their sum has one residual connection, and post-norm one norm."""
    for place in ("pre", "post"):
        config = ModelConfig(dim=DIM, heads=2, norm=place, bias=True)
        block = _moved(part(config, AttentionLayer(DIM, "softmax", heads=2, bias=True, causal=True), seed=0))
        x = randn(2, 7, DIM, seed="hidden", dtype=torch.float64)
        with torch.no_grad():
            wanted = _sublayer(x, _both(block), block.attention_norm, place)
            assert_close(block(x).hidden, wanted, tolerance=1e-12, what=f"{place}-norm")


@check(kind=GatedUnit)
def gated_branch_once(part: type[GatedUnit]) -> None:
    """One branch, with one residual connection and one norm, gated by its own input: x + (silu(x' W_u) * A V) W_o."""
    for place in part.places:
        config = ModelConfig(dim=DIM, heads=2, norm=place, mlp="none", bias=True)
        value_dim, kind = part.value_dim(config), part.projections or ""
        layer = AttentionLayer(DIM, "softmax", heads=2, value_dim=value_dim, projections=kind, bias=True, causal=True)
        block = _moved(part(config, layer, seed=0))
        x = randn(2, 7, DIM, seed="hidden", dtype=torch.float64)
        with torch.no_grad():
            inner = block.attention_norm(x) if place == "pre" else x
            gate = torch.nn.functional.silu(layer.projections.gate(inner))  # pyright: ignore[reportCallIssue]
            averages = layer.values(inner).values.transpose(1, 2).flatten(2)
            wanted = x + layer.projections.output(gate * averages)
            wanted = wanted if place == "pre" else block.attention_norm(wanted)
            assert_close(block(x).hidden, wanted, tolerance=1e-12, what=f"{place}-norm")


@check(kind=Reversible)
def streams_by_turns(part: type[Reversible]) -> None:
    """Attention reads the second stream and is added to the first, which the MLP then reads for the second."""
    block = _moved(part(ModelConfig(dim=DIM, heads=2), AttentionLayer(DIM, "softmax", heads=2, causal=True), seed=0))
    first, second = (randn(2, 7, DIM, seed=name, dtype=torch.float64) for name in ("first", "second"))
    with torch.no_grad():
        wanted = first + block.attention(block.attention_norm(second)).hidden
        wanted = torch.cat([wanted, second + block.mlp(block.mlp_norm(wanted))], -1)
        assert_close(block(torch.cat([first, second], -1)).hidden, wanted, tolerance=1e-12, what="streams")


@check(kind=Reversible)
def undone_gradients(part: type[Reversible]) -> None:
    """A stack that computes its activations again has the gradients of one that keeps them."""
    config = ModelConfig(dim=DIM, heads=2, layers=3)
    stack = [
        _moved(part(config, AttentionLayer(DIM, "softmax", heads=2, seed=n, causal=True), seed=n)) for n in range(3)
    ]
    weights = [weight for block in stack for weight in block.parameters()]
    stream = randn(2, 7, 2 * DIM, seed="stream", dtype=torch.float64).requires_grad_()
    calls: list[tuple[Block, dict[str, Any]]] = [(block, {}) for block in stack]
    slope = randn(2, 7, 2 * DIM, seed="slope", dtype=torch.float64)
    kept = stream
    for block in stack:
        kept = block(kept).hidden
    wanted = torch.autograd.grad(kept, [stream, *weights], slope)
    got = torch.autograd.grad(part.stack(calls, stream)[0], [stream, *weights], slope)
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other, tolerance=1e-9, what=f"a gradient {tuple(other.shape)}")


@check(kind=Block)
def skipped_block_remembers(part: type[Block]) -> None:
    """Hidden states that skip a block leave the state that a whole call leaves: same keys, places and mask."""
    x, keep = randn(2, 5, DIM, seed="hidden", dtype=torch.float64), torch.ones(2, 5, dtype=torch.bool, device=here())
    keep[0, 3] = keep[1, 0] = False
    places = torch.tensor([[0, 2, 3, 7, 8], [4, 5, 9, 1, 6]], device=here())
    x = part.enter(x)
    for place in part.places:
        layer = AttentionLayer(DIM, "softmax", heads=2, position="rotary", causal=True)
        config = ModelConfig(dim=DIM, heads=2, norm=place, mlp="gelu" if part.has_mlp else "none")
        block = _moved(part(config, layer, seed=0))
        with torch.no_grad():
            given = {"key_mask": keep, "positions": places, "state": layer.initial_state(2, dtype=torch.float64)}
            wanted, got = block(x, **given).state.tensors(), block.remember(x, **given).tensors()
        require(got.keys() == wanted.keys(), f"{place}-norm: remembers {sorted(got)}, a call {sorted(wanted)}")
        for name, tensor in wanted.items():
            assert_close(got[name], tensor, tolerance=1e-12, what=f"{place}-norm, {name}")


@check(kind=CrossBlock)
def residual_of_each_attention(part: type[CrossBlock]) -> None:
    """A decoder's block is three sublayers, to itself, to the source, and an MLP, each with its residual and norm."""
    for place in ("pre", "post"):
        config = EncoderDecoderConfig(dim=DIM, heads=2, norm=place, bias=True)
        self_attention, cross = (
            AttentionLayer(DIM, "softmax", heads=2, bias=True, context_dim=width) for width in (None, DIM)
        )
        block = _moved(part(config, self_attention, cross, seed=0))
        x, source = (randn(2, n, DIM, seed=f"{n}", dtype=torch.float64) for n in (7, 5))
        with torch.no_grad():
            wanted = _sublayer(x, _hidden(block.attention), block.attention_norm, place)
            wanted = _sublayer(wanted, _hidden(block.cross, source), block.cross_norm, place)
            wanted = _sublayer(wanted, block.mlp, block.mlp_norm, place)
            assert_close(block(x, source).hidden, wanted, tolerance=1e-12, what=f"{place}-norm")


@check(kind=EncoderDecoder)
def decoder_reads_the_past(part: type[EncoderDecoder]) -> None:
    """To predict a token the decoder reads the start and the tokens before it, and neither it nor later ones."""
    model = part(EncoderDecoderConfig(dim=DIM, heads=2, vocab_size=20, start_token=3)).eval().to(here())
    targets = torch.tensor([[7, 9, 8, 6, 5], [4, 5, 6, IGNORE, IGNORE]], device=here())
    wanted = torch.tensor([[3, 7, 9, 8, 6], [3, 4, 5, 6, 3]], device=here())
    assert_identical(model.shift(targets), wanted, what="what the decoder reads")
    source = torch.tensor([[1, 2, 3]], device=here())
    with torch.no_grad():
        first = model(source, model.shift(targets[:1])).logits
        for at in range(5):
            other = targets[:1].clone()
            other[0, at:] = 11
            second = model(source, model.shift(other)).logits
            assert_identical(second[:, : at + 1], first[:, : at + 1], what=f"tokens {at} and later replaced")
            if at < 4:
                moved = (second[:, at + 1 :] - first[:, at + 1 :]).abs().max().item()
                require(moved > 1e-6, f"token {at} is not read by those after it")


@check(kind=Windows)
def targets_are_next(part: type[Windows]) -> None:
    """A language model's target is the next token: each of a document is predicted once, from those before it."""
    tokenizer = ByteTokenizer()
    end = tokenizer.separator
    documents = [[end, *text, end] for text in (b"regard", b"to attend to", b"q")]
    ids = np.array([token for document in documents for token in document], np.uint16)
    starts = np.cumsum([0, *(len(document) for document in documents)])
    for length in (1, 4, 50):
        windows = part(Tokens(ids, starts), tokenizer, length)
        read: list[list[int]] = [[] for _ in documents]
        for index in range(len(windows)):
            example = windows[index]
            counted = example.targets != IGNORE
            count = int(counted.sum())
            require(count > 0 and bool(counted[:count].all()), f"window {index}: targets {example.targets.tolist()}")
            inputs, targets = example.inputs[:count].tolist(), example.targets[:count].tolist()
            require(inputs[1:] == targets[:-1], f"window {index}: inputs {inputs} do not shift into targets {targets}")
            past = read[example.document] or documents[example.document][:1]
            require(inputs[0] == past[-1], f"window {index} begins with {inputs[0]}, after {past[-1]}")
            read[example.document] = [*past, *targets]
        require(read == documents, f"length {length}: predicted {read}, the documents are {documents}")
