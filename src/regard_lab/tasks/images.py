"""Images from local files, with labels or without: .npz, or the IDX files of MNIST and its kin."""

import gzip
import lzma
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from regard.core.errors import DataError
from regard.files.reading import plain

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_IDX_FILES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}

_MOST_CLASSES = 1 << 16


class Images(NamedTuple):
    """images: bytes (count, height, width), or (count, height, width, channels). labels: their classes, from 0."""

    images: UInt8[np.ndarray, "count height width *channels"]
    labels: Int64[np.ndarray, "count"]


def read_images(path: Path) -> tuple[Images, Images]:
    """The training and the test images in a file.

    Args:
        path: an .npz that holds the four `ARRAYS`, or one of the four IDX files of MNIST's names.

    Raises:
        DataError: a file that is missing, damaged or of another kind, or images and labels that do not fit together.
    """
    arrays = _read(path, ARRAYS)
    train = _checked(path, "train", arrays["train_images"], arrays["train_labels"])
    test = _checked(path, "test", arrays["test_images"], arrays["test_labels"])
    if train.images.shape[1:] != test.images.shape[1:]:
        raise DataError(f"{path}: training images are {train.images.shape[1:]}, test images {test.images.shape[1:]}")
    if test.labels.max() > train.labels.max():
        raise DataError(f"{path}: the test images have class {test.labels.max()}, which the training images do not")
    return train, test


def read_pixels(
    path: Path,
) -> tuple[UInt8[np.ndarray, "train height width channels"], UInt8[np.ndarray, "test height width channels"] | None]:
    """The training and the test images in a file, without labels; None where the file does not tell them apart.

    Args:
        path: an .npz with train_images and test_images, or with images alone; or one of the four IDX files.

    Raises:
        DataError: as `read_images`.
    """
    arrays = _read(path, ("train_images", "test_images"), otherwise="images")
    images = [_pixels(path, name, arrays[name]) for name in arrays]
    if len(images) == 1:
        if len(images[0]) < 3:
            raise DataError(f"{path}: {len(images[0])} images cannot be split into training, validation and test")
        return images[0], None
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(f"{path}: training images are {images[0].shape[1:]}, test images {images[1].shape[1:]}")
    return images[0], images[1]


def _pixels(path: Path, name: str, images: np.ndarray) -> np.ndarray:
    _require_images(path, name, images)
    return images if images.ndim == 4 else images[..., None]


def _read(path: Path, names: Sequence[str], *, otherwise: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of these names; of the name `otherwise`, where the file has that and not all of them.

    Raises:
        DataError: a file that is missing, damaged or of another kind.
    """
    if path.suffix not in (".npz", ".gz"):
        raise DataError(f"{path}: regard reads images from .npz and -ubyte.gz files, not {path.suffix or 'this'}")
    try:
        return _npz(path, names, otherwise) if path.suffix == ".npz" else _idx(path, names)
    except FileNotFoundError as error:
        raise DataError(f"there is no file {error.filename}; give a local file of images with --task.data") from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged, or no file of images: {error}") from error


def _npz(path: Path, names: Sequence[str], otherwise: str | None) -> dict[str, np.ndarray]:
    with plain(path) as opened:
        if not zipfile.is_zipfile(opened):
            raise DataError(f"{path} is damaged, or no .npz file of numpy.savez: no array alone and no pickle is read")
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in names if name not in file]
        if missing and otherwise is not None and otherwise in file:
            return {otherwise: file[otherwise]}
        if missing:
            raise DataError(f"{path} has no {', '.join(missing)}; it holds {', '.join(file.files) or 'nothing'}")
        return {name: file[name] for name in names}


def _idx(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    if path.name not in _IDX_FILES.values():
        raise DataError(f"{path}: expected one of {', '.join(_IDX_FILES.values())}, with the others beside it")
    return {name: _idx_array(path.with_name(_IDX_FILES[name])) for name in names}


def _idx_array(path: Path) -> np.ndarray:
    """Two zero bytes, 8 for unsigned bytes, the number of axes, their sizes as big-endian 32 bits, the data (LeCun)."""
    with plain(path) as file, gzip.GzipFile(fileobj=file) as data:
        head = data.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08":
            raise DataError(f"{path} is no IDX file of bytes: it begins with {head.hex(' ') or 'nothing'}")
        shape = [int.from_bytes(data.read(4), "big") for _ in range(head[3])]
        size = math.prod(shape)
        content = np.frombuffer(data.read(), np.uint8)
    if content.size != size:
        raise DataError(f"{path} says that it holds {tuple(shape)} bytes and holds {content.size}")
    return content.reshape(shape)


def _require_images(path: Path, name: str, images: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        raise DataError(
            f"{path}: {name} must be bytes (count, height, width) or (count, height, width, channels), got "
            f"{images.dtype} {images.shape}"
        )


def _checked(path: Path, split: str, images: np.ndarray, labels: np.ndarray) -> Images:
    _require_images(path, f"{split}_images", images)
    if labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise DataError(
            f"{path}: {split}_labels must be {len(images)} classes from 0 on, got {labels.dtype} {labels.shape}"
        )
    if labels.max() >= _MOST_CLASSES:
        raise DataError(f"{path}: {split}_labels has class {labels.max()}; classes are numbers below {_MOST_CLASSES}")
    return Images(images, labels.astype(np.int64))
