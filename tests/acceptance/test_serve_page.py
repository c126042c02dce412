"""The page of `bearcat serve` in a real browser, and its schema asked by schemathesis."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.opened import Opened
from tests.test_serve import LENGTH, RATE, Server, as_npy, machine, noise


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Server]:
    """Without a model."""
    running = Server(tmp_path_factory.mktemp("alone"))
    yield running
    assert running.stop() == 0
    assert running.logged() == ""


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
        worst = articles.nth(0).inner_text()
        assert expected["line"] in worst
        assert f"{expected['state']}, confidence {100 * expected['confidence']:.1f} %" in worst
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


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # schemathesis leaves sockets of refused bodies open
def test_the_schema_says_what_the_server_does(alone):
    """Requests made of the schema, right ones and wrong ones: no 500, and only what the schema announces."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    schema = schemathesis.openapi.from_dict(alone.client.get("/openapi.json").json())
    schema.config.update(base_url=alone.url)
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    requests = 0
    for path, method, count in (("/predict", "POST", 20), ("/model", "GET", 2), ("/health", "GET", 2)):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                cases = schema[path][method].as_strategy(generation_mode=mode)

                @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
                @given(case=cases)
                def ask(case):
                    nonlocal requests
                    requests += 1
                    case.validate_response(case.call(), checks=checks)

                ask()
            except Exception as error:
                if type(error).__name__ != "Unsatisfiable":  # a GET without parameters cannot be asked wrongly
                    raise
    gc.collect()  # those sockets, while nobody minds
    assert requests > 30
