"""Sums of keys and values under feature maps, in time that is linear in the length."""
