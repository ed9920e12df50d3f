"""Which Java there is, and whether Spark can run on it. Imports nothing of Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from penstock.errors import OperatorError

_NEEDED_JAVA = 17


def check_java() -> str:
    """Make sure that a Java which Spark can run on is found; returns its version and where it is.

    Raises:
        OperatorError: None is installed, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"install a Java {_NEEDED_JAVA} runtime (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    advice += "macOS: brew install openjdk@17), or point JAVA_HOME at one"
    try:
        found = subprocess.run([java or "java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as exc:
        raise OperatorError("no Java found, and Spark runs on it", where=home or "PATH", do=advice) from exc
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)', found)
    if version is None or int(version.group(2)) < _NEEDED_JAVA:
        which = version.group(2) if version else "of an unknown version"
        raise OperatorError(f"Java {which} is too old for Spark", where=java or "", do=advice)
    return f"Java {version.group(1)} ({java})"
