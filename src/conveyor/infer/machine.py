"""How busy this machine is with other work (a measurement made under load must not be remembered)."""

import os

import psutil

QUIET_SHARE = 0.1
"""The machine counts as quiet when others used at most this share of its cores (and at most half a core)."""


class OtherWork:
    """Measures the CPU time that other processes used while the body of a `with` statement ran."""

    def __enter__(self) -> "OtherWork":
        self._busy, self._own = busy_seconds(), _own_seconds()
        self._clock = os.times().elapsed
        return self

    def __exit__(self, *_: object) -> None:
        elapsed = max(os.times().elapsed - self._clock, 1e-3)
        others = (busy_seconds() - self._busy) - (_own_seconds() - self._own)
        self.others = max(others, 0.0) / elapsed

    others: float = 0.0
    """Cores used by other processes on average."""

    @property
    def quiet(self) -> bool:
        return is_quiet(self.others, os.cpu_count() or 1)


def is_quiet(others: float, cores: int) -> bool:
    """Whether a measurement can be trusted while other processes use `others` cores."""
    return others <= min(max(QUIET_SHARE * cores, 0.1), 0.5)


def busy_seconds() -> float:
    """Processor seconds that all programs together have used since the machine started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Guest time is already part of user time.
    return float(sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
