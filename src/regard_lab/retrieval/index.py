"""FAISS indices of a datastore: candidates from FAISS, distances from the stored keys."""

import json
from pathlib import Path
from shlex import quote
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core import approximate
from regard.core.errors import CheckpointError, ConfigError, ResourceError, nearest
from regard.files.checksums import Entry, opened, sealed
from regard.files.folders import save_file
from regard.files.reading import content
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.manifest import IndexKind
from regard_lab.retrieval.search import Neighbours, ranked, require_query

_LINKS = 32
"""of an entry of hnsw, on each layer but the lowest"""
_PER_CENTRE = 39
"""training keys for a centre of ivf, the fewest that FAISS takes without a warning"""
_ADDED = 1 << 16


class Index:
    """Finds nearly nearest entries of a datastore without comparing all of them.

    FAISS names candidates; their distances are computed anew from the stored keys, so that p_kNN is that of the
    neighbours found, whatever the index rounds. An own entry is left out of the candidates, of which so many more are
    asked for. FAISS stands where Khandelwal et al. 2020 and Yogatama et al. 2021 have FAISS and ScaNN.

    Args:
        store: the datastore, as it is now; entries that are added later are not found, and `load` refuses.
        kind: flat, ivf or hnsw.
        centres: of ivf; None: the root of the entries, as many as 39 training keys each allow.
        probes: centres of ivf that a query looks into; of hnsw: the length of its list, at least k. None: 32 or 128.
        seed: of the training sample.

    Raises:
        UnsupportedError: FAISS is not installed. CheckpointError: the datastore is empty. ConfigError: a wrong number.

    Example:
        >>> Index(Datastore.open("store"), "ivf", probes=64)  # doctest: +SKIP
    """

    def __init__(
        self,
        store: Datastore,
        kind: IndexKind,
        *,
        centres: int | None = None,
        probes: int | None = None,
        seed: int = 0,
    ) -> None:
        library = faiss()
        _require_options(kind, centres, probes)
        if not len(store):
            raise CheckpointError(f"{store.folder} is empty, so there is nothing to index; add documents to it")
        self.store, self.kind = store, kind
        self._pieces = store.pieces()
        if kind == "flat":
            self._index: Any = library.IndexFlatL2(store.dim)
        elif kind == "hnsw":
            self._index = library.IndexHNSWFlat(store.dim, _LINKS)
        else:
            most = max(1, len(store) // _PER_CENTRE)
            count = min(most, round(len(store) ** 0.5)) if centres is None else centres
            if count > len(store):
                raise ConfigError(f"{count} centres, and the datastore has {len(store)} entries; choose fewer")
            half = library.ScalarQuantizer.QT_fp16
            self._coarse = library.IndexFlatL2(store.dim)
            self._index = library.IndexIVFScalarQuantizer(
                self._coarse, store.dim, count, half, library.METRIC_L2, False
            )
            self._index.cp.seed, self._index.cp.min_points_per_centroid = seed + 1, 1
            self._index.train(self._sample(count, seed))
        for piece in store.verified():
            for at in range(0, len(piece.keys), _ADDED):
                self._index.add(np.ascontiguousarray(piece.keys[at : at + _ADDED], np.float32))
        self._probe(probes)

    def search(
        self, queries: Float[Tensor, "queries dim"], k: int, *, own: Int[Tensor, "queries copies"] | None = None
    ) -> Neighbours:
        """The k nearest entries that FAISS finds; arguments and errors as `Datastore.search`."""
        require_query(queries, k, own, dim=self.store.dim, entries=len(self.store))
        queries = queries.detach().cpu().float()
        wanted = min(len(self.store), k + (0 if own is None else own.shape[1]))
        if not len(queries):
            return ranked(self._pieces, queries, torch.empty(0, k, dtype=torch.int64), k)
        # Of this call: threads share the index.
        library = faiss()
        options = library.SearchParametersHNSW(efSearch=max(self._length, wanted)) if self.kind == "hnsw" else None
        found = self._index.search(np.ascontiguousarray(queries.numpy()), wanted, params=options)[1]
        candidates = torch.from_numpy(found)
        if own is not None:
            candidates = candidates.masked_fill((candidates[:, :, None] == own.cpu()[:, None]).any(2), -1)
        return ranked(self._pieces, queries, candidates, k)

    def save(self) -> Path:
        """Write it into the datastore's folder, for `load`.

        Raises:
            ResourceError: it cannot be written.
        """
        path = self.store.folder / f"{self.kind}.faiss"
        data = faiss().serialize_index(self._index).tobytes()
        save_file(path, data)
        said = {"sha256 of the index": Entry.of(data).sha256, "of": _entries(self.store)}
        save_file(path.with_suffix(".json"), (json.dumps(sealed(said)) + "\n").encode())
        return path

    @classmethod
    def load(cls, store: Datastore, kind: IndexKind, *, probes: int | None = None) -> "Index":
        """The one that `save` wrote.

        Raises:
            ConfigError: there is none. CheckpointError: it is damaged, or of the datastore as it was before.
            UnsupportedError: FAISS is not installed.
        """
        library = faiss()
        _require_options(kind, None, probes)
        path, again = store.folder / f"{kind}.faiss", f"regard knn index {quote(str(store.folder))} --index {kind}"
        if not path.exists() or not path.with_suffix(".json").exists():
            raise ConfigError(f"{store.folder} has no index {kind}; make it with {again}")
        try:
            said, data = opened(content(path.with_suffix(".json"))), content(path)
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}; nothing was changed") from error
        except ValueError as error:
            raise CheckpointError(
                f"{path.with_suffix('.json')} is damaged: {error}; make it again with {again}"
            ) from None
        if said.get("sha256 of the index") != Entry.of(data).sha256:
            raise CheckpointError(f"{path} is damaged: its SHA-256 differs; make it again with {again}")
        if said.get("of") != _entries(store):
            raise CheckpointError(f"{path} is of the datastore as it was before; make it again with {again}")
        index = cls.__new__(cls)
        index.store, index.kind, index._pieces = store, kind, store.pieces()
        try:
            index._index = library.deserialize_index(np.frombuffer(data, np.uint8))
        except RuntimeError as error:
            raise CheckpointError(f"{path} is no index of this FAISS; make it again with {again}") from error
        index._probe(probes)
        return index

    def _probe(self, probes: int | None) -> None:
        self._length = min(128 if probes is None else probes, len(self.store))
        if self.kind == "ivf":
            self._index.nprobe = min(32 if probes is None else probes, self._index.nlist)

    def _sample(self, centres: int, seed: int) -> np.ndarray:
        """Training keys, spread over the datastore."""
        count = min(len(self.store), 64 * centres)
        chosen = np.sort(np.random.default_rng(seed).choice(len(self.store), count, replace=False))
        parts = [
            piece.keys[chosen[(chosen >= piece.first) & (chosen < piece.first + len(piece.keys))] - piece.first]
            for piece in self._pieces
        ]
        return np.concatenate(parts).astype(np.float32)


def _require_options(kind: str, centres: int | None, probes: int | None) -> None:
    if kind not in get_args(IndexKind):
        raise ConfigError(f"index: no choice {kind!r}: {nearest(kind, get_args(IndexKind))}")
    if centres is not None and (centres < 1 or kind != "ivf"):
        raise ConfigError(f"centres are of ivf, and at least 1; got {centres} for {kind}")
    if probes is not None and (probes < 1 or kind == "flat"):
        raise ConfigError(f"probes are of ivf and hnsw, and at least 1; got {probes} for {kind}")


def _entries(store: Datastore) -> str:
    """SHA-256 of what the manifest says of the blocks."""
    return Entry.of(json.dumps(store.manifest.blocks).encode()).sha256


def faiss() -> Any:
    """As `regard.core.approximate.faiss`."""
    return approximate.faiss("an index", "exact search works without it, with no index named")
