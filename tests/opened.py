"""A page in a headless Chromium, with what it said and whom it asked."""

from __future__ import annotations


class Opened:
    """`forbidden` is a pattern of addresses that it is not given."""

    def __init__(self, browser, address: str, forbidden=None, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        if forbidden is not None:
            self.context.route(forbidden, lambda route: route.abort())
        self.page.goto(address)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.context.close()
