"""What is read beside a run's own data: a hook for whoever can open it."""

from collections.abc import Callable

from regard.core.errors import ConfigError
from regard_lab.tasks.base import Task
from regard_lab.tasks.config import TextConfig
from regard_lab.training.config import RunConfig

Beside = Callable[[RunConfig, Task], Task]
"""the data of a run, with what its configuration puts beside it; `regard_lab.networks.datastores.beside` opens
datastores"""


def alone(config: RunConfig, task: Task) -> Task:
    """The data of a run that has nothing beside it.

    Raises:
        ConfigError: the configuration names a datastore; or `require`.
    """
    require(config)
    if config.training.datastore is not None:
        raise ConfigError(
            f"this run reads the datastore {config.training.datastore} beside its text; in Python, pass beside="
            "regard_lab.networks.datastores.beside (the commands do)"
        )
    return task


def require(config: RunConfig) -> None:
    """Refuse neighbours that nobody looks up, and a datastore that nobody reads.

    Raises:
        ConfigError: one without the other, or another task than text.
    """
    count, store = getattr(config.model, "neighbours", 0), config.training.datastore
    if bool(count) != (store is not None):
        raise ConfigError(
            f"model.neighbours={count} and training.datastore={store!r} go together: a model with neighbours reads a "
            "datastore beside its text. Make one with regard knn build, name it with --datastore, and with "
            "--datastore-model what made it; or leave them out"
        )
    if count and type(config.task) is not TextConfig:
        raise ConfigError(f"neighbours are looked up in a datastore of text, and the task is {config.task.name}")
