"""One fault after the other strikes a run under load: nothing is lost, doubled or torn, and nobody has to help."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.cluster import QUICK_TO_NOTICE, Cluster
from tests.faults.faults import faults_for, strike
from tests.faults.scene import SETTINGS, Scene

Servers = tuple[EmbeddedPostgres, EmbeddedPostgres]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers of these tests' own, which are crashed."""
    with EmbeddedPostgres(settings=SETTINGS) as source, EmbeddedPostgres(settings=SETTINGS) as target:
        yield source, target


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.rule("A-30")
@pytest.mark.parametrize(
    "most", [pytest.param(6, id="six of them"), pytest.param(None, id="every one", marks=pytest.mark.soak)]
)
def test_faults_lose_double_and_tear_nothing(
    servers: Servers, tmp_path: Path, chance: random.Random, most: int | None
) -> None:
    faults = chance.sample(faults_for("local"), len(faults_for("local")))[:most]
    half = len(faults) // 2
    with Scene(tmp_path, *servers, name="faults", chance=chance) as scene:
        scene.load()
        scene.start()
        for fault in faults[:half]:
            strike(scene, fault)
        scene.stop()
        scene.in_order = True
        scene.start()
        for fault in faults[half:]:
            strike(scene, fault)
        strike(scene, next(fault for fault in faults_for("local") if not fault.restarts), backlog=True)
        scene.stop()
        assert scene.program("verify").code == 0


@pytest.mark.soak
def test_on_a_cluster_too(servers: Servers, tmp_path: Path, chance: random.Random) -> None:
    with (
        Cluster(tmp_path) as cluster,
        Scene(tmp_path, *servers, name="cluster", chance=chance, cluster=cluster, spark=QUICK_TO_NOTICE) as scene,
    ):
        scene.load()
        scene.start()
        for fault in faults_for("cluster"):
            if fault.only == "cluster":
                strike(scene, fault)
        scene.stop()
