"""Looks that run side by side, each in a thread of its own and for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.examination import Finding, Severity


@dataclass
class Look:
    """One thing to look at.

    Attributes:
        name: The stable name of its findings.
        where: What it looks at; named where it does not answer in time.
        ask: Returns what was found; a `PenstockError` that it raises is a fault.
    """

    name: str
    where: str
    ask: Callable[[], Iterable[Finding]]
    findings: list[Finding] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Ask, and keep what was found, and what was in the way; as it comes, for whoever waits no longer."""
        try:
            for finding in self.ask():
                self.findings.append(finding)
        except PenstockError as exc:
            self.findings.append(Finding.of(self.name, exc))
        except Exception as exc:
            # One look that fails must not hide the others, and the text of an unforeseen error may hold a value.
            what = f"this look failed: {type(exc).__name__}"
            do = "report it, with `penstock doctor --bundle report.zip`"
            self.findings.append(Finding(Severity.WARNING, self.name, what, self.where, do))
        finally:
            self.is_over.set()


def look_side_by_side(looks: Sequence[Look], *, timeout_s: float) -> list[Finding]:
    """Run all looks at once; returns their findings in the order of the looks, each finding once.

    A look that is not over in time is a warning. Its thread goes on, and does not keep the program from ending.

    Args:
        timeout_s: How long to wait for the slowest of them.
    """
    deadline = time.monotonic() + timeout_s
    for look in looks:
        threading.Thread(target=look.run, name=f"look at {look.name}", daemon=True).start()
    found: dict[tuple[str, ...], Finding] = {}
    for look in looks:
        is_over = look.is_over.wait(max(0.0, deadline - time.monotonic()))
        findings = list(look.findings)
        if not is_over:
            what = f"no answer within {timeout_s:.0f} s"
            do = "see whether it is overloaded or a firewall is between, or give it longer with --timeout"
            findings.append(Finding(Severity.WARNING, look.name, what, look.where, do))
        for one in findings:
            # A server that is out of reach is met by several looks.
            found.setdefault((one.what, one.where, one.do), one)
    return list(found.values())
