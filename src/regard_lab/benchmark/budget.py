"""The time of a comparison: how it is shared among jobs, so that all of them together keep to it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass
class Budget:
    """Seconds for everything, of which each job may take its share of what is left.

    A job may take what is left but for what the jobs after it are expected to take; where too little is left for all of
    them, each gets its part of it. Part of a job cannot be stopped, so the most that one overran by is kept free for
    those after it.

    Args:
        seconds: for everything; None: no limit.
        clock: seconds that pass; tests give one of their own.
    """

    seconds: float | None
    clock: Clock = time.perf_counter
    expected: dict[str, float] = field(default_factory=dict)
    """job -> seconds, of those that are left"""

    def __post_init__(self) -> None:
        self.began = self._ended = self.clock()
        self._shares: dict[str, float] = {}
        self._overrun = 0.0

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.began

    def expect(self, jobs: Mapping[str, float]) -> None:
        """What the jobs are expected to take that are to be done from now on."""
        self.expected, self._ended = dict(jobs), self.clock()

    def done(self, job: str) -> None:
        """A job ended, now or in an earlier call. Jobs that run one after another may get their shares together."""
        self.expected.pop(job, None)
        now = self.clock()
        if job in self._shares:
            self._overrun = max(self._overrun, now - self._ended - self._shares.pop(job))
        self._ended = now

    def share(self, job: str) -> float | None:
        """The seconds that a job may take that begins now; None: as many as it likes.

        What another job was given beyond its own, and has not ended with, is given once.
        """
        if self.seconds is None or job not in self.expected:
            return None
        promised = sum(
            max(self._shares[other] - self.expected[other], 0.0)
            for other in self._shares
            if other != job and other in self.expected
        )
        left = max(self.seconds - self.spent - promised, 0.0)
        whole = max(sum(self.expected.values()), 1e-9)
        share = left - whole + self.expected[job] if left > whole else self.expected[job] * left / whole
        self._shares[job] = max(share - self._overrun, 0.0)
        return self._shares[job]
