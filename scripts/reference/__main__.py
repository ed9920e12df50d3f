"""Write every page, or part of one, that is made from the code."""

from __future__ import annotations

from scripts.reference import command_page, message_page, settings_page


def main() -> None:
    """Write them."""
    settings_page.PAGE.write_text(settings_page.page(), encoding="utf-8")
    text = command_page.PAGE.read_text(encoding="utf-8")
    command_page.PAGE.write_text(command_page.page(text), encoding="utf-8")
    message_page.PAGE.write_text(message_page.page(), encoding="utf-8")


main()
