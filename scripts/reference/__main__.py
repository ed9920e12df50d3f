"""Write every page, or part of one, that is made from the code."""

from __future__ import annotations

from scripts.reference import message_page


def main() -> None:
    """Write them."""
    message_page.PAGE.write_text(message_page.page(), encoding="utf-8")


main()
