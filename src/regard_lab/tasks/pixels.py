"""Images as sequences: every channel of every pixel is a category, predicted from those before it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int64, UInt8

from regard import catalog
from regard.core.errors import ConfigError, ShapeError
from regard.position import position_class
from regard.specs import Spec, options_of, parse
from regard_lab.tasks.base import SPLITS, Example, Split, Task, checked_index
from regard_lab.tasks.config import TOYS, ImagesConfig, SuperResolutionConfig
from regard_lab.tasks.images import read_pixels
from regard_lab.tasks.toys import toy_images

_SHAPE_OPTIONS = ("width", "channels", "query_block")
"""options of a mechanism or a position scheme that knows rows and columns"""


@dataclass(frozen=True)
class Grid:
    """How an image is a sequence: slot t is one channel of one pixel.

    Pixels come in raster order, or, with `query_block` = (rows, columns), block by block: blocks in raster order and
    the pixels of a block in raster order. The channels of a pixel follow one another. A value x of 0 .. 255 has level
    floor(x levels / 256), and channel c with level s is token c levels + s, so that every channel has embeddings of its
    own; one more token, `start`, stands before the first. A level comes back as the middle of its values.

    Args:
        height, width, channels: of the image.
        levels: different values of a channel.
        query_block: rows and columns of a block; None: raster order.

    Raises:
        ConfigError: blocks that do not divide the sides.

    Example:
        >>> grid = Grid(2, 4, query_block=(2, 2))
        >>> grid.order
        array([0, 1, 4, 5, 2, 3, 6, 7])
        >>> image = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
        >>> bool((grid.images(grid.sequences(image)) == image).all())
        True

    Source: Parmar et al. 2018, sections 3.1 (categories, embeddings by channel) and 3.3 (order of the blocks).
    """

    height: int
    width: int
    channels: int = 1
    levels: int = 256
    query_block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.query_block is None:
            return
        rows, columns = self.query_block
        if self.height % rows or self.width % columns:
            raise ConfigError(
                f"query_block={self.query_block} must divide the sides of the images, {self.height} x {self.width}"
            )

    @property
    def length(self) -> int:
        """Slots of an image."""
        return self.height * self.width * self.channels

    @property
    def start(self) -> int:
        """The token that is read before the first slot."""
        return self.channels * self.levels

    @property
    def tokens(self) -> int:
        """Different tokens: every level of every channel, and the start."""
        return self.start + 1

    @cached_property
    def order(self) -> Int64[np.ndarray, "slots"]:
        """Where in the raster (height, width, channels) each slot lies."""
        raster = np.arange(self.length).reshape(self.height, self.width, self.channels)
        if self.query_block is None:
            return raster.reshape(-1)
        rows, columns = self.query_block
        cut = raster.reshape(self.height // rows, rows, self.width // columns, columns, self.channels)
        return cut.transpose(0, 2, 1, 3, 4).reshape(-1)

    @cached_property
    def offsets(self) -> Int64[np.ndarray, "slots"]:
        """The number that is added to the level in each slot to give its token."""
        return np.arange(self.length) % self.channels * self.levels

    def sequences(self, images: UInt8[np.ndarray, "batch height width channels"]) -> Int64[np.ndarray, "batch slots"]:
        """The level in every slot.

        Raises:
            ShapeError: images of another shape, or none of bytes.
        """
        wanted = (self.height, self.width, self.channels)
        if images.dtype != np.uint8 or images.shape[1:] != wanted:
            raise ShapeError(f"images must be bytes (batch, {', '.join(map(str, wanted))}), got {images.dtype} "
                             f"{images.shape}")  # fmt: skip
        return images.reshape(len(images), -1)[:, self.order].astype(np.int64) * self.levels // 256

    def images(self, sequences: Int64[np.ndarray, "batch slots"]) -> UInt8[np.ndarray, "batch height width channels"]:
        """The images with these levels: each the middle of the values that it stands for."""
        raster = np.empty_like(sequences)
        raster[:, self.order] = (2 * sequences + 1) * 256 // (2 * self.levels)
        return raster.astype(np.uint8).reshape(len(sequences), self.height, self.width, self.channels)

    def smaller(self, factor: int) -> "Grid":
        """The grid of the images that `reduced` makes, in raster order."""
        return Grid(self.height // factor, self.width // factor, self.channels, self.levels)

    def upper(self, rows: int) -> int:
        """How many slots the upper `rows` rows are, which must come before all others.

        Raises:
            ConfigError: rows that cut through a row of blocks.
        """
        block = 1 if self.query_block is None else self.query_block[0]
        if not 0 <= rows <= self.height or rows % block:
            raise ConfigError(
                f"the upper {rows} rows are not generated before the others: blocks are {block} rows high, and the "
                f"image has {self.height}; choose a query_block whose rows divide {rows}"
            )
        return rows * self.width * self.channels

    def placed(self, spec: str) -> str:
        """A mechanism's specification with the image's shape and order in it, where the mechanism asks for them.

        Raises:
            ConfigError: one for another shape or order than this one, or an unknown one.

        Example:
            >>> Grid(28, 28, query_block=(7, 14)).placed("image_local_2d(flange=(7, 7))")
            'image_local_2d(flange=(7, 7), width=28, channels=1, query_block=(7, 14))'
        """
        return catalog.rewritten(spec, lambda part: self._shaped(part, catalog.resolve(part)[0]))

    def located(self, position: str) -> str:
        """The same of a position scheme's specification.

        Example:
            >>> Grid(28, 28).located("coordinates(std=0.1)")
            'coordinates(std=0.1, width=28, channels=1, query_block=None)'
        """
        return position if position == "none" else self._shaped(position, position_class(parse(position).name))

    def _shaped(self, spec: str, cls: type) -> str:
        if not _has_shape(cls):
            return spec
        known, parsed = options_of(cls), parse(spec)
        shape: Mapping[str, object] = {name: getattr(self, name) for name in _SHAPE_OPTIONS}
        if self.query_block is None and known["query_block"] is not None:
            raise ConfigError(
                f"{spec} sees rectangles, and the pixels come in raster order; give the task the rows and columns of "
                "its blocks, such as --task.query-block 7 14"
            )
        wrong = [
            f"{name}={parsed.options[name]!r}" for name in shape if parsed.options.get(name, shape[name]) != shape[name]
        ]
        if wrong:
            task = ", ".join(f"{name}={value!r}" for name, value in shape.items())
            raise ConfigError(
                f"{spec} has {', '.join(wrong)}, and the task's images have {task}; leave these out of a "
                "specification, and give a preset those of the images"
            )
        return str(Spec(parsed.name, {**parsed.options, **shape}))


def without_shape(position: str) -> str:
    """A position scheme's specification for images of any shape.

    Example:
        >>> without_shape("coordinates(width=28, std=0.1)")
        'coordinates(std=0.1)'
    """
    parsed = parse(position)
    if position == "none" or not _has_shape(position_class(parsed.name)):
        return position
    return str(Spec(parsed.name, {name: x for name, x in parsed.options.items() if name not in _SHAPE_OPTIONS}))


def _has_shape(cls: type) -> bool:
    return options_of(cls).keys() >= set(_SHAPE_OPTIONS)


class Pixels:
    """The images of a split as sequences.

    Args:
        images: bytes.
        grid: their order.
        factor: of the sides, to the small images that a source is; 1: no source.
    """

    def __init__(self, images: UInt8[np.ndarray, "count height width channels"], grid: Grid, factor: int = 1) -> None:
        self.images, self.grid, self.factor = images, grid, factor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Example:
        index = checked_index(index, len(self))
        image, grid = self.images[index : index + 1], self.grid
        levels = grid.sequences(image)[0]
        inputs = np.concatenate([[grid.start], (levels + grid.offsets)[:-1]])
        source = None if self.factor == 1 else sources(reduced(image, self.factor), grid.smaller(self.factor))[0]
        return Example(inputs, levels, index, 0, source)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))


class ImagesTask(Task):
    """The pixels of images, each predicted from those before it; measured in bits per dimension.

    A dimension is one channel of one pixel, and the bits are -log2 p(level): an image of bytes costs 8 a dimension
    under the uniform distribution. Fewer levels cost fewer bits, so numbers compare at equal `levels` only.

    A file with `test_images` has its own test; validation is the share `holdout` of the others, the first ones by hash
    of their number. A file with `images` alone holds out as much again for the test.

    Args:
        config: file, levels, order.

    Raises:
        DataError: as `read_pixels`. ConfigError: blocks that do not divide the sides.

    Example:
        >>> ImagesTask(ImagesConfig()).examples("train")[0].inputs.shape
        (256,)

    Source: Parmar et al. 2018, sections 3 and 5.1.
    """

    name: ClassVar[str] = "images"
    metric: ClassVar = "bits_per_dimension"
    factor = 1

    def __init__(self, config: ImagesConfig):
        self.config = config
        train, test = _toys() if config.data == TOYS else read_pixels(Path(config.data).expanduser())
        height, width, channels = train.shape[1:]
        self.grid = Grid(height, width, channels, config.levels, config.query_block)
        self.length, self.vocab_size = self.grid.length, self.grid.tokens
        order = np.argsort([hashlib.sha256(str(at).encode()).digest() for at in range(len(train))])
        held = max(1, round(config.holdout * len(order)))
        parts = {"valid": train[np.sort(order[:held])], "train": train[np.sort(order[held:])], "test": test}
        if test is None:
            parts["test"] = train[np.sort(order[held : 2 * held])]
            parts["train"] = train[np.sort(order[2 * held :])]
        self._parts: dict[str, np.ndarray] = {split: part for split, part in parts.items() if part is not None}
        digest = hashlib.sha256(json.dumps([asdict(self.grid), self.factor, config.holdout]).encode())
        for part in (train, test):
            digest.update(b"" if part is None else part.tobytes())
        self.fingerprint = digest.hexdigest()[:32]

    @property
    def num_targets(self) -> int:
        """Levels."""
        return self.grid.levels

    def examples(self, split: Split) -> Pixels:
        if split not in SPLITS:
            raise ConfigError(f"task {self.name}: there is no split {split!r}; splits are {', '.join(SPLITS)}")
        return Pixels(self._parts[split], self.grid, self.factor)


def _toys() -> tuple[UInt8[np.ndarray, "train 16 16 1"], UInt8[np.ndarray, "test 16 16 1"]]:
    train, test = toy_images()
    return train.images[..., None], test.images[..., None]


class SuperResolutionTask(ImagesTask):
    """Images, each given a smaller one: the mean of every square of factor x factor pixels.

    The model reads the small one whole and predicts the pixels of the large one in its order.

    Args:
        config: as `ImagesTask`, and the factor.

    Raises:
        ConfigError: a factor that does not divide the sides.

    Source: Parmar et al. 2018, section 5.3 (there from 8 x 8 to 32 x 32).
    """

    name: ClassVar[str] = "super_resolution"

    def __init__(self, config: SuperResolutionConfig):
        self.factor = config.factor
        super().__init__(config)
        if self.grid.height % config.factor or self.grid.width % config.factor:
            raise ConfigError(
                f"task {self.name}: factor={config.factor} must divide the sides of the images in {config.data}, "
                f"{self.grid.height} x {self.grid.width}"
            )


def reduced(
    images: UInt8[np.ndarray, "batch height width channels"], factor: int
) -> UInt8[np.ndarray, "batch rows columns channels"]:
    """The mean of every square of factor x factor pixels, rounded.

    Example:
        >>> reduced(np.array([0, 10, 20, 30], np.uint8).reshape(1, 2, 2, 1), 2).item()
        15
    """
    count, height, width, channels = images.shape
    squares = images.reshape(count, height // factor, factor, width // factor, factor, channels)
    return ((squares.sum((2, 4), dtype=np.int64) + factor**2 // 2) // factor**2).astype(np.uint8)


def sources(images: UInt8[np.ndarray, "batch height width channels"], grid: Grid) -> Int64[np.ndarray, "batch slots"]:
    """Images as what a model reads whole: tokens in the order of their grid.

    Raises:
        ShapeError: as `Grid.sequences`.
    """
    return grid.sequences(images) + grid.offsets
