"""What the processes of `torchrun` divide among themselves besides the examples. Imports no torch."""

from dataclasses import dataclass

from regard.core.errors import ConfigError
from regard.core.types_of import typed


@dataclass(frozen=True)
class ParallelConfig:
    """How several processes train one run; a fact of the call and not of the run, which another one may go on with.

    Raises:
        ConfigError: a number below 1.
    """

    sequence: int = 1
    """under torchrun: processes that share the tokens of every example"""

    @typed
    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ConfigError(f"parallel.sequence must be at least 1, got {self.sequence}")

    @property
    def named(self) -> list[str]:
        """The options that ask for something, as they are written."""
        return [f"--parallel.sequence {self.sequence}"] if self.sequence > 1 else []
