"""The site has every page, builds without a warning, and loads nothing from elsewhere."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.pages import build


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a site is made, which is not that of the checkout."""
    monkeypatch.setattr(build, "STAGE", tmp_path / "stage")
    monkeypatch.setattr(build, "SITE", tmp_path / "site")
    return tmp_path / "stage"


def pages_of(menu: Any) -> Iterator[str]:
    if isinstance(menu, str):
        yield menu
    else:
        for each in menu.values() if isinstance(menu, dict) else menu:
            yield from pages_of(each)


def test_each_page_is_in_the_menu_once(stage: Path) -> None:
    build.stage()
    listed = [*pages_of(tomllib.loads((stage / "zensical.toml").read_text())["project"]["nav"])]
    there = [str(page.relative_to(stage / "pages")) for page in (stage / "pages").rglob("*.md")]
    assert sorted(listed) == sorted(there)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(
    stage: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert build.main() == 0
    assert "warning" not in capfd.readouterr().out.lower()
    [site] = (stage.parent / "site").glob("[0-9]*")
    loaded = {
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        for address in re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="?(https?:[^" >]+)', page.read_text()
        )
    }
    assert loaded == set()
    assert "unpkg.com/mermaid" not in next((site / "assets" / "javascripts").glob("bundle.*.js")).read_text()
    assert (site / "search.json").stat().st_size > 100_000
