"""Make a vector of every text in files, with an encoder that others published."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from regard.cli._options import Ignore, Trust
from regard.cli._output import console, emit
from regard.errors import ConfigError, DataError, InputError, LimitError
from regard.tasks.config import TABLES
from regard.tasks.tables import rows, text_in
from regard.tasks.text_files import lines, read_text
from regard.tasks.ticking import Ticking
from regard.writing import require_target, save_file


@dataclass(frozen=True)
class Options:
    """The encoder, the texts, and where the vectors go."""

    model: tyro.conf.Positional[str]
    """published weights of an encoder: a Hugging Face folder, with or without the files of sentence-transformers, what
    `pretrained.save` wrote, or package:NAME"""
    files: tyro.conf.Positional[tuple[str, ...]]
    """a file of text is one text; every row of a .jsonl, .csv or .parquet file is one"""
    out: str = "vectors.safetensors"
    """the new .safetensors file: `vectors` has a row for each text, and the metadata `sources` says where each is"""
    lines: bool = False
    """every line of a file of text is a text"""
    field: str = "text"
    """column of .jsonl, .csv and .parquet files that holds the text"""
    prompt: str | None = None
    """name of a prompt of the weights, put in front of every text; None: their default one, if they have it"""
    batch_size: int = 32
    """texts at a time"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu"""
    ignore: Ignore = ()
    trust: Trust = False
    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Read, embed, write."""
    out = Path(options.out)
    if out.suffix != ".safetensors":
        raise ConfigError(f"--out {out}: the file must end in .safetensors")
    require_target(out, new=True)
    found = list(_texts(options))
    if not found:
        raise (DataError if options.files else ConfigError)("there is no text to embed: give files with text in them")
    import safetensors.torch

    from regard.integrations import pretrained

    loaded = pretrained.load(options.model, device=options.device, trust=options.trust, ignore=options.ignore)
    sources, texts = zip(*found, strict=True)
    try:
        progress = Ticking("texts embedded")
        vectors = loaded.embed(texts, batch_size=options.batch_size, prompt=options.prompt, progress=progress)
    except (InputError, LimitError) as error:
        said = re.sub(r"(?m)^  text (\d+)", lambda at: f"  {sources[int(at[1])]}", str(error))
        raise type(error)(said) from error
    save_file(out, safetensors.torch.save({"vectors": vectors.cpu()}, {"sources": json.dumps(sources)}))
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
            texts = ((f"{file}, line {at}", line.rstrip("\r\n")) for at, line in enumerate(lines(Path(file)), 1))
        else:
            texts = iter([(file, read_text(Path(file)))])
        for where, text in texts:
            if not text.strip():
                raise DataError(f"{where} holds no text, so it has no vector: take it out")
            yield where, text
