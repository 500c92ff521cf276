"""Sizes that do not fit a sequence: a named error, or the definition; never a crash and never something else."""

import pytest
import torch

from regard import AttentionLayer, Heads, build
from regard.catalog import resolve
from regard.cli.main import main
from regard.core.errors import ConfigError, LimitError, RegardError, UnsupportedError
from regard.specs import parse

LENGTHS = (1, 5, 12, 13)
ABOVE_OR_UNEVEN = (
    ("lsh(num_buckets=64)", (False, True)),
    ("regard_lab.published.lsh_published:LshPublished(num_buckets=4, bucket_size=5)", (False, True)),
    ("lsh(bucket_size=64)", (False, True)),
    ("routing(num_clusters=64)", (False, True)),
    ("regard_lab.published.routing_published:RoutingPublished(num_clusters=5)", (False, True)),
    ("regard_lab.published.routing_published:RoutingPublished(num_clusters=64)", (False, True)),
    ("vector_quantized(num_codes=64, block_size=5)", (False, True)),
    ("nystrom(num_landmarks=64)", (False,)),
    ("nystrom(num_landmarks=5, convolution=33)", (False,)),
    ("lara(num_landmarks=64)", (False,)),
    ("linformer(rank=64)", (False,)),
    ("mixed_chunk(chunk_size=64)", (False, True)),
    ("mixed_chunk(chunk_size=5)", (False, True)),
    ("local(window=64)", (False, True)),
    ("bigbird(block_size=5)", (False, True)),
    ("image_local_1d(block_size=5, memory=7)", (True,)),
    ("strided(stride=64)", (True,)),
    ("longformer(window=64, num_global=64)", (False, True)),
    ("shortlist(num_keys=64)", (False, True)),
)
"""clusters, landmarks, codes, buckets and windows above the length, and blocks that do not divide it; causal or not"""


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", [spec for spec, _ in ABOVE_OR_UNEVEN])
def test_more_than_there_are_tokens_and_pieces_that_do_not_divide_are_the_definition(spec: str, causal: bool) -> None:
    if causal not in dict(ABOVE_OR_UNEVEN)[spec]:
        with pytest.raises(UnsupportedError, match="does not support causal="):
            build(spec, Heads(count=2, key_dim=8, causal=causal, max_length=32))
        return
    heads = Heads(count=2, key_dim=8, causal=causal, max_length=32)
    fast, slow = (build(spec, heads, **options).double().eval() for options in ({}, {"impl": "reference"}))
    slow.load_state_dict(fast.state_dict())
    for length in LENGTHS:
        draw = torch.Generator().manual_seed(length)
        q, k, v = torch.randn(3, 2, 2, length, 8, generator=draw, dtype=torch.float64)
        k = q if fast.info.shares_query_key else k
        inputs = {
            name: torch.randn(2, 2, length, each.width or 8, generator=draw, dtype=torch.float64).clamp(
                each.low, each.high
            )
            for name, each in fast.info.inputs.items()
        }
        given = {"inputs": inputs} if inputs else {}
        wanted = slow(q, k, v, **given).values
        torch.testing.assert_close(fast(q, k, v, **given).values, wanted, rtol=0, atol=1e-10)


REFUSED = {
    "lsh(num_buckets=7)": "num_buckets must be even",
    "lsh(num_buckets=0)": "num_buckets=0",
    "lsh(num_buckets=2.5)": "num_buckets=2.5",
    "lsh(bucket_size=0)": "bucket_size=0",
    "lsh(rounds=0)": "rounds=0",
    "routing(num_clusters=0)": "num_clusters=0",
    "vector_quantized(num_codes=0)": "num_codes=0",
    "vector_quantized(block_size=0)": "block_size=0",
    "nystrom(num_landmarks=0)": "num_landmarks=0",
    "nystrom(num_landmarks=1.5)": "num_landmarks=1.5",
    "lara(num_landmarks=0)": "num_landmarks=0",
    "linformer(rank=0)": "rank=0",
    "mixed_chunk(chunk_size=0)": "chunk_size=0",
    "local(window=-1)": "window=-1",
    "local(window=2.5)": "window=2.5",
    "bigbird(block_size=0)": "block_size=0",
    "blockwise(blocks=0)": "blocks=0",
    "atrous(dilation=0)": "dilation=0",
    "strided(stride=0)": "stride=0",
    "fixed(stride=8, columns=16)": "columns",
    "longformer(num_global=-1)": "num_global=-1",
    "etc(window=-1)": "window=-1",
    "image_local_2d(query_block=(4, 4), width=6)": "width",
    "shortlist(num_keys=0)": "num_keys=0",
    "graph(neighbours='window(2)')": "neighbours must be a list of edges",
    "graph(neighbours='block_model(9, 0, 1, 1)')": "blocks of a pattern must be an integer of at least 1",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_sizes_that_are_none_are_named(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a text, as options from Python, in a layer, and on the command line."""
    heads = Heads(count=2, key_dim=8, causal=spec.startswith(("strided", "fixed", "image")), max_length=32)
    parsed = parse(spec)
    kind = resolve(parsed.name)[0]
    for made in (
        lambda: build(spec, heads),
        lambda: kind(heads, **parsed.options),
        lambda: AttentionLayer(16, spec, heads=2, causal=heads.causal, max_length=32),
    ):
        with pytest.raises(ConfigError, match=REFUSED[spec]):
            made()
    assert main(["bench", spec, "--lengths", "32"]) == 2
    told = capsys.readouterr()
    assert REFUSED[spec] in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize("spec", ["linformer(rank=8)", "lsh(bucket_size=8)", "random_synthesizer"])
def test_longer_than_what_it_was_built_for_is_named(spec: str) -> None:
    mechanism = build(spec, Heads(count=1, key_dim=4, max_length=16))
    q = torch.randn(1, 1, 17, 4)
    with pytest.raises(LimitError, match="built for max_length=16, got 17 positions"):
        mechanism(q, q, q)
    with pytest.raises(ConfigError, match="max_length"):
        build(spec, Heads(count=1, key_dim=4))


@pytest.mark.parametrize("spec", ["linformer", "nystrom", "lara", "etc"])
def test_what_sees_the_whole_sequence_says_why_it_is_not_causal(spec: str) -> None:
    with pytest.raises(
        UnsupportedError, match=rf"{spec} does not support causal=True: .*regard list --supports causal"
    ):
        build(spec, Heads(count=1, key_dim=4, causal=True, max_length=16))
    with pytest.raises(RegardError, match="does not support causal=True"):
        AttentionLayer(16, spec, heads=2, causal=True, max_length=16)


@pytest.mark.parametrize("field", ["count", "key_dim", "value_dim", "query_dim", "kv_count"])
def test_heads_that_no_network_has_are_refused_before_memory_is_taken(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"Heads\.{field} must be at most 1048576, got {1 << 40}"):
        Heads(**{"count": 2, "key_dim": 4, field: 1 << 40})


def test_blocks_that_no_sequence_has_are_refused_before_they_are_listed() -> None:
    with pytest.raises(ConfigError, match=f"blocks={1 << 20} is not valid: .* less than or equal to 65536"):
        build(f"blockwise(blocks={1 << 20})", Heads(count=2, key_dim=8, max_length=32))


@pytest.mark.parametrize(
    ("spec", "heads"),
    [
        (f"shaw(max_distance={1 << 40})", {}),
        (f"shaw(max_distance={1 << 62})", {}),
        ("bilinear", {"key_dim": 1 << 20, "count": 1 << 20}),
    ],
)
def test_weights_that_no_memory_holds_are_named(spec: str, heads: dict[str, int]) -> None:
    with pytest.raises(RegardError, match=r"mechanism \w+: its weights are more than the memory of this machine holds"):
        build(spec, Heads(**{"count": 2, "key_dim": 8, **heads}))
