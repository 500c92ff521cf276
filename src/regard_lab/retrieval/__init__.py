"""Memories outside the model: datastores of what a decoder saw, and the decoders that look things up in them."""

from regard_lab.retrieval.build import build
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.documents import Text, fingerprint, origin, texts
from regard_lab.retrieval.evaluation import Looked, bootstrap, look, sweep
from regard_lab.retrieval.index import Index
from regard_lab.retrieval.knn_lm import KnnLm, mixed
from regard_lab.retrieval.manifest import Stats
from regard_lab.retrieval.own import Own, Tally
from regard_lab.retrieval.search import Neighbours
from regard_lab.retrieval.spalm import LookedUp, Lookup, Spalm

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
