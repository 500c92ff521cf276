"""How far a long job has come, for the terminal."""

import sys
import time


class Ticking:
    """Says on stderr how many there are, every ten seconds, while something takes longer."""

    def __init__(self, what: str) -> None:
        self.what, self.said = what, time.monotonic()

    def __call__(self, count: int) -> None:
        """Report how many there are, at most every ten seconds."""
        if (now := time.monotonic()) >= self.said + 10:
            self.said = now
            print(f"{count:,} {self.what}", file=sys.stderr, flush=True)
