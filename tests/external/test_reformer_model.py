"""Whole Reformers of transformers: what our parts hold of them exactly, and what theirs does with a cache.

Local layers are `block(L, 1)`, whatever the length. A layer of hashes is full attention of a shared projection as long
as a text fits into one of its chunks, and there ours is `lsh(num_buckets=1)`. Beyond, theirs lets queries see other
buckets of their chunk, and where chunks begin depends on what comes later: no mechanism here is that.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import UnsupportedError
from regard.integrations import pretrained
from regard.models import LanguageModel, ModelConfig

pytestmark = pytest.mark.external

transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make external`")

LENGTH, VOCABULARY, ROWS, COLUMNS = 32, 40, 4, 8
TINY = {"vocab_size": VOCABULARY, "hidden_size": 16, "attention_head_size": 6, "num_attention_heads": 2}
TINY |= {"feed_forward_size": 24, "is_decoder": True, "local_attn_chunk_length": 4, "num_buckets": 2, "num_hashes": 2}
TINY |= {"axial_pos_shape": [ROWS, COLUMNS], "axial_pos_embds_dim": [6, 10], "max_position_embeddings": LENGTH}
TINY |= {"hash_seed": 0, "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0}
LAYERS = {
    "local": ["local", "local", "local"],
    "hashes in one chunk": ["lsh", "lsh"],
    "both": ["local", "lsh", "local", "lsh"],
}


def network(layers: list[str], chunk: int = LENGTH) -> Any:
    """Every number is random, biases and norms included."""
    torch.manual_seed(0)
    options = {"attn_layers": layers, "num_hidden_layers": len(layers), "lsh_attn_chunk_length": chunk}
    model = transformers.ReformerModelWithLMHead(transformers.ReformerConfig(**{**TINY, **options})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def ours(theirs: Any) -> LanguageModel:
    """The same blocks; the norm of both streams and the output layer behind them have no counterpart here."""
    config, layers = theirs.config, theirs.config.attn_layers
    local, hashed = f"pattern(rule='block({config.local_attn_chunk_length}, 1)')", "lsh(num_buckets=1, rounds=1)"
    made = LanguageModel(
        ModelConfig(
            vocab_size=VOCABULARY,
            dim=16,
            layers=len(layers),
            heads=2,
            head_dim=6,
            attention=tuple(local if kind == "local" else hashed for kind in layers),
            position="learned",
            block="reversible",
            mlp="relu",
            mlp_dim=24,
            mlp_chunks=3,
            norm="pre",
            norm_kind="layer",
            norm_eps=1e-12,
            max_length=LENGTH,
            bias=True,
            projection_bias=False,
        )
    ).eval()
    stored, mine = theirs.state_dict(), made.state_dict()
    row, column = (stored[f"reformer.embeddings.position_embeddings.weights.{at}"] for at in (0, 1))
    copied = {
        "embeddings.table.weight": stored["reformer.embeddings.word_embeddings.weight"],
        "embeddings.position.table": torch.cat([row.expand(-1, COLUMNS, -1), column.expand(ROWS, -1, -1)], -1).flatten(
            0, 1
        ),
    }
    for at, kind in enumerate(layers):
        here, there = f"blocks.{at}", f"reformer.encoder.layers.{at}"
        attention, mlp = f"{there}.attention", f"{there}.feed_forward"
        names = {
            f"{here}.attention_norm": f"{attention}.layer_norm",
            f"{here}.attention.projections.value": f"{attention}.self_attention.value",
            f"{here}.attention.projections.output": f"{attention}.output.dense",
            f"{here}.mlp_norm": f"{mlp}.layer_norm",
            f"{here}.mlp.up": f"{mlp}.dense.dense",
            f"{here}.mlp.down": f"{mlp}.output.dense",
        }
        both = ("query", "key") if kind == "local" else ("query",)
        name = f"{attention}.self_attention.{{}}"
        names |= {
            f"{here}.attention.projections.{one}": name.format(one if kind == "local" else "query_key") for one in both
        }
        for ending in ("weight", "bias"):
            copied |= {f"{a}.{ending}": stored[f"{b}.{ending}"] for a, b in names.items() if f"{b}.{ending}" in stored}
        copied[f"{here}.attention.projections.output.bias"] = torch.zeros(16)  # theirs has none
        if kind == "lsh":  # its keys have length 1, and it does not divide by sqrt(d) once more
            copied[f"{here}.attention.projections.query.weight"] = (
                6**0.5 * stored[f"{attention}.self_attention.query_key.weight"]
            )
    left = {name for name in mine if not name.endswith("rotations")} - copied.keys()
    assert left == {"norm.weight", "norm.bias"}  # of the mean of both streams, which theirs does not make
    made.load_state_dict({**mine, **copied})
    return made


def streams(model: LanguageModel, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """What leaves the last block, both streams side by side, and the state."""
    seen: list[Tensor] = []
    hook = model.blocks[-1].register_forward_hook(lambda _, given, got: seen.append(got.hidden))
    after = model(tokens, state=state).state
    hook.remove()
    return seen[0], after


def logits(theirs: Any, stream: Tensor) -> Tensor:
    """Theirs, from both streams."""
    return theirs.lm_head(theirs.reformer.encoder.layer_norm(stream))


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference, of the largest number."""
    assert a.shape == b.shape
    return ((a - b).abs().max() / b.abs().max()).item()


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(seed))


def cached(theirs: Any, given: Tensor, prompt: int) -> Tensor:
    """Their logits with a cache: a prompt, then token by token."""
    answer = theirs(given[:, :prompt], use_cache=True)
    rows = [answer.logits]
    for at in range(prompt, given.shape[1]):
        answer = theirs(given[:, at : at + 1], use_cache=True, past_buckets_states=answer.past_buckets_states)
        rows.append(answer.logits)
    return torch.cat(rows, 1)


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_blocks_and_axial_positions_are_those_of_transformers_in_pieces_too(name: str) -> None:
    theirs = network(LAYERS[name])
    mine, given = ours(theirs), tokens()
    wanted = theirs(given, use_cache=False).logits
    whole, _ = streams(mine, given)
    assert largest(logits(theirs, whole), wanted) <= 1e-5
    state, parts = mine.initial_state(3), []
    for piece in given.split([1, 6, 12, 1, 12], 1):
        part, state = streams(mine, piece, state)
        parts.append(part)
    assert largest(logits(theirs, torch.cat(parts, 1)), wanted) <= 1e-5


@torch.no_grad()
def test_their_cache_agrees_with_their_whole_pass_within_one_chunk_alone() -> None:
    """Beyond a chunk the cached pass of a layer of hashes is another function of the same tokens, and ours is not."""
    given = tokens()[:1]
    for chunk, least, most in ((LENGTH, 0.0, 1e-5), (8, 0.05, 10.0)):
        theirs = network(LAYERS["both"], chunk)
        wanted = theirs(given, use_cache=False).logits
        for prompt in (8, 16):
            assert least <= largest(cached(theirs, given, prompt)[:, prompt:], wanted[:, prompt:]) <= most
    for spec in ("lsh(num_buckets=4, rounds=2)", "pattern(rule='block(8, 1)')"):
        model = LanguageModel(
            ModelConfig(vocab_size=VOCABULARY, dim=16, layers=2, heads=2, attention=(spec,), block="reversible")
        ).eval()
        whole, state = model(given).logits, model.initial_state(1)
        rows = []
        for token in given.split(1, 1):
            answer = model(token, state=state)
            rows.append(answer.logits)
            state = answer.state
        assert largest(torch.cat(rows, 1), whole) <= 1e-5


@torch.no_grad()
def test_their_hashes_let_later_tokens_reach_earlier_ones_beyond_one_chunk() -> None:
    given, other = tokens()[:1], tokens()[:1]
    other[:, 20:] = (other[:, 20:] + 1) % VOCABULARY
    for chunk, leaks in ((LENGTH, False), (8, True)):
        theirs = network(LAYERS["both"], chunk)
        a, b = (theirs(x, use_cache=False).logits[:, :20] for x in (given, other))
        assert (largest(a, b) > 1e-3) is leaks


def test_a_folder_of_reformer_is_refused_by_name(tmp_path: Any) -> None:
    network(LAYERS["both"]).save_pretrained(tmp_path / "it")
    with pytest.raises(UnsupportedError, match="holds the architecture 'reformer'; regard loads"):
        pretrained.load(tmp_path / "it")
