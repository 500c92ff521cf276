"""Errata of hashing, low rank, synthesised weights and memory, entered into `errata`'s page."""

import torch
from errata import Row, draw, erratum
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import AttentionLayer, Heads
from regard.attention.lowrank.linformer import Linformer
from regard.attention.routed.lsh import Lsh
from regard.attention.synthesized.dense_synthesizer import DenseSynthesizer
from regard.memory import MemoryState
from regard.position import build_position


@erratum(
    "Locality-sensitive hashing of what is near, twice",
    "p in Ball(q, r): Pr[h(p) = h(q)] >= alpha; p in Ball(q, R): Pr[h(p) = h(q)] <= beta; with r < R and alpha < beta",
    "the second for p outside of Ball(q, R), and alpha > beta; of what lies between r and R nothing is said",
)
def twice_near() -> list[Row]:
    """Literally nothing is asked of points that are far, so that one bucket for all of them is a fine hash (alpha 1/2,
    beta 1). As it is meant (2/3 and 1/3) it is none, and random directions are one: they collide by the angle.
    """
    angles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64) * torch.pi
    points = torch.stack([angles.cos(), angles.sin()], -1)[None, None]
    center = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    found = []
    for count in (1, 2):
        mechanism = Lsh(Heads(count=1, key_dim=2), num_buckets=count, rounds=4096, share=False).double()
        chosen = mechanism.decisions(center, points)
        found.append((chosen.queries == chosen.keys).double().mean(-1)[0, 0].tolist())
    names = "one bucket for all", "2 buckets by the sign of a random direction"
    rows = [
        Row(
            f"{name}: locality-sensitive",
            "yes" if 1 / 2 <= near <= 1 and between <= 1 else "no",
            "yes" if near >= 2 / 3 and far <= 1 / 3 else "no",
        )
        for name, (near, between, far) in zip(names, found, strict=True)
    ]
    shares = ", ".join(f"{share:.2f}" for share in found[1])
    return [*rows, Row("its collisions at angles of 0.1, 0.5 and 0.9 pi, of 1", "", shares)]


@erratum(
    "All pairs in O(N)",
    "comparing every query with every key costs at most O(N)",
    "O(N) for one query, O(N^2) for N of them: what hashing is to avoid",
)
def all_pairs() -> list[Row]:
    """Operations of the products, counted, at 512 and 256 tokens."""
    counts = []
    for queries in (512, 256, 1, 1):
        keys = 256 if len(counts) % 2 else 512
        with FlopCounterMode(display=False) as counter:
            _ = draw(queries, 8) @ draw(keys, 8).mT
        counts.append(counter.get_total_flops())
    return [
        Row("operations at twice the length, over those before: every query", "2", counts[0] / counts[1]),
        Row("... one query", "2", counts[2] / counts[3]),
    ]


@erratum(
    "Reformer hashes queries and keys",
    "queries and keys are hashed, and a query attends to the keys of its bucket",
    "one projection serves as both, k_j = q_j / |q_j|; a token does not see itself unless it is alone",
)
def hashed_apart() -> list[Row]:
    """Hashed apart, a query may meet no key, and there is nothing to give it. Every shared bucket holds its query."""
    q, k = draw(2, 1, 1, 64, 8)
    heads, lonely, own = Heads(count=1, key_dim=8), [], []
    for share in (False, True):
        mechanism = regard.build("lsh", heads, num_buckets=32, rounds=1, share=share).double()
        seen = regard.weights(mechanism, q, q if share else k)[0, 0] > 0
        lonely.append(str(int((~seen.any(-1)).sum())))
        own.append(str(int((seen.diagonal() & (seen.sum(-1) > 1)).sum())))
    return [
        Row("queries of 64 that meet no key", *lonely),
        Row("queries that see their own key and another", *own),
    ]


@erratum(
    "Linformer's projections, lying on their side",
    "softmax(Q (E K)^T / sqrt(d)) (F V) with E and F in R^(L x k), and a matrix of weights of k x d",
    "E and F are k x L, and the matrix of weights is L x k",
)
def lying_on_their_side() -> list[Row]:
    """L = 12 positions of width 8, k = 4 mixtures of them."""
    q, k, v = draw(3, 1, 1, 12, 8)
    mechanism = Linformer(Heads(count=1, key_dim=8, max_length=12), rank=4).double()
    e, f = (x.detach() for x in mechanism.mixtures.matrices(12))
    try:
        literal = str(tuple((e.mT @ k[0]).shape[1:]))
    except RuntimeError:
        literal = "shapes do not fit"
    weights = (q[0] @ (e @ k[0]).mT / 8**0.5).softmax(-1)
    with torch.no_grad():
        off = (weights @ (f @ v[0]) - mechanism(q, k, v).values[0]).abs().max().item()
    return [
        Row("shape of E K", literal, str(tuple((e @ k[0]).shape[1:]))),
        Row("shape of the weights", "(4, 8)", str(tuple(weights.shape[1:]))),
        Row("largest difference from `linformer`", "", off),
    ]


@erratum(
    "An affine Synthesizer",
    "the Dense Synthesizer replaces q . k by an affine map of the token, B_i = W x_i + b",
    "a network of two layers, B_i = W2 relu(W1 x_i + b1) + b2, with a row of W2 for each of max_length slots",
)
def affine_rows() -> list[Row]:
    """An affine map writes rows of logits of no more than d + 1 dimensions, however wide its two matrices are."""
    mechanism = DenseSynthesizer(Heads(count=1, key_dim=8, max_length=64), hidden=64).double()
    x = draw(1, 1, 64, 8)
    with torch.no_grad():
        literal = x[0, 0] @ mechanism.first[0].mT @ mechanism.second[0].mT + mechanism.second_bias[0]
        logarithms = regard.weights(mechanism, x, x)[0, 0].log()
    ranks = (str(int(torch.linalg.matrix_rank(b - b[:, :1]))) for b in (literal, logarithms))
    longer = draw(1, 1, 65, 8)
    try:
        beyond = str(tuple(mechanism(longer, longer, longer).values.shape))
    except regard.LimitError:
        beyond = "refused"
    return [
        Row("rank of the logits of 64 tokens of width 8", *ranks),
        Row("65 tokens, max_length=64", "", beyond),
    ]


@erratum(
    "Rotary embeddings in d / 2 dimensions",
    "the rotation expands to a space of d / 2 dimensions",
    "it splits the d channels into d / 2 planes, each of which turns by its own angle",
)
def turning_planes() -> list[Row]:
    """Nothing is added or lost: every plane keeps its length. Half of the channels alone would not hold the key."""
    k, slots = draw(1, 1, 9, 8), torch.arange(9)
    scheme = build_position("rotary(layout=interleaved)", Heads(count=1, key_dim=8), 8)
    turned = scheme.transform(k, k, slots, slots)[1]
    lengths = (turned.unflatten(-1, (4, 2)).norm(dim=-1) / k.unflatten(-1, (4, 2)).norm(dim=-1) - 1).abs().max()
    half = (turned[..., :4].norm(dim=-1) / k.norm(dim=-1) - 1).abs().max()
    return [
        Row("channels of a rotated key of 8", "4", str(turned.shape[-1])),
        Row("largest change of a length, of the key or of a plane", half.item(), lengths.item()),
    ]


@erratum(
    "Transformer-XL's memory of the same layer",
    "layer n attends to the hidden states of the same layer for the previous segment, h_tau^(n)",
    "h_tau^(n-1), as the formula has it: what entered layer n, from which its keys and values were made",
)
def same_layer() -> list[Row]:
    """A memory that holds all of the past gives what the whole sequence gives, in every layer. One of the layer's own
    outputs makes keys of what has already been averaged.
    """
    layer = AttentionLayer(16, "softmax", heads=2, causal=True, memory="recent(length=8)").double().eval()
    x = draw(1, 16, 16)
    assert layer.memory is not None
    empty = layer.memory.initial_state(1, dtype=torch.float64)
    assert isinstance(empty, MemoryState)
    with torch.no_grad():
        whole = layer(x).hidden[:, 8:]
        first = layer(x[:, :8], memory=empty)
        ours = layer(x[:, 8:], memory=first.memory).hidden
        literal = layer(torch.cat([first.hidden, x[:, 8:]], 1)).hidden[:, 8:]
    off = ((y - whole).abs().max().item() for y in (literal, ours))
    return [Row("largest difference of the second segment from the whole sequence", *off)]
