"""kNN-LM: a decoder whose next token is also looked up among contexts that a datastore remembers."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.core.errors import ConfigError, NumericsError, UnsupportedError
from regard.models import LanguageModel, ModelOutput
from regard.models.decoder import Hidden, ModelState
from regard_lab.retrieval.beside import Beside
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.index import Index
from regard_lab.retrieval.keys import joined, kept_keys, require_keys
from regard_lab.retrieval.own import Own
from regard_lab.retrieval.search import Neighbours
from regard_lab.tasks.base import IGNORE, Examples
from regard_lab.training.batches import Batch


def scaled(distances: Float[Tensor, "queries k"], temperature: float) -> Float[Tensor, "queries k"]:
    """-(d_i - d_1) / T, with the nearest first: 0 for that one, whatever T is."""
    return -(distances - distances[:, :1]) / temperature


def neighbour_log_probabilities(neighbours: Neighbours, temperature: float) -> Float[Tensor, "queries k"]:
    """log p_kNN of the token of each neighbour: p_kNN(y) = sum_i 1[w_i = y] exp(-d_i / T) / sum_i exp(-d_i / T).

    Args:
        neighbours: of each query; T: temperature.

    Source: Khandelwal et al. 2020, Eq. 2 (T = 1); the temperature: Khandelwal et al. 2021, Eq. 3.
    """
    weights = scaled(neighbours.distances, temperature).log_softmax(-1)
    tokens, order = neighbours.values.sort(dim=1, stable=True)
    weights = weights.gather(1, order)
    group = torch.cat([torch.zeros_like(tokens[:, :1]), (tokens[:, 1:] != tokens[:, :-1]).long()], 1).cumsum(1)
    largest = torch.full_like(weights, -torch.inf).scatter_reduce(1, group, weights, "amax").gather(1, group)
    shifted = (weights - largest.clamp_min(torch.finfo(weights.dtype).min)).exp()
    total = torch.zeros_like(weights).scatter_add(1, group, shifted).gather(1, group)
    return torch.empty_like(weights).scatter(1, order, largest + total.log())


def mixed(
    logits: Float[Tensor, "queries vocab"], neighbours: Neighbours, *, lam: float, temperature: float
) -> Float[Tensor, "queries vocab"]:
    """log p with p = lam p_kNN + (1 - lam) p_LM; -inf for a token that has no probability.

    Args:
        logits: of the model; lam = 0 gives them back as they are.
        neighbours: of each query.
        lam: from 0 to 1.
        temperature: of the distances.

    Source: Khandelwal et al. 2020, Eq. 3.
    """
    if lam == 0:
        return logits
    ids = neighbours.values.to(logits.device)
    some = torch.isfinite(neighbours.distances[:, :1])  # a query that found nothing has the model alone
    found = neighbour_log_probabilities(neighbours, temperature).masked_fill(~some, -torch.inf)
    rest = torch.where(some, math.log1p(-lam) if lam < 1 else -math.inf, 0.0).to(logits.device, torch.float32)
    mixture = logits.float().log_softmax(-1) + rest
    both = torch.logaddexp(mixture.gather(1, ids), (found + math.log(lam)).to(mixture))
    return mixture.scatter_(1, ids, both)  # places of one token get the same number


class KnnLm(Beside):
    """p(y | x) = lam p_kNN(y | x) + (1 - lam) p_LM(y | x), without training.

    p_kNN(y | x) is proportional to sum_(i in N) 1[w_i = y] exp(-|f(x) - k_i|^2 / T), with N the k nearest entries of
    the datastore and f(x) the input of the last layer's MLP after its norm. It is called, continued and evaluated as
    the decoder that it is around; what it calls logits is log p.

    Cost: a search for every position, N dim products; the decoder's own computation is as it was.

    Args:
        model: the decoder.
        found_in: what is searched: a `Datastore`, or an `Index` of one.
        lam: weight of the neighbours; 0: the decoder alone, bit for bit.
        k: neighbours; None: 1,024, or as many as there are.
        temperature: T.

    Raises:
        ConfigError: a number out of range. LimitError: k above the entries. CheckpointError: no entries, or another
        width. UnsupportedError: a decoder without keys (`kept_keys`).

    Source: Khandelwal et al. 2020, Eqs. 1-3.
    """

    def __init__(
        self,
        model: LanguageModel,
        found_in: Datastore | Index,
        *,
        lam: float = 0.25,
        k: int | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(model)
        if not 0 <= lam <= 1:
            raise ConfigError(f"lam must be from 0 (the model alone) to 1 (the neighbours alone), got {lam}")
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature must be more than 0 and finite, got {temperature}")
        require_keys(model)
        store = found_in.store
        store.require_origin({}, model.config.dim)
        self.found_in, self.store, self.own = found_in, store, Own(store)
        self.lam, self.temperature = lam, temperature
        self.k = min(1024, max(1, len(store))) if k is None else k
        found_in.search(torch.zeros(0, store.dim), self.k)  # refuses what would be refused at the first token

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
    ) -> Hidden:
        """What `logits` reads: the decoder's hidden states, and behind them the keys; arguments as the decoder's."""
        if self.lam == 0:
            return self.model.hidden(tokens, key_mask=key_mask, positions=positions, state=state)
        with kept_keys(self.model) as pieces:
            output = self.model.hidden(tokens, key_mask=key_mask, positions=positions, state=state)
        return output._replace(hidden=torch.cat([output.hidden, joined(pieces)], -1))

    def logits(
        self, hidden: Float[Tensor, "*rows both"], *, own: Int[Tensor, "queries copies"] | None = None
    ) -> Float[Tensor, "*rows vocab"]:
        """log p of what `hidden` gave.

        Args:
            hidden: any number of positions.
            own: entries that each position must not find; None: it may find all.
        """
        if self.lam == 0:
            return self.model.logits(hidden)
        state, keys = hidden.split(self.model.config.dim, -1)
        neighbours = self.found_in.search(keys.reshape(-1, keys.shape[-1]), self.k, own=own)
        logits = self.model.logits(state)
        log_p = mixed(logits.flatten(0, -2), neighbours, lam=self.lam, temperature=self.temperature)
        return log_p.view_as(logits)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
        own: Int[Tensor, "queries copies"] | None = None,
    ) -> ModelOutput:
        """log p of the next token at every position; arguments as the decoder's, `own` as `logits`.

        Raises:
            UnsupportedError: in training: the datastore is not trained, and the keys that it has would become old.
        """
        if self.training:
            raise UnsupportedError("a datastore is looked things up in after training; call eval() first")
        got = self.hidden(tokens, key_mask=key_mask, positions=positions, state=state)
        return ModelOutput(self.logits(got.hidden, own=own), got.state, got.losses, got.steps)

    def without_own(self, model: nn.Module, batch: Batch, examples: Examples) -> ModelOutput:
        """The output for a batch of examples in which no target finds the entry that was made of itself.

        A `forward` of `regard_lab.training.evaluation.score`, whose model is the decoder.

        Raises:
            NumericsError: the neighbours alone (lam = 1) have no probability for a target.
        """
        return self._scored(batch, self.own(examples, batch))

    def with_own(self, model: nn.Module, batch: Batch, examples: Examples) -> ModelOutput:
        """As `without_own`, where every target may find the entry that was made of itself."""
        return self._scored(batch, None)

    def _scored(self, batch: Batch, own: Tensor | None) -> ModelOutput:
        output = self.eval()(batch.inputs, key_mask=batch.key_mask, own=own)
        if self.lam == 1:
            targets = batch.targets.to(output.logits.device)
            found = output.logits.gather(2, targets.clamp_min(0)[..., None])[..., 0]
            if missed := int(((targets != IGNORE) & found.isneginf()).sum()):
                raise NumericsError(
                    f"lam=1 leaves the model out, and {missed} of {batch.targets.ne(IGNORE).sum()} targets are none of "
                    f"their {self.k} neighbours' tokens: their loss is infinite. Choose a weight below 1"
                )
        return output
