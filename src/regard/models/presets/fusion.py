"""Two views of one thing, fused by an attention vector."""

from regard.models.encoder_config import EncoderConfig
from regard.models.fusion_config import FusionConfig


def fusion(
    *,
    input_dim: int = 49,
    modalities: int = 2,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    mlp_dim: int | None = None,
    max_length: int = 64,
    hidden: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> FusionConfig:
    """Views of an image as squares of 7 x 7 pixels: a small pre-norm encoder for each, learned positions, mean pooling.

    The fusion is the published one; its encoders are ours, since it prescribes none. Encoders over tokens, or of
    different kinds, make a `FusionConfig` as well.

    Args:
        input_dim: width of the vectors of every modality.
        modalities: number of them.
        dim, layers, heads, mlp_dim, max_length: of every encoder.
        hidden: width of the network that scores a modality.
        dropout, seed: of everything; every encoder draws weights of its own.

    Example:
        >>> len(fusion(modalities=3).encoders)
        3

    Source: Yang et al. 2016, equations 5 to 7, over modalities.
    """
    return FusionConfig(
        encoders=tuple(
            EncoderConfig(
                vocab_size=0,
                input_dim=input_dim,
                dim=dim,
                layers=layers,
                heads=heads,
                mlp_dim=mlp_dim,
                position="learned",
                pooling="mean",
                max_length=max_length,
                dropout=dropout,
                seed=seed * modalities + at,
            )
            for at in range(modalities)
        ),
        hidden=hidden,
        dropout=dropout,
        seed=seed,
    )
