"""Other libraries and other people's weights. Nothing above imports this package at module level."""
