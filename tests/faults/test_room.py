"""Disks that fill up: the run says so in one line, and goes on once there is room."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.room import SmallDisk, can_mount, no_large_files, refusing_to_grow, tablespace_on
from tests.faults.scene import SETTINGS, Scene

SMALL_DISK, ERRORS = "small disk", "errors as of one"
WAYS = [SMALL_DISK, pytest.param(ERRORS, marks=pytest.mark.soak)] if can_mount() else [ERRORS]

Fill = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    with EmbeddedPostgres(settings=SETTINGS) as source, EmbeddedPostgres(settings=SETTINGS) as target:
        yield source, target


@contextmanager
def scene_with_little_room(
    way: str, folder: Path, servers: tuple[EmbeddedPostgres, EmbeddedPostgres]
) -> Iterator[tuple[Scene, Fill, Fill]]:
    """Yields the scene, what fills the target's disk, and what fills Spark's."""
    with ExitStack() as stack:
        if way == ERRORS:
            scene = stack.enter_context(Scene(folder, *servers, name="errors", chance=random.Random()))
            yield (
                scene,
                lambda: refusing_to_grow(scene.target_url, "journal"),
                lambda: no_large_files(scene.processes(), most_bytes=1 << 12),
            )
            return
        of_target = stack.enter_context(SmallDisk(megabytes=400))
        of_spark = stack.enter_context(SmallDisk(megabytes=64))
        tablespace_on(of_target, servers[1].url(), "small", owner=servers[1].hba.stat().st_uid)
        settings = {"spark.local.dir": str(of_spark.folder)}
        scene = stack.enter_context(
            Scene(folder, *servers, name="small", chance=random.Random(), spark=settings, target_tablespace="small")
        )
        yield scene, of_target.full, of_spark.full


@pytest.mark.parametrize("way", WAYS)
def test_a_run_without_room_says_so_and_goes_on_once_there_is_some(
    way: str, servers: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path
) -> None:
    with scene_with_little_room(way, tmp_path, servers) as (scene, fill_target, fill_spark):
        scene.load()
        scene.start()
        scene.await_work()
        with fill_target():
            scene.run.await_line("trying again")
            assert "No space left on device" in last_line(scene)
        scene.await_recovery()
        scene.settle()

        # What a run that begins, or begins again, hands to the workers, it writes to Spark's disk.
        scene.load()
        with fill_spark():
            scene.target_proxy.drop()
            scene.run.await_line("cannot hand work to Spark")
            assert any(reason in last_line(scene) for reason in ("No space left on device", "File too large"))
        scene.await_recovery()
        scene.settle()
        scene.stop()


def last_line(scene: Scene) -> str:
    return scene.run.said.strip().splitlines()[-1]
