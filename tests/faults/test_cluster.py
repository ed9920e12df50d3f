"""The same stories on a Spark standalone cluster of two workers, one of whose executors is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.cluster import Cluster
from tests.faults.pgbench import Load, assert_exact, load_tables
from tests.lab import Lab
from tests.program import Program, await_true


@pytest.mark.soak
def test_on_a_cluster_a_killed_executor_loses_and_doubles_nothing(
    lab: Lab, source_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    load_tables(source_server, lab.source.info.dbname, scale=2)
    program = Program(tmp_path, lab.source_url, lab.target_url, name="cluster")
    with Cluster(tmp_path) as cluster:
        with (tmp_path / "pipeline.yaml").open("a") as file:
            file.write(f'spark:\n  master: "{cluster.url}"\n  spark.executor.memory: 512m\n')
        assert program("setup").code == 0
        with program.start("run") as run, Load(source_server, lab.source.info.dbname):
            run.await_line("following")
            for _ in range(2):
                before = history(lab)
                await_true(lambda before=before: history(lab) > before + 100, 90, lambda: run.said)
                assert cluster.executors()
                cluster.executors()[0].kill()
            before = history(lab)
            await_true(lambda: history(lab) > before + 100, 90, lambda: run.said)
            assert run.end() == 0, run.said
        ended = program("run", "--until-caught-up", "--json")
        assert ended.code == 0, ended.err
        assert (ended.json["conflicts"], ended.json["errors"]) == (0, 0)
        assert_exact(lab.source, lab.target)
        assert program("verify").code == 0


def history(lab: Lab) -> int:
    row = lab.target.execute("SELECT count(*) FROM pgbench_history").fetchone()
    assert row is not None
    return int(row[0])
