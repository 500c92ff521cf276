"""Make a vector of every text in files, with an encoder that others published."""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from regard.core.errors import ConfigError, DataError, InputError, LimitError
from regard_lab.cli._options import Device, Ignore, Json, Trust
from regard_lab.cli._output import console, emit, will_write
from regard_lab.tasks.config import TABLES
from regard_lab.tasks.tables import rows, text_in
from regard_lab.tasks.text_files import lines, read_text
from regard_lab.tasks.ticking import Ticking

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """The encoder, the texts, and where the vectors go."""

    model: tyro.conf.Positional[str]
    """published weights of an encoder: a Hugging Face folder, with or without the files of sentence-transformers, what
    `pretrained.save` wrote, or package:NAME"""
    files: tyro.conf.Positional[tuple[str, ...]]
    """a file of text is one text; every row of a .jsonl, .csv or .parquet file is one"""
    out: str = "vectors.safetensors"
    """the new file: .safetensors or .npy for a matrix with a row for each text; .jsonl for a line with each"""
    lines: bool = False
    """every line of a file of text that is not blank is a text"""
    field: str = "text"
    """column of .jsonl, .csv and .parquet files that holds the text"""
    prompt: str | None = None
    """name of a prompt of the weights, put in front of every text; None: their default one, if they have it"""
    pooling: tuple[str, ...] = ()
    """cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken, or several, joined; none: as the folder says"""
    truncate: bool = False
    """cut a text that is longer than the network reads, instead of refusing it"""
    batch_size: int = 32
    """texts at a time"""
    device: Device = "auto"
    trust: Trust = False
    ignore: Ignore = ()
    json: Json = False


def run(options: Options) -> int:
    """Read, embed, write."""
    out = Path(options.out)
    if out.suffix not in (".safetensors", ".npy", ".jsonl"):
        raise ConfigError(f"--out {out}: the file must end in .safetensors, .npy or .jsonl")
    will_write(options.out, new=True)
    found = list(_texts(options))
    if not found:
        raise (DataError if options.files else ConfigError)("there is no text to embed: give files with text in them")
    from regard.files.folders import save_file
    from regard.integrations import pretrained

    loaded = pretrained.load(options.model, device=options.device, trust=options.trust, ignore=options.ignore)
    sources, texts = zip(*found, strict=True)
    try:
        vectors = loaded.embed(
            texts,
            batch_size=options.batch_size,
            pooling=options.pooling or None,
            prompt=options.prompt,
            truncate=options.truncate,
            progress=Ticking("texts embedded"),
        )
    except (InputError, LimitError) as error:
        said = re.sub(r"(?m)^  text (\d+)", lambda at: f"  {sources[int(at[1])]}", str(error))
        raise type(error)(said.replace("give truncate", "give --truncate")) from error
    save_file(out, _written(vectors.cpu(), sources, out.suffix))
    if options.json:
        emit({"model": options.model, "texts": len(vectors), "dim": vectors.shape[1], "out": options.out})
    else:
        console().print(f"{len(vectors):,} vectors of {vectors.shape[1]:,} numbers: {out}", markup=False)
    return 0


def _texts(options: Options) -> Iterator[tuple[str, str]]:
    """Where each text is, and the text."""
    for file in options.files:
        if file.lower().endswith(TABLES):
            read = rows(Path(file), {options.field: "--field"})
            texts = ((row.where, text_in(row, options.field, "--field")) for row in read)
        elif options.lines:
            numbered = enumerate(lines(Path(file)), 1)
            texts = ((f"{file}, line {at}", line.rstrip("\r\n")) for at, line in numbered if line.strip())
        else:
            texts = iter([(file, read_text(Path(file)).rstrip("\r\n"))])
        for where, text in texts:
            if not text.strip():
                raise DataError(f"{where} holds no text, so it has no vector: take it out")
            yield where, text


def _written(vectors: "Tensor", sources: Sequence[str], suffix: str) -> bytes:
    """The file of the vectors."""
    import numpy
    import safetensors.torch

    if suffix == ".safetensors":
        return safetensors.torch.save({"vectors": vectors}, {"sources": json.dumps(sources)})
    if suffix == ".npy":
        numpy.save(file := io.BytesIO(), vectors.numpy())
        return file.getvalue()
    rows = ({"source": where, "vector": each} for where, each in zip(sources, vectors.tolist(), strict=True))
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
