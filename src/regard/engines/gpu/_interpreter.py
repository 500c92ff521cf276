"""Whether Triton interprets its kernels instead of compiling them; needs no triton."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
