"""The LLaMA decoder."""

from regard.models.config import ModelConfig


def llama(
    *,
    vocab_size: int = 32000,
    dim: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    mlp_dim: int | None = None,
    max_length: int = 2048,
    seed: int = 0,
) -> ModelConfig:
    """LLaMA 7B: RMSNorm before every branch, rotary positions, SwiGLU, no bias terms, separate output layer.

    The other published sizes are (dim, layers, heads) = (5120, 40, 40), (6656, 60, 52), (8192, 80, 64).

    Args:
        vocab_size, dim, layers, heads, kv_heads, max_length, seed: as `ModelConfig`.
        mlp_dim: width of the gated unit; None: the published rule, 8/3 dim rounded up to a multiple of 256.

    Example:
        >>> llama().mlp_width
        11008

    Source: Touvron et al. 2023, section 2.2 and table 2; grouped `kv_heads` as in LLaMA 2 (Touvron et al. 2023b).
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        attention=("softmax",),
        position="rotary(layout=halves)",
        mlp="swiglu",
        mlp_dim=-(-8 * dim // (3 * 256)) * 256 if mlp_dim is None else mlp_dim,
        norm="pre",
        norm_kind="rms",
        max_length=max_length,
        tied=False,
        bias=False,
        seed=seed,
    )
