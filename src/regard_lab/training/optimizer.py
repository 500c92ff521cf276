"""AdamW with weight decay only where it belongs."""

import torch
from torch import nn

from regard.position import Position


def decayed(model: nn.Module, *, embeddings: bool = False) -> dict[str, bool]:
    """Whether weight decay applies, for every parameter of a model that is trained.

    It applies to matrices. It does not to biases, scales of norms and other vectors, to tables of positions, nor to
    embeddings unless asked. A tied matrix is an embedding.

    Args:
        model: the model.
        embeddings: decay embeddings too.

    Returns:
        Parameter name -> decays, in the order of `model.named_parameters()`.
    """
    exempt: set[nn.Parameter] = set()
    schemes = [module for module in model.modules() if isinstance(module, Position)]
    inside = {module for scheme in schemes for module in scheme.modules()}
    for module in model.modules():
        table = isinstance(module, nn.Embedding)
        kept = isinstance(module, Position) or (table and (not embeddings or module in inside))
        norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            if kept or norm or parameter.ndim < 2 or name == "bias" or name.endswith("_bias"):
                exempt.add(parameter)
    return {name: parameter not in exempt for name, parameter in model.named_parameters() if parameter.requires_grad}


def adamw(
    model: nn.Module,
    *,
    betas: tuple[float, float] = (0.9, 0.95),
    epsilon: float = 1e-8,
    weight_decay: float = 0.1,
    decay_embeddings: bool = False,
) -> torch.optim.AdamW:
    """AdamW in two groups, with and without decay; the rate of each step is set by `set_rate`.

    w <- w - rate (decay w + m_hat / (sqrt(v_hat) + epsilon)), m and v the running means of the gradient and its square.

    Source: Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """
    decays = decayed(model, embeddings=decay_embeddings)
    parameters = dict(model.named_parameters())
    groups = [
        {"params": [parameters[name] for name, chosen in decays.items() if chosen], "weight_decay": weight_decay},
        {"params": [parameters[name] for name, chosen in decays.items() if not chosen], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=epsilon, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate from now on, in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
