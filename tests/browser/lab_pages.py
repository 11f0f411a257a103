"""What the fixtures of the browser tests give."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Lab:
    """A running JupyterLab: ``url`` opens the lesson, with the token; ``folder`` is what it serves."""

    url: str
    folder: Path

    @property
    def origin(self) -> str:
        found = re.match(r"https?://[^/]+", self.url)
        assert found
        return found.group()


@dataclass
class Watched:
    """A page, and what it asked of the network that is not its server's."""

    page: Page
    stray: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def choose_theme(page: Page, theme: str) -> None:
    """Choose a theme by its name, in the menu of JupyterLab or of Notebook."""
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu-item", has_text="Theme").first.click()
    page.locator(".lm-Menu-itemLabel", has_text=theme).filter(has_not_text="High").click()
