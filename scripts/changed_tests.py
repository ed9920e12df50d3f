"""Run the tests of what changed since main, the nearest first, for a minute and a half.

A test is as far from a change as imports are between them: the test itself changed, it imports what changed, it imports
a module that does. What there is no time for is counted at the end; `make test` runs everything.

    changed_tests.py [--base BRANCH] [--seconds N] [--list] [pytest's options]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"src/penstock": "penstock", "tests": "tests", "bench": "bench"}


class Budget:
    """Begins no further test once the time is over, and counts those that have not run."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._ended = 0
        self.left = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Have pytest stop behind a test where the time is over."""
        ran = yield
        self._ended += 1
        if time.monotonic() > self._end:
            self.left = item.session.testscollected - self._ended
        if self.left:
            item.session.shouldstop = f"the time is over, and {self.left} tests have not run: make test runs them"
        return ran


def main() -> int:
    """Run them; returns what pytest does, and 0 where only the time ended them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="main", help="what changed since this branch left it")
    parser.add_argument("--seconds", type=float, default=90, help="how long tests may begin")
    parser.add_argument("--list", action="store_true", help="say which files, and run none")
    given, options = parser.parse_known_args()
    changed = changed_files(given.base)
    files = nearest_tests(changed, importers())
    print(f"{len(changed)} files changed since {given.base}, {len(files)} test files import them")
    if given.list or not files:
        print("\n".join(files))
        return 0
    budget = Budget(given.seconds)
    code = pytest.main(["-q", "--maxfail=5", *options, *files], plugins=[budget])
    return 0 if code == pytest.ExitCode.INTERRUPTED and budget.left else int(code)


def changed_files(base: str) -> list[str]:
    """The files that were changed, added or deleted since `base`, committed or not; paths below the root."""
    try:
        fork = _git("merge-base", base, "HEAD")[0]
    except subprocess.CalledProcessError as exc:
        raise SystemExit(f"changed_tests: there is no branch or commit {base!r}; name another one by --base") from exc
    return sorted({*_git("diff", "--name-only", fork), *_git("ls-files", "--others", "--exclude-standard")})


def importers() -> dict[str, set[str]]:
    """The modules that import each module of ours, by names."""
    import grimp

    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    graph = grimp.build_graph(*SOURCES.values())
    return {module: graph.find_modules_that_directly_import(module) for module in graph.modules}


def nearest_tests(changed: Iterable[str], importers: dict[str, set[str]]) -> list[str]:
    """The test files that a change may touch, the nearest first; of those as near, the one that imports least."""
    imports = Counter(one for found in importers.values() for one in found)
    reached = {module for file in changed for module in _modules(file, importers)}
    found, layer = [], reached
    while layer:
        tests = [module for module in layer if module.rpartition(".")[2].startswith("test_")]
        found += [_file(module) for module in sorted(tests, key=lambda module: (imports[module], module))]
        layer = {one for module in layer for one in importers.get(module, ())} - reached
        reached |= layer
    return [file for file in found if (ROOT / file).is_file()]


def _modules(file: str, importers: Iterable[str]) -> list[str]:
    """The modules that a file is, or belongs to."""
    for folder, package in SOURCES.items():
        path = Path(file)
        if path.is_relative_to(folder):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            module = ".".join(part for part in parts if part != "__init__")
            # Of SQL and data, the modules of its folder are what reads them.
            around = ".".join(parts[:-1])
            return [module] if path.suffix == ".py" else [one for one in importers if one.rpartition(".")[0] == around]
    return ["tests.test_docs"] if file.endswith(".md") else ["tests.test_package"]


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _git(*words: str) -> list[str]:
    told = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return told.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
