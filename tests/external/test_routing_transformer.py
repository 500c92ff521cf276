"""Published routing agrees with the published PyTorch port where both define the same thing.

The port takes as many tokens for each centroid, from vectors of unit length; given vectors without mean and of equal
spread, it orders them as we do. It adds 1e-5 to the number of clusters that took a query. Where query and key are one,
it makes keys of unit length, ours have the norm sqrt(d): theirs get queries that are sqrt(d) times as long.
"""

import pytest
import torch
import torch.nn.functional as F

from regard import Heads
from regard.testing import assert_close
from regard_lab.published.routing_published import RoutingPublished

port = pytest.importorskip(
    "routing_transformer.routing_transformer", reason="routing-transformer is not installed; `make external`"
)

pytestmark = pytest.mark.external

HEADS, DIM, LENGTH, CLUSTERS = 2, 8, 24, 3


def vectors(seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return F.layer_norm(torch.randn(2, HEADS, LENGTH, DIM, generator=draw, dtype=torch.float64), (DIM,))


@pytest.mark.parametrize(("share", "causal"), [(True, True), (True, False), (False, False)])
def test_routing_is_theirs(share: bool, causal: bool) -> None:
    theirs = port.KmeansAttention(
        CLUSTERS, LENGTH // CLUSTERS, HEADS, DIM, causal=causal, shared_qk=share, num_mem_kv=0
    ).double()
    heads = Heads(count=HEADS, key_dim=DIM, causal=causal)
    ours = RoutingPublished(heads, num_clusters=CLUSTERS, share=share).double()
    theirs.eval()
    ours.eval()
    theirs.kmeans.means.copy_(ours.routing.centroids)
    theirs.kmeans.initted.fill_(True)
    k, v = vectors(0), vectors(1)
    q = k if share else vectors(2)
    with torch.no_grad():
        expected, _ = theirs(q * DIM**0.5 if share else q, k, v)
        values = ours(q, k, v).values
    assert values.any()
    assert_close(values, expected, tolerance=5e-5, what=f"{share=}, {causal=}")


def test_the_port_leaks() -> None:
    """A last token that is nearest to a centroid changes what an earlier one gets."""
    theirs = port.KmeansAttention(CLUSTERS, LENGTH // CLUSTERS, HEADS, DIM, causal=True, shared_qk=True).double().eval()
    theirs.kmeans.initted.fill_(True)
    x, v = vectors(0), vectors(1)
    other = x.clone()
    other[:, :, -1] = theirs.kmeans.means[:, 0]
    with torch.no_grad():
        before, after = (theirs(y, y, v)[0][:, :, :-1] for y in (x, other))
    assert (before - after).abs().max() > 0.01
