"""The files that people deploy Penstock with: what they name exists, and says what it should."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from penstock.errors import ConfigError, RetryableError
from penstock.pipeline_file import parse
from tests.test_docs import complaint_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/deploy"
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
UNIT = DEPLOY / "penstock@.service"
MANIFESTS = sorted(DEPLOY.glob("kubernetes*.yaml"))


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile, with its lines put together."""
    lines = [line for line in CONTAINERFILE.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined)]


def test_the_image_is_built_from_what_it_copies(tmp_path: Path) -> None:
    for name, rest in instructions():
        if name != "COPY" or rest.startswith("--from"):
            continue
        *sources, target = (word for word in rest.split() if not word.startswith("--"))
        for source in sources:
            if target.startswith("/"):
                assert (ROOT / source).is_file()
            elif (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (tmp_path / target).mkdir(exist_ok=True)
                shutil.copy(ROOT / source, tmp_path / target)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]

    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "dist").glob("penstock-*.whl"))


def test_the_image_runs_as_an_ordinary_user_and_says_whether_it_is_well() -> None:
    found = instructions()
    last_stage = found[max(n for n, (name, _) in enumerate(found) if name == "FROM") :]
    by_name = dict(last_stage)
    assert sum(name == "FROM" for name, _ in found) == 2
    assert by_name["USER"].isdecimal()
    assert int(by_name["USER"]) > 0
    assert f"--uid {by_name['USER']}" in CONTAINERFILE
    check = json.loads(by_name["HEALTHCHECK"].partition("CMD ")[2])
    assert check[:3] == ["penstock", "status", "--json"]
    assert not complaint_of(tuple(check[1:]))
    assert not complaint_of(tuple(json.loads(by_name["CMD"])))
    (module,) = re.findall(r"python -m (penstock[\w.]+)", CONTAINERFILE)
    assert find_spec(module) is not None
    extras = re.findall(r'"\.\[([\w,]+)\]"', CONTAINERFILE)[0].split(",")
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in declared for extra in extras)


def test_the_entry_point_starts_a_command_or_an_executor(tmp_path: Path) -> None:
    for name in ("penstock", "java"):
        (tmp_path / name).write_text(f'#!/bin/bash\necho {name}\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"

    def run(*arguments: str, **more: str) -> list[str]:
        command = ["bash", str(DEPLOY / "entrypoint.sh"), *arguments]
        environment = {"PATH": path, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    assert run("run", "--log-format", "json") == ["penstock", "run", "--log-format", "json"]
    told = {
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_10": "-Dlast=1",
        "SPARK_JAVA_OPT_2": "-Dsecond=1",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://x",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }
    java, *options = run("executor", **told)
    assert java == "java"
    assert options[:5] == ["-Da=b c", "-Dsecond=1", "-Dlast=1", "-Xms1g", "-Xmx1g"]
    jars = Path(pyspark.__file__).parent / "jars"
    assert options[options.index("-cp") + 1] == f"{jars}/*"
    (backend,) = [option for option in options if option.startswith("org.apache.spark")]
    (jar,) = jars.glob("spark-kubernetes_*.jar")
    assert f"{backend.replace('.', '/')}.class" in zipfile.ZipFile(jar).namelist()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Penstock is not installed where the unit says, so a program that is there stands for it."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/penstock/bin/penstock", "/bin/true")

    def complaints(unit: str) -> str:
        path = tmp_path / "penstock@shop.service"
        path.write_text(unit)
        environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
        done = subprocess.run(
            ["systemd-analyze", "verify", str(path)], env=environment, capture_output=True, text=True, check=False
        )
        return "\n".join(line for line in done.stderr.splitlines() if "penstock" in line)

    assert complaints(text) == ""
    assert "Failed to parse time value" in complaints(text.replace("TimeoutStopSec=60", "TimeoutStopSec=soon"))


def test_the_unit_restarts_what_may_pass_and_nothing_else() -> None:
    text = UNIT.read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=/opt/penstock/bin/penstock (.*)$", text, re.M)
    assert not complaint_of(tuple(start.split()))
    assert f"RestartForceExitStatus={RetryableError.exit_code}" in text
    assert f"RestartPreventExitStatus={ConfigError.exit_code}" in text


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_deploys_one_run_of_a_pipeline_file_that_is_one(path: Path) -> None:
    parts: dict[str, Any] = {one["kind"]: one for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))}
    text = parts["ConfigMap"]["data"]["pipeline.yaml"]
    config = parse(text, name=path.name, environment={"SOURCE_PASSWORD": "x", "TARGET_PASSWORD": "y"})
    spec = parts["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"--uid {pod['securityContext']['runAsUser']}" in CONTAINERFILE
    # What was begun is finished within 20 seconds.
    assert pod["terminationGracePeriodSeconds"] > 20
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        assert not complaint_of(tuple(container["args"]))
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["envFrom"] == [{"secretRef": {"name": "penstock-shop"}}]
    (run,) = pod["containers"]
    assert not complaint_of(tuple(run["readinessProbe"]["exec"]["command"][1:]))
    assert "livenessProbe" not in run
    if config.spark:
        settings = config.spark_settings
        assert settings["spark.master"].startswith("k8s://")
        assert settings["spark.kubernetes.container.image"] == run["image"]
        ports = {int(settings["spark.driver.port"]), int(settings["spark.driver.blockManager.port"])}
        assert ports == {one["port"] for one in parts["Service"]["spec"]["ports"]}
        assert ports == {one["containerPort"] for one in run["ports"]}
        assert settings["spark.driver.host"] == parts["Service"]["metadata"]["name"]
        assert pod["serviceAccountName"] == parts["ServiceAccount"]["metadata"]["name"]


def test_both_ways_are_shown() -> None:
    assert [path.name for path in MANIFESTS] == ["kubernetes-spark.yaml", "kubernetes.yaml"]
