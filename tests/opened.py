"""A page in a headless Chromium, with the errors it reported and the addresses it asked for."""

from __future__ import annotations

import re
from pathlib import Path


class Opened:
    """An open page in a window with these `options`. A page in a file gets nothing from outside."""

    def __init__(self, browser, address: str | Path, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        if isinstance(address, Path):
            self.page.route(re.compile("^(?!file:|data:)"), lambda route: route.abort())
        self.page.goto(address.as_uri() if isinstance(address, Path) else address)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.context.close()
