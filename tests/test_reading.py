"""A process that can open no more files takes none of them for damaged or missing, whatever reads it."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from regard import checksums, reading, specs
from regard.errors import ResourceError
from regard.integrations import _folder, _gguf
from regard.tasks import TextConfig, build_task
from regard.tasks.images import _read as read_images
from regard.tasks.text_files import read_text
from regard.tasks.token_store import TokenStore
from regard.tasks.tokenizer import ByteTokenizer, load_tokenizer
from regard.tokens import build
from regard.tokens.shard import finished, write_shard
from regard.training import files
from regard.training.environment import record as record_environment
from regard.training.network import read_json


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """No more than so many can be opened."""
    free = [os.dup(0) for _ in range(count + 1)]  # in a process that has others open between them
    for each in free:
        os.close(each)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _text(folder: Path) -> Callable[[], object]:
    (folder / "a.txt").write_text("".join(f"{number} and more\n" for number in range(400)))
    return lambda: read_text(folder / "a.txt")


def _token_files(folder: Path) -> Callable[[], object]:
    _text(folder)
    config = TextConfig(corpus=str(folder / "a.txt"), length=16, cache=str(folder / "cache"))
    build_task(config).examples("train")
    return lambda: build_task(config).examples("train")[0]


def _store(folder: Path) -> Callable[[], object]:
    _text(folder)
    build(folder / "a.txt", folder / "store", separator="\n")
    config = TextConfig(corpus=str(folder / "store"), length=8)
    return lambda: build_task(config).examples("train")[0]


def _verified(folder: Path) -> Callable[[], object]:
    _store(folder)
    return lambda: TokenStore.open(folder / "store").verify()


def _shard(folder: Path) -> Callable[[], object]:
    write_shard(folder, "0", ["one", "two"], ByteTokenizer(), 0.1, "corpus")

    def found() -> None:
        assert finished(folder, "0", "corpus") is not None

    return found


def _tokenizer(folder: Path) -> Callable[[], object]:
    ByteTokenizer().save(folder / "tokenizer.json")
    return lambda: load_tokenizer(folder / "tokenizer.json")


def _gguf_file(folder: Path) -> Callable[[], object]:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(folder / "a.gguf", "llama")
    writer.add_tensor("a", np.ones((2, 4), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return lambda: _gguf.read_gguf(folder / "a.gguf")


def _safetensors(folder: Path) -> Callable[[], object]:
    safetensors.torch.save_file({"a": torch.ones(3)}, folder / "a.safetensors")
    return lambda: _folder.tensors_of(folder / "a.safetensors")


def _settings(folder: Path) -> Callable[[], object]:
    (folder / "config.json").write_text("{}")
    return lambda: _folder.read_json(folder, "config.json")


def _run_file(folder: Path) -> Callable[[], object]:
    (folder / "grid.json").write_text("{}")
    return lambda: read_json(folder / "grid.json")


def _environment(folder: Path) -> Callable[[], object]:
    record_environment(folder / "environment.json", torch.device("cpu"), 1)
    return lambda: record_environment(folder / "environment.json", torch.device("cpu"), 1)


def _manifest(folder: Path) -> Callable[[], object]:
    (folder / "a").write_bytes(b"content")
    checksums.write_manifest(folder, ["a"])
    return lambda: files.load_folder(folder)


def _images(folder: Path) -> Callable[[], object]:
    np.savez(folder / "a.npz", images=np.zeros((2, 4, 4), np.uint8))
    return lambda: read_images(folder / "a.npz", ["images"])


READERS = [_text, _token_files, _store, _verified, _shard, _tokenizer, _gguf_file, _safetensors, _settings, _run_file]
READERS += [_environment, _manifest, _images]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__.strip("_"))
def test_a_file_is_not_damaged_because_no_descriptor_is_left(tmp_path, reader):
    read, said = reader(tmp_path), []
    for count in range(40):
        with descriptors(count):
            try:
                read()
            except (ResourceError, OSError) as error:  # both are exit status 6
                said.append(str(error))
            else:
                break
    assert 0 < len(said) < 30
    assert all("Too many open files" in each for each in said)


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path):
    """Of `Path.glob` it is, on Python 3.12, and the catalog would know no name."""
    (tmp_path / "here.py").touch()
    with descriptors(0), pytest.raises(OSError, match="Too many open files"):
        reading.found_in(tmp_path, ".py")
    with descriptors(0), pytest.raises(OSError, match="Too many open files"):
        specs.files.__wrapped__("regard.attention")
    assert [path.name for path in reading.found_in(tmp_path, ".py")] == ["here.py"]
