"""Every query against every key that it may see, by other scores and normalisers."""

from regard.attention.dense._base import Dense, masked_logits, real_keys, reference_softmax, remember

__all__ = ["Dense", "masked_logits", "real_keys", "reference_softmax", "remember"]
