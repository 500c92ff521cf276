"""The projections that random feature maps take."""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.core.errors import ConfigError

__all__ = ["draw_projection"]


def draw_projection(
    rows: int,
    dim: int,
    generator: torch.Generator,
    *,
    orthogonal: bool = True,
    norms: str = "chi",
) -> Float[Tensor, "rows dim"]:
    """Random directions for the random maps: rows ~ N(0, I), independent or orthogonal in blocks of `dim`.

    Each row keeps the law N(0, I) under "chi" (norms drawn as those of Gaussian vectors), so estimates stay unbiased;
    "sqrt" fixes every norm to sqrt(dim): less variance, another kernel. Orthogonal rows lower the variance.

    Args:
        rows, dim: the shape.
        generator: the only source of randomness; used on the CPU, in float64.
        orthogonal: blocks of `dim` rows are mutually orthogonal (the last block may be smaller).
        norms: lengths of the rows: "chi" or "sqrt".

    Returns:
        (rows, dim) in the default dtype.

    Raises:
        ConfigError: unknown `norms`.

    Example:
        >>> w = draw_projection(4, 4, torch.Generator().manual_seed(0), norms="sqrt")
        >>> bool(torch.allclose(w @ w.T, 4 * torch.eye(4), atol=1e-5))
        True

    Source: Choromanski et al. 2021, section 2.4 and appendix B.
    """
    if norms not in ("chi", "sqrt"):
        raise ConfigError(f"draw_projection: norms must be 'chi' or 'sqrt', got {norms!r}")

    gaussian = partial(torch.randn, generator=generator, dtype=torch.float64)
    if orthogonal:
        basis, upper = torch.linalg.qr(gaussian(-(-rows // dim), dim, dim))
        # the signs make the bases Haar-distributed (Mezzadri 2007); LAPACK fixes them otherwise
        directions = (basis * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.flatten(0, 1)[:rows]
    else:
        directions = F.normalize(gaussian(rows, dim), dim=-1)
    lengths = gaussian(rows, dim).norm(dim=-1, keepdim=True) if norms == "chi" else dim**0.5
    return (directions * lengths).to(torch.get_default_dtype())
