"""The page of watched machines in a real browser, and from a server."""

# ruff: noqa: F811 (fixtures of another module)
from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bearcat.report.fleet import write_fleet_page
from bearcat.watch.store import Store
from tests.opened import Opened
from tests.test_fleet_page import plant  # noqa: F401 (a fixture)
from tests.test_serve import Server


@pytest.fixture(scope="module")
def page(plant: Path) -> Path:
    with Store.open(plant) as store:
        write_fleet_page(store, plant.with_name("fleet.html"))
    return plant.with_name("fleet.html")


def shown(page) -> list[str]:
    """The machines and points of the rows that are visible."""
    return page.locator("#points tr:visible td.name").all_inner_texts()


def test_it_asks_nobody_and_is_filtered_and_sorted_by_keyboard(browser, page: Path):
    with Opened(browser, page) as opened:
        assert opened.errors == []
        assert [request for request in opened.requests if not request.startswith(("file:", "data:"))] == []
        tab = opened.page
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.id") == "find"
        tab.keyboard.type("pump 14 far")
        assert shown(tab) == ["pump 14 far end"]
        assert "1 of 30" in tab.locator("#matches").inner_text()
        tab.locator("#find").fill("")
        tab.keyboard.press("Tab")
        tab.keyboard.press("Space")
        assert len(shown(tab)) == 28, "alarms are hidden"
        tab.keyboard.press("Space")
        heading = tab.locator(".points th button", has_text="machine and point")
        heading.focus()
        tab.keyboard.press("Enter")
        assert shown(tab)[:3] == ["pump 0 drive end", "pump 0 far end", "pump 1 drive end"]
        status = tab.locator(".points th button", has_text="status")
        status.press("Enter")
        assert tab.locator("#points tr").first.get_attribute("data-status") == "alarm"


def test_it_fits_a_phone(browser, page: Path):
    with Opened(browser, page, viewport={"width": 360, "height": 740}) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
        opened.page.locator("#order").select_option("1")
        assert shown(opened.page)[0].startswith("pump 0")
        sizes = opened.page.eval_on_selector_all(
            ".plot svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
        )
        assert all(200 < size <= 360 for size in sizes)


def test_the_page_is_served_without_a_model_and_leads_to_its_machines(browser, plant: Path, tmp_path: Path):
    running = Server(tmp_path, "--store", plant)
    base = f"http://{running.place.netloc}"
    assert httpx.get(f"{base}/fleet").text.count('<tr role="row" class=') == 30
    assert httpx.get(f"{base}/model").json()["decision"] is None, "recordings are diagnosed too"
    with Opened(browser, f"{base}/fleet") as tab:
        assert shown(tab.page)[0] == "pump 2 drive end"
        tab.page.locator("#points a").first.press("Enter")
        tab.page.locator("section.point").first.wait_for()
        assert tab.page.locator("section.point").count() == 2
        assert tab.page.locator(".plot svg").first.bounding_box()["width"] > 200, "its style is allowed"
        assert tab.errors == []
        assert all(httpx.URL(request).host in ("127.0.0.1", "") for request in tab.requests)
    running.stop()
