"""Weights off their initial values."""

import torch


def moved(module, *, seed: int = 9):
    """In float64, in evaluation, with weights off their initial values: the gain of a norm is not 1, no bias is 0."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
    return module.double().eval()
