"""A page in a headless Chromium, with what it said and whom it asked."""

from __future__ import annotations

import re
from pathlib import Path


class Opened:
    """A page in a file is given nothing from outside. Pages without `options` share a window, for a window takes longer
    to open than a page; nothing that our pages do outlives them."""

    def __init__(self, browser, address: str | Path, **options) -> None:
        if not options and not browser.contexts:
            browser.new_context().new_page()  # with its last page, a window would close
        self.context = browser.new_context(**options) if options else browser.contexts[0]
        self.page, self.owned = self.context.new_page(), bool(options)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        if isinstance(address, Path):
            self.page.route(re.compile("^(?!file:|data:)"), lambda route: route.abort())
        self.page.goto(address.as_uri() if isinstance(address, Path) else address)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.page.close()
        if self.owned:
            self.context.close()
