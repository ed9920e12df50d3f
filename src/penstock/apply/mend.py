"""The former name of `penstock.apply.entry_edits`, kept for programs that import it."""

from penstock.apply.entry_edits import by_settings, read_setting

__all__ = ["by_settings", "read_setting"]
