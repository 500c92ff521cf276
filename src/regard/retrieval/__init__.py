"""Memories outside the model: datastores of what a decoder saw, and the decoders that look things up in them."""

from regard.retrieval.build import build
from regard.retrieval.datastore import Datastore
from regard.retrieval.documents import Text, fingerprint, origin, texts
from regard.retrieval.evaluation import Looked, bootstrap, look, sweep
from regard.retrieval.index import Index
from regard.retrieval.knn_lm import KnnLm, mixed
from regard.retrieval.manifest import Stats
from regard.retrieval.own import Own, Tally
from regard.retrieval.search import Neighbours
from regard.retrieval.spalm import LookedUp, Lookup, Spalm

__all__ = [
    "Datastore",
    "Index",
    "KnnLm",
    "Looked",
    "LookedUp",
    "Lookup",
    "Neighbours",
    "Own",
    "Spalm",
    "Stats",
    "Tally",
    "Text",
    "bootstrap",
    "build",
    "fingerprint",
    "look",
    "mixed",
    "origin",
    "sweep",
    "texts",
]
