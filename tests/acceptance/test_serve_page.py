"""The page of `bearcat serve` in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.opened import Opened
from tests.test_serve import LENGTH, RATE, Server, as_npy, machine, noise


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Server]:
    """Without a model."""
    running = Server(tmp_path_factory.mktemp("alone"))
    yield running
    assert running.stop() == []


def drop(opened: Opened, **files: bytes) -> None:
    """As a file manager would."""
    opened.page.evaluate(
        """(files) => {
            const carried = new DataTransfer();
            for (const [name, bytes] of files) carried.items.add(new File([new Uint8Array(bytes)], name));
            document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
        }""",
        [[name, list(content)] for name, content in files.items()],
    )


def test_recordings_dropped_on_the_page_are_listed_worst_first_with_their_evidence(browser, alone):
    attack = "<img src=x onerror=\"document.title='taken'\">.wav"
    expected = alone.upload("bad.wav", machine("outer-1"), rpm=1500, bearing="6203").json()
    with Opened(browser, alone.url) as opened:
        page = opened.page
        page.wait_for_selector('#bearings option[value="6203"]', state="attached")
        page.fill('[name="rpm"]', "1500")
        page.fill('[name="bearing"]', "6203")
        drop(opened, **{attack: machine("healthy"), "bad.wav": machine("outer-1"), "no.wav": b"RIFF"})
        page.locator("#status", has_text="3 diagnosed: 1 alarm, 1 check, 1 ok").wait_for()
        articles = page.locator("article")
        assert [text.split("\n")[0] for text in articles.all_inner_texts()] == [
            "alarm bad.wav", "check no.wav", f"ok {attack}",
        ]  # fmt: skip
        confidence = f"{expected['state']}, confidence {100 * expected['confidence']:.1f} %"
        assert all(text in articles.nth(0).inner_text() for text in (expected["line"], confidence))
        assert page.evaluate("document.querySelector('article img').naturalWidth") > 500
        assert page.title() != "taken"
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 780})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert len(opened.errors) == 1, "the answer of 422 that the browser itself tells of"


def test_errors_are_shown_beside_the_field(browser, alone):
    with Opened(browser, alone.url) as opened:
        page = opened.page
        page.fill('[name="bearing"]', "6205")
        drop(opened, **{"a.npy": as_npy(noise(20 * LENGTH))})
        page.wait_for_selector('[name="rate"][aria-invalid="true"]')
        assert "sampling rate" in page.locator("article").inner_text()
        page.fill('[name="rate"]', str(RATE))
        page.press('[name="rate"]', "Tab")
        page.wait_for_selector("article .diagnosis")
        assert page.locator('[aria-invalid="true"]').count() == 0
