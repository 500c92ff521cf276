"""Files that are written whole or not at all, read with care, and import nothing without consent."""
