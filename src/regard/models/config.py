"""The shape of a decoder language model, as data. Imports no torch, so that command lines answer at once."""

from dataclasses import dataclass

from regard import specs
from regard.core.errors import ConfigError, nearest
from regard.core.types_of import typed_fields
from regard.models.block_config import BlockConfig, MlpKind, NormKind, NormPlace, per_layer, untied
from regard.models.encoder_config import InputConfig

__all__ = ["BlockConfig", "MlpKind", "ModelConfig", "NormKind", "NormPlace"]


@typed_fields
@dataclass(frozen=True, kw_only=True)
class ModelConfig(InputConfig):
    """A causal Transformer decoder.

    Raises:
        ConfigError: as `BlockConfig`.

    Example:
        >>> ModelConfig(layers=3, attention=("linear", "linear", "softmax")).specs
        ('linear', 'linear', 'softmax')
        >>> ModelConfig(dim=96, heads=4).key_dim
        24
    """

    position: str = "rotary"
    """Position scheme, such as rotary(base=500000.0) or learned; none: no scheme."""
    bias: bool = False
    """Bias terms in linear layers and LayerNorm."""
    memory: str | tuple[str, ...] = "none"
    """Memory of earlier segments in every layer, such as recent(length=256); none: no memory. Or one for each layer,
    where a number behind it is of how many layers it is: none:24 memorizing(pairs=4096) none:5."""
    max_length: int = 512
    """Longest sequence, for schemes and mechanisms whose weights depend on it; others go beyond it. With a memory the
    tokens of a segment: fewer than the task's length, such as half of it. With --carry they may be as many."""
    tied: bool = True
    """The output layer is the embedding table."""
    output_bias: bool = False
    """Bias terms of an output layer that is not tied."""
    both_streams: bool = False
    """Of reversible blocks: the last norm and the output layer read both streams side by side, as in the released
    Reformers, and not their mean."""
    targets: int | None = None
    """Number of different outputs, where it is not the number of tokens (the levels of a pixel, whose channels are
    different tokens); None: vocab_size."""
    short_convolution: int = 0
    """Width of a causal depthwise convolution over the embeddings; 0: none. It lets one layer compare a token with the
    token before it, which associative recall needs."""
    neighbours: int = 0
    """Nearest contexts in a datastore whose tokens are mixed in before the output layer, by a gate (SPALM); 0: none.
    They are found by the model that made the datastore, see --datastore."""
    neighbour_temperature: float | None = None
    """Of neighbours: a token also counts for less by its squared distance over this; None: as published, without
    distances."""

    def problems(self) -> list[str]:
        """Problems of these values, as `BlockConfig`."""
        problems = self._sizes("vocab_size", "targets") + super().problems() + untied(self.targets, self.tied)
        problems += self._memories() + self._neighbours()
        if self.both_streams and (self.block != "reversible" or self.norm != "pre"):
            problems.append(f"both_streams=True is for block='reversible', which has two; got block={self.block!r}")
        for name in ("both_streams", "output_bias"):
            if getattr(self, name) and self.tied:
                problems.append(f"{name}=True needs an output layer of its own; set tied=False")
        if self.projections != "all":
            problems.append(f"projections={self.projections!r} are for encoders: a causal row is never global; use all")
        if self.short_convolution < 0 or self.short_convolution == 1:
            problems.append(
                f"short_convolution must be 0 (none) or at least 2 (a token and its past), got {self.short_convolution}"
            )
        return problems

    def _neighbours(self) -> list[str]:
        count, temperature = self.neighbours, self.neighbour_temperature
        problems = self._sizes("neighbours", least=0)
        if temperature is not None and (count < 1 or not 0 < temperature < float("inf")):
            problems.append(
                f"neighbour_temperature must be more than 0, and goes with neighbours; got {temperature}, with "
                f"neighbours={count}"
            )
        for name, wanted in (("tied", True), ("both_streams", False), ("targets", None), ("depth", "fixed")):
            if count > 0 and getattr(self, name) != wanted:
                problems.append(
                    f"neighbours={count} bring embeddings of tokens to an output layer that is the same table and is "
                    f"read once: {name} must be {wanted!r}, got {getattr(self, name)!r}"
                )
        return problems

    def _memories(self) -> list[str]:
        problems, known, layers = [], sorted(specs.files("regard.memory")), 0
        for part in self._given_memories:
            try:
                spec, count = specs.counted(part)
                name = specs.parse(spec).name
            except ConfigError as error:
                problems.append(f"memory: {error}")
                continue
            layers += count
            if name not in (*known, "none"):
                problems.append(f"memory: unknown memory {name!r}: {nearest(name, known)}")
        if not problems and layers not in {1, self.layers}:
            problems.append(
                f"memory must be a tuple of one specification, or of one for each of the {self.layers} layers, got "
                f"{layers}: {self.memory!r:.200}; a number behind one says of how many it is, as in none:{self.layers}"
            )
        return list(dict.fromkeys(problems))

    @property
    def _given_memories(self) -> tuple[str, ...]:
        return self.memory if isinstance(self.memory, tuple) else (self.memory,)

    @property
    def memories(self) -> tuple[str | None, ...]:
        """The memory of every layer; None: it has none."""
        each = tuple(spec for spec, count in map(specs.counted, self._given_memories) for _ in range(count))
        return tuple(None if spec == "none" else spec for spec in per_layer(each, self.layers))

    @property
    def remembers(self) -> bool:
        """Whether any layer has a memory."""
        return self.memory != "none" and any(self.memories)
