"""Token stores are built here, by several processes: `build`. `regard.tasks.token_store` reads them."""

from regard.tasks.token_store import Amount, TokenStore
from regard.tokens.build import build

__all__ = ["Amount", "TokenStore", "build"]
