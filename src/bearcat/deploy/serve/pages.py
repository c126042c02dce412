"""The two pages of a server, each in one file that asks nobody but this server for anything.

`/` is page.html. `/docs` is written here from the OpenAPI schema: FastAPI's own documentation page loads its script and
style from elsewhere, which a plant's network does not reach and which our Content-Security-Policy forbids. Styles and
scripts inside a page are allowed by their hashes, so that nothing a file is called can ever run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Page:
    text: str
    policy: str  # its Content-Security-Policy


@cache
def main_page() -> Page:
    return _with_policy(files("bearcat.deploy.serve").joinpath("page.html").read_text(encoding="utf-8"))


def docs_page(schema: Mapping[str, Any]) -> Page:
    """The OpenAPI schema for people: what can be asked, with which parameters, and what comes back."""
    (style,) = re.findall(r"<style>(.*?)</style>", main_page().text, re.DOTALL)
    parts = [
        _operation(path, method, told, schema)
        for path, operations in schema["paths"].items()
        for method, told in operations.items()
    ]
    info = schema["info"]
    return _with_policy(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(info['title'])}: interface</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><p class="mark">bearcat</p><h1>Interface</h1><p class="subtitle">{escape(info["description"])}</p>'
        '<p class="subtitle"><a href="/">The page</a> · <a href="/openapi.json">The same as OpenAPI</a></p></header>\n'
        f"<main>{''.join(parts)}</main>\n</body>\n</html>\n"
    )


def _operation(path: str, method: str, told: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    rows = [
        (one["name"], _kind(one["schema"]), one.get("description") or one["schema"].get("description", ""))
        for one in told.get("parameters", ())
    ]
    bodies = [
        (kind, _kind(one["schema"]), one["schema"].get("description", ""))
        for kind, one in told.get("requestBody", {}).get("content", {}).items()
    ]
    answers = [
        (status, _answer_kind(one, schema), one.get("description", "")) for status, one in told["responses"].items()
    ]
    tables = "".join(
        f"<h3>{title}</h3>{_table(found)}"
        for title, found in (("Parameters of the address", rows), ("Body", bodies), ("Answers", answers))
        if found
    )
    said = escape(told.get("description", ""))
    return f'<section class="card"><h2><code>{method.upper()} {escape(path)}</code></h2><p>{said}</p>{tables}</section>'


def _kind(one: Mapping[str, Any]) -> str:
    kinds = [_kind(part) for part in one.get("anyOf", ()) if part.get("type") != "null"]
    if kinds:
        return " or ".join(kinds)
    if "enum" in one:
        return ", ".join(map(str, one["enum"]))
    if one.get("type") == "array":
        return f"list of {_kind(one['items'])}"
    return "binary" if one.get("format") == "binary" else str(one.get("type", "object"))


def _answer_kind(one: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The fields of what comes back, or its content type."""
    content = one.get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    fields = schema.get("components", {}).get("schemas", {}).get(reference.rpartition("/")[2], {}).get("properties", {})
    return ", ".join(fields) or ", ".join(content)


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(told)}</td></tr>"
        for name, kind, told in rows
    )
    return f'<div class="scroll"><table class="plain"><tbody>{lines}</tbody></table></div>'


def _with_policy(text: str) -> Page:
    def sources(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found)
        return " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"

    return Page(
        text,
        f"{CLOSED}; connect-src 'self'; img-src data:; style-src {sources('style')}; script-src {sources('script')}",
    )
