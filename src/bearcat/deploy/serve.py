"""`bearcat serve`: diagnoses over HTTP, and a page to drop recordings on (docs/deploy.md).

FastAPI and uvicorn as they are, for one machine; a reverse proxy keeps strangers out. Recordings are raw bodies rather
than multipart forms: they go from the socket into a temporary file, and browsers ask before they send such bodies
elsewhere. Workers are threads, one for each core.

>>> serve(Path("out/model"), ServeRequest(port=8000))  # until SIGTERM or Ctrl-C; None: without a model
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from urllib.parse import urlsplit

from bearcat import __version__
from bearcat.data.bearing import BEARINGS
from bearcat.data.isolated import open_upload
from bearcat.data.recording import Floats
from bearcat.data.signals import TooLargeError
from bearcat.data.stream import FORMATS
from bearcat.deploy.diagnose import diagnose
from bearcat.deploy.find import FoundRecording, FoundUnit, Given, alone
from bearcat.deploy.opened import Predictor, open_model
from bearcat.diagnosis.lines import FAULTS
from bearcat.diagnosis.physics import STATES
from bearcat.diagnosis.recording import AlarmRule, Diagnosis
from bearcat.errors import InputError, to_json
from bearcat.report.figures import draw_evidence
from bearcat.requests import DiagnoseRequest, ServeRequest

try:
    import uvicorn
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
    from pydantic import BaseModel, ConfigDict, Field, create_model
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise InputError("serving needs an extra; pip install 'bearcat[serve]'") from error

GRACE = 5  # seconds beyond a request's time, after which a shutdown no longer waits for it
EXPANSION = 8  # a recording may unpack to so many times max_bytes; reading it may take twice that
NOT_A_NAME = "must be a plain file name, without / or \\"  # pydantic would show the regular expression
CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "Content-Security-Policy": CLOSED,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ABOUT = "Diagnoses recordings of bearings: send one, and read the decision and what it rests on."

Pages = Callable[[str | None], str]  # a machine's name → its page; None: the page of all machines


class Upload(BaseModel):
    """What a client says of a recording; PredictQuery adds the fields of DiagnoseRequest that hold for one."""

    model_config = ConfigDict(extra="forbid")

    filename: str = Field(
        max_length=255, pattern=r"^[^\x00-\x1f\x7f/\\]+$", examples=["monday.wav"],
        description="The recording's name; its ending says the format (csv, tsv, txt, npy, npz, mat, wav, h5, flac).",
    )  # fmt: skip
    picture: bool = Field(
        False, description="Draw the evidence too: `picture` of the answer is a PNG as a data: address."
    )

    def given(self, rule: AlarmRule) -> Given:
        """What it says of the recording; InputError where a field is wrong."""
        asked = DiagnoseRequest.of(**self.model_dump(exclude={"filename", "picture"}))
        try:
            return replace(Given.of(asked), rule=rule)
        except InputError as error:
            raise InputError(str(error), error.field or "bearing") from error


if TYPE_CHECKING:
    PredictQuery = Upload
else:
    SAID = ("rate", "rpm", "bearing", "channel", "trust_speed", "unit", "group", "mounting")
    TEXT = Annotated[str, Field(max_length=255)] | None
    KINDS = {
        name: TEXT if kind in (Any, str | None) else kind for name, kind in get_type_hints(DiagnoseRequest).items()
    }
    PredictQuery = create_model("PredictQuery", __base__=Upload, **{
        field.name: (KINDS[field.name], Field(field.default, description=field.metadata["help"]))
        for field in fields(DiagnoseRequest) if field.name in SAID
    })  # fmt: skip


@dataclass(frozen=True)
class Served:
    """The model, and what counts as an alarm of it; without a model, fault lines and the general model answer."""

    model: Predictor | None
    rule: AlarmRule

    def answer(self, path: Path, query: Upload, until: float, most: int) -> dict[str, Any]:
        """The diagnosis of an uploaded recording as `bearcat diagnose --format json` has it; `path` is never shown."""
        origin = query.filename
        with open_upload(path, query.given(self.rule).channel, origin, until, most) as stream:
            stream = replace(stream, blocks=_timed(stream.blocks, until))
            measurement = alone(FoundRecording(lambda: stream, origin, channel=stream.channel))
            unit = FoundUnit(origin, partial(list, [measurement]))
            (found,) = diagnose([unit], self.model, given=query.given(self.rule))
        if (problem := found.problem) is not None and (self.model or problem.field not in ("rpm", "bearing")):
            raise problem
        answer = {name: value for name, value in found.to_dict().items() if name != "drawing"}
        return answer | {"picture": _picture(found) if query.picture else None}

    def describe(self, limits: dict[str, int | float]) -> dict[str, Any]:
        """What the model takes and distinguishes, what to do with it, and what this server accepts."""
        described: dict[str, Any] = {
            "formats": list(FORMATS), "bearings": list(BEARINGS), "limits": limits, "bearcat": __version__,
            "pictures": find_spec("matplotlib") is not None, "decision": None, "classes": list(STATES),
            "alarms": sorted(FAULTS), "preparation": None,
        }  # fmt: skip
        if (model := self.model) is not None:
            described |= {
                "decision": asdict(model.decision) | {"sentence": model.decision.sentence}, "classes": model.classes,
                "alarms": sorted(self.rule.classes), "preparation": asdict(model.preparation),
            }  # fmt: skip
        return described


def _picture(found: Diagnosis) -> str | None:
    """The evidence as a data: address; None where there is nothing to draw, or nothing to draw with."""
    if found.drawing is None or find_spec("matplotlib") is None:
        return None
    return f"data:image/png;base64,{base64.b64encode(draw_evidence(found).render('png')).decode()}"


def _timed(blocks: Iterable[Floats], until: float) -> Iterator[Floats]:
    """The blocks, until the request has no time left."""
    for block in blocks:
        if time.monotonic() > until:
            raise TimeoutError
        yield block


async def _receive(request: Request, path: Path, most: int) -> None:
    """Writes the body to a file; TooLargeError as soon as it is known to be longer than `most` bytes."""
    longer = TooLargeError(f"the body is longer than {most} bytes; send less at once, or cut the recording", "body")
    if int(request.headers.get("content-length", 0)) > most:
        raise longer
    with path.open("xb") as file:
        async for chunk in request.stream():
            file.write(chunk)
            if file.tell() > most:
                raise longer


def _check_head(request: Request, query: Upload, rule: AlarmRule) -> None:
    """InputError for what need not wait for the recording."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream":
        wanted = "a recording as application/octet-stream (its name in the address, ?filename=…)"
        raise InputError(f"send {wanted}", "content-type")
    if Path(query.filename).suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise InputError(f"filename: unknown format; use one of {known}", "filename")
    query.given(rule)


def is_local(host: str) -> bool:
    """Whether a Host header is localhost or a plain address; under another name, a foreign page may have found us."""
    try:
        ipaddress.ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return host.partition(":")[0].lower() in ("localhost", "")
    return True


def is_loopback(host: str) -> bool:
    """Whether this machine alone can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _refuse(status: int, reason: str, field: str | None = None) -> JSONResponse:
    return JSONResponse({"reason": reason, "field": field}, status)


ANSWER = "The diagnosis (docs/record.md), and `picture`."
UPLOADED = "A recording as it is on disk; ?filename=NAME says its format."
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary", "description": UPLOADED}}
        },
    }
}


def page_policy(text: str) -> str:
    """The policy of a page that loads nothing: style and script are allowed by their hashes and nothing else."""

    def digest(tag: str) -> str:
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    sources = f"style-src {digest('style')}; script-src {digest('script')}"
    return f"{CLOSED}; connect-src 'self'; img-src data:; {sources}"


def make_app(served: Served | None, limits: ServeRequest, loopback: bool = True, fleet: Pages | None = None) -> FastAPI:
    """The application: for recordings, for pages of watched machines, or for both."""
    app = FastAPI(title="bearcat serve", version=__version__, description=ABOUT, docs_url=None, redoc_url=None)
    if served is not None:
        _add_recordings(app, served, limits)
    if fleet is not None:
        _add_fleet(app, fleet, first=served is None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server is there."""
        return {"status": "ok"}

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        problem = first["msg"][:1].lower() + first["msg"][1:]  # pydantic's begin sentences
        problem = NOT_A_NAME if first["type"] == "string_pattern_mismatch" else problem
        return _refuse(422, f"{name}: {problem}", name)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if loopback and not is_local(request.headers.get("host", "")):
            response: Response = _refuse(403, "this server answers to localhost and plain addresses alone")
        else:
            response = await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return app


def _add_recordings(app: FastAPI, served: Served, limits: ServeRequest) -> None:
    """The addresses for recordings, and the page to drop them on."""
    description = served.describe({name: getattr(limits, name) for name in ("max_bytes", "timeout", "concurrency")})
    text = files("bearcat.deploy").joinpath("serve.html").read_text(encoding="utf-8")
    policy, workers = page_policy(text), ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="bearcat")

    @app.post("/predict", openapi_extra=BODY, response_description=ANSWER)
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Diagnose a recording."""
        until = time.monotonic() + limits.timeout
        try:
            _check_head(request, query, served.rule)
            with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
                path = Path(folder) / f"upload{Path(query.filename).suffix.lower()}"
                async with asyncio.timeout(limits.timeout):
                    await _receive(request, path, limits.max_bytes)
                    work = partial(served.answer, path, query, until, EXPANSION * limits.max_bytes)
                    answer = await asyncio.get_running_loop().run_in_executor(workers, work)
        except TimeoutError:
            return _refuse(408, f"the request took longer than {limits.timeout:g} s; send less at once")
        except ClientDisconnect:
            return _refuse(499, "the client went away")
        except InputError as error:
            status = 413 if isinstance(error, TooLargeError) else 415 if error.field == "content-type" else 422
            return _refuse(status, str(error), error.field or "file")
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else "its folder is gone"
            return _refuse(507, f"the server cannot store uploads ({reason}); make room in its temporary folder")
        return Response(to_json(answer), media_type="application/json")

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """What the model takes and distinguishes, what to do with it, and what this server accepts."""
        return description

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})


def _add_fleet(app: FastAPI, fleet: Pages, first: bool) -> None:
    """The page of watched machines; `first`: there is no other page."""

    @app.get("/fleet", response_class=HTMLResponse)
    def show_fleet(machine: Annotated[str | None, Query(max_length=1000)] = None) -> Response:
        """The watched machines, worst first, or one of them with its trends, as a page."""
        try:
            text = fleet(machine)
        except InputError as error:
            return _refuse(404 if error.field == "machine" else 503, str(error), error.field)
        return HTMLResponse(text, headers={"Content-Security-Policy": page_policy(text)})

    if first:

        @app.get("/", include_in_schema=False)
        async def forward() -> Response:
            return RedirectResponse("/fleet")


def serve(
    path: Path | None, request: ServeRequest, say: Callable[[str], None] = print,
    warn: Callable[[Predictor], None] = lambda _: None, fleet: Pages | None = None,
) -> None:  # fmt: skip
    """Serves the model, pages of watched machines, or both, until SIGTERM or SIGINT; then finishes what was accepted.

    With neither, recordings are diagnosed by fault lines and the general model. `say` is called with the address once
    connections are taken, `warn` with the model before that.
    """
    if "BEARCAT_TOKEN" in os.environ:  # who set it counts on it
        raise InputError("BEARCAT_TOKEN: was removed; let a reverse proxy ask for a password (docs/deploy.md)")
    served = None
    if path is not None:
        warn(model := open_model(path))
        served = Served(model, AlarmRule.of(model.classes, request.alarm or None))
    elif fleet is None:
        served = Served(None, AlarmRule.of((), request.alarm or None))
    config = uvicorn.Config(
        make_app(served, request, is_loopback(request.host), fleet), http="h11", ws="none", log_level="warning",
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=request.concurrency + 1,
        timeout_graceful_shutdown=int(request.timeout) + GRACE,
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when it has shut down
        signal.signal(number, lambda *_: sys.exit(0))
    with listening(request.host, request.port) as listener:
        host, port = listener.getsockname()[:2]
        say(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        uvicorn.Server(config).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; one sentence where it cannot be had, for which uvicorn would end with status 1."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(place[:2], family=family, backlog=2048)
        # asyncio does this only for sockets it knows to be TCP; without it, answers wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        where = f"--host {host} --port {port}"
        raise InputError(f"{where}: cannot be listened on ({reason}); choose another") from error
