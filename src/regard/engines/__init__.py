"""How averages are computed: by tiles, by sums, by routes, by rows, on a GPU. What is averaged: `regard.attention`."""

from regard.engines import gpu as gpu  # registers its kernels
