"""How many examples a property test looks at."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> int:
    """As many in `make soak`, and half of them in `make test`, where others have their minutes, too."""
    return max(1, most // 2) if settings().derandomize else most
