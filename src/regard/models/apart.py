"""Blocks whose weights may be elsewhere between their calls."""

from torch import nn


def blocks_apart(model: nn.Module) -> list[nn.Module]:
    """The blocks whose weights nothing reads but calls of them, one each in every pass that trains, in one order.

    So it is not where the number of calls depends on the data (the depth is not `steady`), where a backward pass
    computes the block again without calling it (it is not `called`), where earlier segments are written with its
    projections (a memory), and for weights that belong to other blocks too, or to the embeddings.
    """
    found: list[nn.Module] = []
    for owner in model.modules():
        blocks, depth = getattr(owner, "blocks", None), getattr(owner, "depth", None)
        if isinstance(blocks, nn.ModuleList) and getattr(depth, "steady", True):
            found += [block for block in blocks if getattr(block, "called", False)]
    owners: dict[nn.Parameter, int] = {}
    for block in found:
        for parameter in block.parameters():
            owners[parameter] = owners.get(parameter, 0) + 1
    inside = [set(block.parameters()) for block in found]
    outside = _elsewhere(model, found)
    return [
        block
        for block, own in zip(found, inside, strict=True)
        if own and not own & outside and all(owners[parameter] == 1 for parameter in own)
    ]


def _elsewhere(model: nn.Module, blocks: list[nn.Module]) -> set[nn.Parameter]:
    """Parameters that a path leads to which goes through none of the blocks, though another one may."""
    seen, waiting = set(blocks), [model]
    found: set[nn.Parameter] = set()
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            found.update(module.parameters(recurse=False))
            waiting += module.children()
    return found
