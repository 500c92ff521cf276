"""What a datastore is worth: looked up once, then mixed with any weight, number of neighbours and temperature."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.attention import generator
from regard.core.errors import ConfigError, DataError, LimitError
from regard.models import LanguageModel
from regard.models.generate import evaluation
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.index import Index
from regard_lab.retrieval.keys import joined, kept_keys
from regard_lab.retrieval.knn_lm import scaled
from regard_lab.retrieval.own import Own, Tally
from regard_lab.retrieval.search import Neighbours
from regard_lab.tasks.base import IGNORE, Examples
from regard_lab.training.batches import collate
from regard_lab.training.evaluation import measured


class Looked(NamedTuple):
    """Every target of some examples: -log p_LM of it, its neighbours, itself, and the document that it is of.

    own: how many of them had own entries, which were left out; None: they were not.
    """

    model: Float[Tensor, "targets"]
    neighbours: Neighbours
    targets: Int[Tensor, "targets"]
    documents: Int[Tensor, "targets"]
    own: Tally | None = None

    def nats(self, *, lam: float, k: int, temperature: float) -> Float[Tensor, "targets"]:
        """-log (lam p_kNN + (1 - lam) p_LM) of every target, with the nearest k of its neighbours, in float64.

        Raises:
            ConfigError: a number out of range. LimitError: k above the neighbours that were looked up.
        """
        self.require(lam=lam, k=k, temperature=temperature)
        return self.model if lam == 0 else self._mixed(self.found(k, temperature), lam)

    def require(self, *, lam: float, k: int, temperature: float) -> None:
        """Refuse numbers out of range; errors as `nats`."""
        if not 0 <= lam <= 1 or k < 1 or not 0 < temperature < math.inf:
            raise ConfigError(f"lam is from 0 to 1, k and temperature more than 0, got {lam}, {k}, {temperature}")
        if k > self.neighbours.ids.shape[1]:
            raise LimitError(f"k={k}, and {self.neighbours.ids.shape[1]} neighbours were looked up")

    def found(self, k: int, temperature: float) -> Float[Tensor, "targets"]:
        """log p_kNN of every target, with the nearest k of its neighbours; NaN where there is none."""
        weights = scaled(self.neighbours.distances[:, :k], temperature).log_softmax(-1)
        other = self.neighbours.values[:, :k] != self.targets[:, None]
        return weights.masked_fill(other & ~weights.isnan(), -torch.inf).logsumexp(1)

    def _mixed(self, found: Tensor, lam: float) -> Tensor:
        mixture = torch.logaddexp(found + math.log(lam), math.log1p(-lam) - self.model) if lam < 1 else found
        return -torch.where(found.isnan(), -self.model, mixture)


def look(
    model: LanguageModel,
    found_in: Datastore | Index,
    examples: Examples,
    *,
    k: int,
    own: bool = False,
    limit: int = 0,
    progress: Callable[[int], object] = lambda targets: None,
) -> Looked:
    """Look up every target of some examples.

    Args:
        model: the decoder that the datastore was made with.
        found_in: what is searched.
        examples: windows of documents.
        k: neighbours, the most that are tried afterwards.
        own: an entry that was made of the very target may be found; otherwise it is left out.
        limit: as many examples, evenly spaced; 0: all.
        progress: called with the number of targets after every example.

    Raises:
        ConfigError: a limit below 0. DataError: no target. CheckpointError, LimitError: as `Datastore.search`.
        UnsupportedError: examples that do not say where they are from, and not `own`.
    """
    if limit < 0:
        raise ConfigError(f"limit must be at least 0 (all), got {limit}")
    nats, found, targets, documents = [], [], [], []
    device, leaving_out = model.table.weight.device, Own(found_in.store)
    with evaluation(model), torch.inference_mode():
        for index in measured(len(examples), limit):
            batch = collate(examples, [index], model.config.vocab_size)
            keep = batch.targets[0] != IGNORE
            with kept_keys(model) as pieces:
                hidden = model.hidden(batch.inputs.to(device), key_mask=batch.key_mask).hidden[0]
            target = batch.targets[0][keep]
            logits = model.logits(hidden[keep.to(device)]).float()
            nats.append(torch.nn.functional.cross_entropy(logits, target.to(device), reduction="none").cpu().double())
            left_out = None if own else leaving_out(examples, batch)
            keys = joined(pieces)[0][keep.to(device)].float()
            found.append(found_in.search(keys, k, own=None if left_out is None else left_out[keep]))
            targets.append(target)
            documents.append(torch.full_like(target, batch.documents[0]))
            progress(sum(map(len, targets)))
    if not sum(map(len, targets)):
        raise DataError("there is no target to look up: the text is empty, or shorter than one window")
    neighbours = Neighbours(*(torch.cat(parts) for parts in zip(*found, strict=True)))
    tally = None if own else leaving_out.tally
    return Looked(torch.cat(nats), neighbours, torch.cat(targets), torch.cat(documents), tally)


class Swept(NamedTuple):
    """One setting, and the nats per token with it."""

    lam: float
    k: int
    temperature: float
    nats: float


def sweep(looked: Looked, *, lams: Sequence[float], ks: Sequence[int], temperatures: Sequence[float]) -> list[Swept]:
    """Every setting, the best first; of equal ones that with the least weight, then the fewest neighbours.

    Choose on validation texts, and test the choice on others.

    Raises:
        ConfigError, LimitError: as `Looked.nats`.
    """
    tried = []
    for k in ks:
        for temperature in temperatures:
            looked.require(lam=0.0, k=k, temperature=temperature)  # before it is computed
            found = looked.found(k, temperature)
            for lam in lams:
                looked.require(lam=lam, k=k, temperature=temperature)
                nats = looked.model if lam == 0 else looked._mixed(found, lam)
                tried.append(Swept(lam, k, temperature, float(nats.mean())))
    return sorted(tried, key=lambda one: (one.nats, one.lam, one.k))


class Interval(NamedTuple):
    """A value, and its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap(
    one: Float[Tensor, "targets"],
    other: Float[Tensor, "targets"],
    documents: Int[Tensor, "targets"],
    *,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Difference of perplexity, e^mean(one) - e^mean(other), with the paired bootstrap over documents.

    Args:
        one, other: nats of the same targets.
        documents: what is resampled, with all of its targets.

    Raises:
        DataError: fewer than two documents.

    Source: Efron & Tibshirani 1993, chapter 8.
    """
    _, unit = documents.unique(return_inverse=True)
    count = int(unit.max()) + 1
    if count < 2:
        raise DataError("a bootstrap over documents needs two of them")
    sums = [torch.zeros(count, dtype=torch.float64).index_add(0, unit, x.double()) for x in (one, other)]
    size = torch.zeros(count, dtype=torch.float64).index_add(0, unit, torch.ones_like(one).double())
    drawn = torch.randint(count, (draws, count), generator=generator(seed, "bootstrap"))
    first, second = (x[drawn].sum(1) / size[drawn].sum(1) for x in sums)
    low, high = (first.exp() - second.exp()).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    value = math.exp(float(one.double().mean())) - math.exp(float(other.double().mean()))
    return Interval(value, low, high)
