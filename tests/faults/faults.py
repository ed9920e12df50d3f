"""What can happen to a run. Each fault strikes a scene at work, and leaves it to recover by itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.scene import Scene
from tests.program import await_true


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        strike: Makes it happen, and returns once it has.
        restarts: It ends with another run, begun by the fault itself.
        only: `local` or `cluster`, where the other has no such thing.
    """

    name: str
    strike: Callable[[Scene], None]
    restarts: bool = False
    only: str | None = None


def kill_run(scene: Scene) -> None:
    scene.run.kill()
    scene.pause(0, 2)
    scene.start()


def kill_worker(scene: Scene) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        _one(scene, scene.workers).kill()


def pause_worker(scene: Scene) -> None:
    with _paused([_one(scene, scene.workers)]):
        scene.pause(1, 4)


def kill_executor(scene: Scene) -> None:
    assert scene.cluster is not None
    _one(scene, scene.cluster.executors).kill()


def freeze_machine(scene: Scene) -> None:
    """A machine of the cluster hangs inside a target transaction; its work is done elsewhere, then it wakes up."""
    assert scene.cluster is not None
    with psycopg.connect(scene.target_url) as somebody:
        somebody.execute("LOCK TABLE journal IN SHARE MODE")
        # Its parents are the daemon that started it, the executor, and what stands for the machine: Spark's worker.
        machine = scene.waiting_worker().parents()[2]
        with _paused([machine, *machine.children(recursive=True)]):
            somebody.rollback()
            scene.await_recovery()


def end_session_at_target(scene: Scene) -> None:
    _end_session(scene, scene.target)


def end_session_at_source(scene: Scene) -> None:
    _end_session(scene, scene.source)


def crash_target_by_backend(scene: Scene) -> None:
    _crash_by_backend(scene, scene.target)


def crash_source_by_backend(scene: Scene) -> None:
    _crash_by_backend(scene, scene.source)


def crash_target(scene: Scene) -> None:
    _crash(scene, scene.target)


def crash_source(scene: Scene) -> None:
    _crash(scene, scene.source)


def cut_copy_to_target(scene: Scene) -> None:
    scene.target_proxy.arm("in")
    assert scene.target_proxy.await_cut(), "nothing was copied"


def cut_copy_from_source(scene: Scene) -> None:
    scene.source_proxy.arm("out")
    assert scene.source_proxy.await_cut(), "nothing was copied"


def stall_network(scene: Scene) -> None:
    with scene.source_proxy.stalled(), scene.target_proxy.stalled():
        scene.pause(1, 4)


def drop_connections(scene: Scene) -> None:
    scene.source_proxy.drop()
    scene.target_proxy.drop()


def lose_connections(scene: Scene) -> None:
    """The servers still hold sessions whose clients are gone, and no word of that reaches them."""
    scene.source_proxy.lose()
    scene.target_proxy.lose()


def start_second(scene: Scene) -> None:
    second = scene.program("run")
    assert second.code == 3, second.err
    assert "is running already" in second.err
    assert scene.run.is_alive


def take_over(scene: Scene) -> None:
    """A run is suspended whole, its hold on the target ends, another takes over, and the first one wakes up."""
    zombie = scene.run
    with _paused(scene.processes()):
        # What happens to a machine that is out of reach for long enough.
        _end_sessions(scene.target, scene.sessions(scene.target, "faults ledger"))
        scene.start()
        scene.await_recovery()
    assert zombie.wait() == 3, zombie.said
    last = zombie.said.strip().splitlines()[-1]
    assert "is running already" in last or "has taken over" in last, zombie.said
    assert "Traceback" not in zombie.said


FAULTS: Sequence[Fault] = (
    Fault("run killed", kill_run, restarts=True),
    Fault("worker killed", kill_worker),
    Fault("worker paused", pause_worker, only="local"),
    Fault("executor killed", kill_executor, only="cluster"),
    Fault("machine frozen", freeze_machine, only="cluster"),
    Fault("session ended at the target", end_session_at_target),
    Fault("session ended at the source", end_session_at_source),
    Fault("target's backend killed", crash_target_by_backend),
    Fault("source's backend killed", crash_source_by_backend),
    Fault("target crashed", crash_target),
    Fault("source crashed", crash_source),
    Fault("cut inside COPY to target", cut_copy_to_target),
    Fault("cut inside COPY from source", cut_copy_from_source),
    Fault("network stalled", stall_network),
    Fault("connections dropped", drop_connections),
    Fault("connections lost", lose_connections),
    Fault("second run started", start_second),
    Fault("suspended, taken over, woken", take_over, restarts=True, only="local"),
)


_MUCH = 1_500
"""Transactions per second that are too many, and not so many that a slow machine never sees the end of them."""


def strike(scene: Scene, fault: Fault, *scripts: str, rate: int = 300, backlog: bool = False) -> None:
    """Have a fault strike at a random moment under load, and see that all is well in the end.

    Args:
        backlog: More is written than can be applied meanwhile, and the fault strikes while the run catches up.
    """
    scene.load(*scripts, rate=_MUCH if backlog else rate)
    if backlog:
        with scene.source_proxy.stalled():
            scene.pause(3, 4)
    else:
        scene.await_work()
    scene.pause(0, 1)
    fault.strike(scene)
    scene.await_recovery()
    scene.settle()


def faults_for(where: str) -> list[Fault]:
    """The kinds that can happen to a run that is `local` or on a `cluster`."""
    return [fault for fault in FAULTS if fault.only in (None, where)]


def _one(scene: Scene, processes: Callable[[], Sequence[psutil.Process]]) -> psutil.Process:
    """One of them, as soon as there are any."""
    await_true(lambda: bool(processes()))
    return scene.chance.choice(processes())


@contextlib.contextmanager
def _paused(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Suspend processes while the block runs."""
    for process in processes:
        _signal(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            _signal(process, signal.SIGCONT)


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _end_session(scene: Scene, server: EmbeddedPostgres) -> None:
    await_true(lambda: bool(scene.sessions(server)))
    _end_sessions(server, [scene.chance.choice(scene.sessions(server))])


def _end_sessions(server: EmbeddedPostgres, pids: Sequence[int]) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [pids])


def _crash_by_backend(scene: Scene, server: EmbeddedPostgres) -> None:
    """Kill one backend; the server ends all the others and recovers."""
    await_true(lambda: bool(scene.sessions(server)))
    with psycopg.connect(server.url(), autocommit=True) as other:
        os.kill(scene.chance.choice(scene.sessions(server)), signal.SIGKILL)
        # Until the server notices that a backend is gone, it seems to have recovered already.
        await_true(lambda: not _answers(other))


def _answers(session: psycopg.Connection[Any]) -> bool:
    try:
        session.execute("SELECT")
    except psycopg.OperationalError:
        return False
    return True


def _crash(scene: Scene, server: EmbeddedPostgres) -> None:
    server.kill()
    scene.pause(0, 3)
    server.start()
