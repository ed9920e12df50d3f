"""How much memory a run takes over time, process by process, and whether it grows."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import psutil

from tests.faults.watching import Watcher

WARM_UP_S = 60.0
"""What a process takes in its first minute it takes for good: modules, compiled code, a heap at its working size."""

_LEAST_S = 30.0
_EVERY_S = 2.0

Samples = list[tuple[float, float]]
"""Seconds since a process was first seen, and megabytes."""


@dataclass
class Memory:
    """Samples of the processes that had the same role."""

    by_process: dict[int, Samples] = field(default_factory=lambda: defaultdict(list))

    def add(self, pid: int, seconds: float, megabytes: float) -> None:
        self.by_process[pid].append((seconds, megabytes))

    @property
    def begin(self) -> float | None:
        """What the first process took that was there for longer than the warm-up."""
        return next((samples[0][1] for samples in self._warm()), None)

    @property
    def end(self) -> float:
        """What the last process took in the end."""
        return list(self.by_process.values())[-1][-1][1]

    @property
    def most(self) -> float:
        return max(megabytes for samples in self.by_process.values() for _, megabytes in samples)

    @property
    def seconds(self) -> float:
        """Over how much time of all processes together the slope is taken."""
        return sum(samples[-1][0] - samples[0][0] for samples in self._warm())

    @property
    def slope(self) -> tuple[float, float] | None:
        """Megabytes per hour of one process, and the standard error; None where none lived for long enough.

        The lines of all processes have one slope, and each its own beginning: so a restart is neither growth nor
        shrinkage.
        """
        times, sizes = [], []
        for samples in self._warm():
            t, mb = np.array(samples).T
            times.append(t - t.mean())
            sizes.append(mb - mb.mean())
        if not times:
            return None
        t, mb = np.concatenate(times), np.concatenate(sizes)
        slope = (t @ mb) / (t @ t)
        left = mb - slope * t
        error = np.sqrt((left @ left) / max(1, len(t) - len(times) - 1) / (t @ t))
        return float(slope) * 3600, float(error) * 3600

    def _warm(self) -> list[Samples]:
        warm = [[s for s in samples if s[0] >= WARM_UP_S] for samples in self.by_process.values()]
        return [samples for samples in warm if samples and samples[-1][0] - samples[0][0] >= _LEAST_S]


class Sampler(Watcher):
    """Looks at processes every few seconds while the block runs."""

    def __init__(self, processes: Callable[[], Iterable[tuple[str, psutil.Process]]]) -> None:
        """`processes` names those there are now, with their roles."""
        super().__init__("memory")
        self._processes = processes
        self._first_seen: dict[int, float] = {}
        self.roles: dict[str, Memory] = defaultdict(Memory)

    def watch(self, ended: threading.Event) -> None:
        """Take a sample of every process, again and again."""
        while not ended.wait(_EVERY_S):
            for role, process in self._processes():
                try:
                    megabytes = process.memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue
                if megabytes > 0:
                    began = self._first_seen.setdefault(process.pid, time.monotonic())
                    self.roles[role].add(process.pid, time.monotonic() - began, megabytes)


def rows(roles: Mapping[str, Memory]) -> list[list[str]]:
    """A row per role: name, processes, begin, most, end, slope, over how many minutes."""
    found = []
    for role, memory in sorted(roles.items()):
        slope = memory.slope
        grows = "too short" if slope is None else f"{slope[0]:+.0f} ± {slope[1]:.0f}"
        begin = "" if memory.begin is None else f"{memory.begin:.0f}"
        found.append(
            [
                role,
                str(len(memory.by_process)),
                begin,
                f"{memory.most:.0f}",
                f"{memory.end:.0f}",
                grows,
                f"{memory.seconds / 60:.1f}",
            ]
        )
    return found
