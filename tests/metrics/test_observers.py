"""Observers of a run hear what its listener hears, and cannot end it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from penstock.apply.listener import RunObserver
from penstock.apply.progress import Progress
from penstock.errors import OperatorError, PenstockError
from penstock.events import Event
from penstock.pipeline.observers import Observed
from penstock.pipeline.report import Report
from penstock.pipeline.running import Run
from penstock.position import Scn


class Heard(RunObserver):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def began(self) -> None:
        self.calls.append("began")

    def warned(self, text: str, event: Event = Event.NOTE, facts: object = None) -> None:
        self.calls.append(f"warned {text}")

    def ended(self) -> None:
        self.calls.append("ended")

    def close(self) -> None:
        self.calls.append("close")

    def finished(self, progress: Progress, *, is_stopped: bool) -> None:
        self.calls.append(f"finished {progress.position} {is_stopped}")

    def failed(self, error: PenstockError) -> None:
        self.calls.append(f"failed {error}")


def run_of(*observers: RunObserver, until_caught_up: bool = True) -> Run:
    listener = Observed(Report(), observers)
    return Run(threading.Event(), listener, until_caught_up=until_caught_up, until=None, publishes=False)


def test_an_observer_hears_how_a_run_begins_and_ends() -> None:
    heard = Heard()
    run_of(heard).carry_out(lambda: Progress(Scn(7)), lambda _: None)
    assert heard.calls == ["began", "ended", "finished 7 False"]

    heard = Heard()
    run = run_of(heard)
    run.stop.set()
    run.carry_out(lambda: Progress(Scn(7)), lambda _: None)
    assert heard.calls[-1] == "finished 7 True"


def test_an_observer_hears_of_an_error_without_what_it_may_hold() -> None:
    heard = Heard()

    def work() -> Progress:
        raise ValueError("a value of a row")

    with pytest.raises(ValueError, match="a value"):
        run_of(heard).carry_out(work, lambda _: None)
    assert heard.calls[:2] == ["began", "close"]
    assert heard.calls[2].startswith("failed an unexpected error ended the run: ValueError")


def test_an_observer_that_fails_ends_nothing_and_hears_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Heard):
        def began(self) -> None:
            super().began()
            raise OSError("a value of a row")

    broken, heard = Broken(), Heard()
    run = run_of(broken, heard)
    run.carry_out(lambda: Progress(Scn(7)), lambda _: None)

    assert broken.calls == ["began"]
    assert heard.calls == ["began", "ended", "finished 7 False"]
    assert caplog.text.count("Broken failed with OSError, and hears no more of this run") == 1
    assert "a value" not in caplog.text


def test_an_error_of_the_listener_is_the_runs() -> None:
    class Broken(Report):
        def warned(self, text: str, event: Event = Event.NOTE, facts: object = None) -> None:
            raise OperatorError("the log is full")

    with pytest.raises(OperatorError, match="the log is full"):
        Observed(Broken(), []).warned("x")


@pytest.mark.parametrize(
    ("module", "lacking", "extra"),
    [
        ("penstock.metrics", "prometheus_client", "web"),
        ("penstock.observe.traces", "opentelemetry", "observe"),
        ("penstock.observe.lineage", "openlineage", "observe"),
    ],
)
def test_without_its_extra_a_feature_says_what_to_install(module: str, lacking: str, extra: str) -> None:
    code = f"import sys; sys.modules[{lacking!r}] = None\nimport {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"needs {lacking}" in done.stderr.replace("need ", "needs ")
    assert f"which is not installed. Pip install 'penstock[{extra}]'" in done.stderr
