"""The notebooks of examples/ run from the first cell to the last, and what they show is what is there.

They take a minute and a half: each starts a server of its own and Spark, as for somebody who opens it.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def played(name: str, folder: Path) -> list[str]:
    """Run a notebook in a folder; the texts that its code cells show, as HTML where there is any."""
    book = nbformat.read(FOLDER / name, as_version=4)
    client = NotebookClient(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    try:
        client.execute()
    finally:
        # A notebook that breaks off has not come to the cell that stops its server.
        for pid in folder.glob("penstock-pg-*/data/postmaster.pid"):
            os.kill(int(pid.read_text().split()[0]), signal.SIGQUIT)
    return ["".join(map(shown, cell.outputs)) for cell in book.cells if cell.cell_type == "code"]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the kernel keeps its server, so that it is found, and which another user may enter; nothing is prepared."""
    with tempfile.TemporaryDirectory(prefix="penstock-notebook-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("PENSTOCK_CACHE", "")
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def shown(output: NotebookNode) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return "<picture>"
    return str(data.get("text/html") or data.get("text/plain") or output.get("text", ""))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_what_it_printed(name: str) -> None:
    book = nbformat.read(FOLDER / name, as_version=4)
    nbformat.validate(book)
    assert [cell for cell in book.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)] == []


@pytest.mark.filterwarnings("ignore")
def test_from_zero_to_a_live_copy(folder: Path) -> None:
    cells = played("from_zero_to_a_live_copy.ipynb", folder)

    text = "\n".join(cells)
    assert "nothing is in the way" in text
    assert "2 copied, 0 to copy" in text
    assert text.count("<picture>") == 2
    assert "True" in cells
    assert re.search(r"\(20, 10000, 0\)", cells[-1])


@pytest.mark.filterwarnings("ignore")
def test_what_changed_and_why(folder: Path) -> None:
    cells = played("what_changed_and_why.ipynb", folder)

    text = "\n".join(cells)
    assert "(3, 1)" in text or "(2, 1)" in text
    assert "customer_pkey" in text
    assert "by hand" in text
    assert "applied" in text
    assert "the error queue is empty" in text
