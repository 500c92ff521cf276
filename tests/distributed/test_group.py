"""What processes know of one that left."""

import pytest
import torch.distributed as dist

from regard.core.errors import ResourceError
from regard.distributed.group import Group


def test_who_left_while_groups_are_made_is_named(monkeypatch):
    def alone(*given, **options):
        raise dist.DistStoreError("wait timeout after 20000ms, keys: 0")

    monkeypatch.setattr(dist, "new_group", alone)
    group = Group(1, 2, dist.HashStore())
    Group(0, 2, group.store).leave_word(KeyboardInterrupt())
    with pytest.raises(ResourceError, match=r"^process 0 of 2: was interrupted, which ends all"):
        group.among([[0], [1]])
