"""The two pages of a server, each in one file that loads nothing from anywhere else.

`/` is page.html. `/docs` is made from the OpenAPI schema: FastAPI's own documentation page loads its script and style
from another site, which a plant's network may not reach and which our Content-Security-Policy forbids. Styles and
scripts inside a page are allowed by their hashes, so that nothing in a file's name can ever run.
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
class HtmlPage:
    text: str
    policy: str  # its Content-Security-Policy


@cache
def main_page() -> HtmlPage:
    return _with_policy(files("bearcat.deploy.serve").joinpath("page.html").read_text(encoding="utf-8"))


def docs_page(schema: Mapping[str, Any]) -> HtmlPage:
    """The OpenAPI schema as a page: requests, their parameters and their answers."""
    (style,) = re.findall(r"<style>(.*?)</style>", main_page().text, re.DOTALL)
    sections = "".join(
        f'<section class="card"><h2><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p>{escape(operation.get('description', ''))}</p>{_tables(operation, schema)}</section>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    )
    title, about = escape(schema["info"]["title"]), escape(schema["info"]["description"])
    return _with_policy(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}: interface</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><p class="mark">bearcat</p><h1>Interface</h1><p class="subtitle">{about}</p>'
        '<p class="subtitle"><a href="/">The page</a> · <a href="/openapi.json">The same as OpenAPI</a></p></header>\n'
        f"<main>{sections}</main>\n</body>\n</html>\n"
    )


def _tables(operation: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Parameters, bodies and answers of an operation, each with its kind and its description."""
    parameters = {parameter["name"]: parameter["schema"] for parameter in operation.get("parameters", ())}
    bodies = operation.get("requestBody", {}).get("content", {})
    rows = {
        "Parameters of the address": {name: (_kind(kind), kind) for name, kind in parameters.items()},
        "Body": {name: (_kind(body["schema"]), body["schema"]) for name, body in bodies.items()},
        "Answers": {status: (_fields(answer, schema), answer) for status, answer in operation["responses"].items()},
    }
    html = ""
    for title, table in rows.items():
        lines = "".join(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td>"
            f"<td>{escape(described.get('description', ''))}</td></tr>"
            for name, (kind, described) in table.items()
        )
        if lines:
            html += f'<h3>{title}</h3><div class="scroll"><table class="plain"><tbody>{lines}</tbody></table></div>'
    return html


def _kind(schema: Mapping[str, Any]) -> str:
    kinds = [_kind(part) for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if kinds or "enum" in schema:
        return " or ".join(kinds) or ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return "binary" if schema.get("format") == "binary" else str(schema.get("type", "object"))


def _fields(answer: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The fields of what comes back, or its content type."""
    content = answer.get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    fields = schema.get("components", {}).get("schemas", {}).get(reference.rpartition("/")[2], {}).get("properties", {})
    return ", ".join(fields) or ", ".join(content)


def _with_policy(text: str) -> HtmlPage:
    def hashes(tag: str) -> str:
        digests = (hashlib.sha256(part.encode()).digest() for part in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S))
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests) or "'none'"

    sources = f"style-src {hashes('style')}; script-src {hashes('script')}"
    return HtmlPage(text, f"{CLOSED}; connect-src 'self'; img-src data:; {sources}")
