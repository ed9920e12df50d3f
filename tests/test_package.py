"""The package as people install it: a wheel with all it needs, a command that is quick to ask for help."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock import __version__
from tests.lab import Lab
from tests.program import Program
from tests.test_docs import links

ROOT = Path(__file__).parents[1]


def python(*arguments: str, folder: Path = ROOT, path: Path | None = None) -> str:
    """Run this Python; with `path`, only the package that is there."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "80"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel unpacked, as an installer does."""
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_all_that_is_no_python(installed: Path) -> None:
    sources = ROOT / "src/penstock"
    # What Python compiles meanwhile has other names until it is whole.
    files = [p.relative_to(sources) for p in sources.rglob("*") if p.suffix not in ("", ".py")]
    data = {str(file) for file in files if "__pycache__" not in file.parts}
    there = {str(p.relative_to(installed / "penstock")) for p in (installed / "penstock").rglob("*")}
    assert any(name.endswith(".sql") for name in data)
    assert data | {"pipeline.schema.json"} <= there
    (metadata,) = installed.glob("*.dist-info/METADATA")
    assert f"Version: {__version__}" in metadata.read_text()
    assert "Classifier: " in metadata.read_text()


def test_the_description_leads_nowhere_that_is_not_there(installed: Path) -> None:
    """Package indexes show it away from the folder that README.md is in."""
    (metadata,) = installed.glob("*.dist-info/METADATA")
    head, _, description = metadata.read_text(encoding="utf-8").partition("\n\n")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Description-Content-Type: text/markdown" in head
    assert links(readme)
    assert links(description) == []
    assert [name for name in links(readme) if Path(name).suffix == ".md" and f"`{name}`" not in description] == []
    assert "The files named here are in the source distribution" in description
    assert description.count("\n#") == readme.count("\n#")
    assert description.count("```") == readme.count("```")


def test_an_installed_wheel_is_a_command(installed: Path, lab: Lab, tmp_path: Path) -> None:
    where = python("-c", "import penstock; print(penstock.__file__)", folder=tmp_path, path=installed)
    assert where.startswith(str(installed))
    assert python("-m", "penstock", "--version", folder=tmp_path, path=installed) == f"penstock {__version__}\n"
    program = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    command = [sys.executable, "-m", "penstock"]
    planned = program("plan", command=command, env={"PYTHONPATH": str(installed)})
    assert planned.code == 0, planned.err
    assert "tables to capture: 1" in planned.out


def test_asking_for_help_imports_neither_spark_nor_arrow_nor_drivers() -> None:
    heavy = python(
        "-c", "import sys, penstock.cli.main; print({'pyspark', 'pyarrow', 'numpy', 'psycopg'} & set(sys.modules))"
    )
    assert heavy == "set()\n"


def test_the_shell_can_complete() -> None:
    assert "--install-completion" in python("-m", "penstock", "--help")


def test_what_the_docs_print_for_python_runs(lab: Lab, tmp_path: Path) -> None:
    lab.source.execute("CREATE TABLE account (id int PRIMARY KEY, balance numeric(8, 2))")
    lab.source.execute("INSERT INTO account VALUES (1, 100)")
    program = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)
    example, retrying = re.findall(r"```python[^\n]*\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
    done = program("-c", example, command=[sys.executable])
    assert done.code == 0, done.err
    assert done.out.endswith("True\n")
    assert "INFO:penstock:following" in done.err
    lab.assert_identical("account")

    lab.target.execute("UPDATE account SET balance = 90")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO account VALUES (2, 5)")
        lab.source.execute("UPDATE account SET balance = 80 WHERE id = 1")
    assert program("run", "--until-caught-up").code == 5
    (entry,) = lab.errors()
    opened = 'import penstock\npipeline = penstock.open("pipeline.yaml")\n'
    tried = program("-c", opened + retrying.replace("shop.12", entry.id), command=[sys.executable])
    assert (tried.code, tried.out) == (0, f"{entry.id} would apply None\n"), tried.err


def test_commands_start_without_what_only_tasks_need() -> None:
    """Pandas alone takes a fifth of the imports."""
    loaded = python("-c", "import sys, penstock.wiring; print({'pandas', 'duckdb', 'py4j'} & sys.modules.keys())")

    assert loaded.strip() in ("set()", "{'py4j'}")
