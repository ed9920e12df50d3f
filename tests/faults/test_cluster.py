"""The same stories on a Spark standalone cluster of two workers, one of whose executors is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.cluster import SPARK, Cluster
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


@pytest.mark.soak
def test_the_cluster_may_be_named_to_run_or_to_spark_submit(lab: Lab, tmp_path: Path) -> None:
    """What docs/cluster.md prints."""
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 1000)")
    program = Program(tmp_path, lab.source_url, lab.target_url, name="shop")
    with (tmp_path / "pipeline.yaml").open("a") as file:
        file.write("spark:\n  spark.executor.memory: 512m\n")
    program.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "run_penstock.py").write_text("from penstock.cli.main import main\n\nmain()\n")
    assert program("setup").code == 0
    with Cluster(tmp_path, workers=1) as cluster:
        done = program("run", "--master", cluster.url, "--until-caught-up")
        assert done.code == 0, done.err
        await_true(lambda: cluster.applications() == ["penstock shop"], 30)
        lab.source.execute("UPDATE t SET id = id + 1000")
        submit = [str(SPARK / "bin" / "spark-submit"), "--master", cluster.url, "run_penstock.py"]
        done = program("run", "--until-caught-up", command=submit)
        assert done.code == 0, done
        assert "caught up: 1 transaction, 1,000 changes" in done.out
        await_true(lambda: cluster.applications() == ["penstock shop"] * 2, 30)
        with program.start("run", command=submit) as run:
            run.await_line("following")
            lab.source.execute("DELETE FROM t WHERE id < 1500")
            await_true(lambda: program("verify").code == 0)
            assert run.end() == 143, run.said
            # What spark-submit started is gone with it.
            again = program("run", "--until-caught-up")
            assert again.code == 0, again.err + run.said
    assert lab.target.execute("SELECT count(*), min(id) FROM t").fetchone() == (501, 1500)


def history(lab: Lab) -> int:
    row = lab.target.execute("SELECT count(*) FROM pgbench_history").fetchone()
    assert row is not None
    return int(row[0])
