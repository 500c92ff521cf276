"""Token stores are built here, by several processes: `build`. `regard_lab.tasks.token_store` reads them."""

from regard_lab.tasks.token_store import Amount, TokenStore
from regard_lab.tokens.build import build

__all__ = ["Amount", "TokenStore", "build"]
