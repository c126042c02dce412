"""`bearcat serve`: diagnoses over HTTP, and a page to drop recordings on (docs/deploy.md).

FastAPI and uvicorn as they are, for one machine or a trusted network; a reverse proxy keeps strangers out. Recordings
are raw bodies rather than multipart forms: they go from the socket into a temporary file, and browsers ask before they
send such bodies elsewhere. Workers are threads, one for each core.

>>> serve(Path("out/model"), ServeRequest(port=8000))  # until SIGTERM or Ctrl-C; None: without a model
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import itertools
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
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
from bearcat.deploy.diagnose import Given, diagnose
from bearcat.deploy.find import FoundRecording, FoundUnit, alone
from bearcat.deploy.opened import open_model
from bearcat.deploy.predictor import Predictor
from bearcat.diagnosis.physics import FAULTS, STATES
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
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import ClientDisconnect
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise InputError("serving needs an extra; pip install 'bearcat[serve]'") from error

GRACE = 5  # seconds beyond a request's time, after which a shutdown no longer waits for it
CONNECTIONS = 256  # beyond the requests that are answered; uvicorn answers 503 to others
HEAD_BYTES = 2**14  # of the head of a request, with its address
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
REMOVED = {  # parameters of earlier versions
    "view": "was removed; picture=true draws the evidence",
    "by": "was removed; the answer is on the recording",
}

Pages = Callable[[str | None], str]  # a machine's name → its page; None: the page of all machines


def is_loopback(host: str) -> bool:
    """Whether this machine alone can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


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
        _check_time(until)
        with open_upload(path, query.given(self.rule).channel, origin, until, most) as stream:
            stream = replace(stream, blocks=_timed(stream.blocks, until))
            measurement = alone(FoundRecording(lambda: stream, origin, channel=stream.channel))
            unit = FoundUnit(origin, lambda: iter([measurement]))
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


def _check_time(until: float) -> None:
    """TimeoutError where the request has no time left."""
    if time.monotonic() > until:
        raise TimeoutError


def _timed(blocks: Iterable[Floats], until: float) -> Iterator[Floats]:
    """The blocks, until the request has no time left."""
    for block in blocks:
        _check_time(until)
        yield block


class PredictionService:
    """Receives recordings and hands them to workers."""

    def __init__(self, served: Served, limits: ServeRequest) -> None:
        self.served, self.limits = served, limits
        self.accepted, self.numbers = 0, itertools.count()

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        with (
            tempfile.TemporaryDirectory(prefix="bearcat-") as folder,
            ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="bearcat") as self.workers,
        ):
            self.folder = Path(folder)
            yield

    async def answer(self, request: Request, query: Upload) -> Response:
        """The answer as JSON, or a refusal."""
        if self.accepted >= self.limits.concurrency:
            busy = f"the server is busy with {self.accepted} requests; try again in a second"
            return _refuse(429, busy, headers={"Retry-After": "1"})
        self.accepted += 1
        until = time.monotonic() + self.limits.timeout
        path = self.folder / f"{next(self.numbers)}{Path(query.filename).suffix.lower()}"
        try:
            async with asyncio.timeout(self.limits.timeout):
                await self._receive(request, query, path)
                work = partial(self.served.answer, path, query, until, EXPANSION * self.limits.max_bytes)
                answer = await asyncio.get_running_loop().run_in_executor(self.workers, work)
        except TimeoutError:
            slow = f"the request took longer than {self.limits.timeout:g} s; send less at once"
            return _refuse(408, slow, headers={"Connection": "close"})
        except ClientDisconnect:
            return _refuse(499, "the client went away")
        except InputError as error:
            status = 413 if isinstance(error, TooLargeError) else 415 if error.field == "content-type" else 422
            return _refuse(status, str(error), error.field or "file")
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else "its folder is gone"
            return _refuse(507, f"the server cannot store uploads ({reason}); make room in its temporary folder")
        finally:
            self.accepted -= 1
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return Response(to_json(answer), media_type="application/json")

    async def _receive(self, request: Request, query: Upload, path: Path) -> None:
        """Writes the body to a file, once all is checked that can be without reading it."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/octet-stream":
            wanted = "a recording as application/octet-stream (its name in the address, ?filename=…)"
            raise InputError(f"send {wanted}", "content-type")
        if path.suffix not in FORMATS:
            known = ", ".join(FORMATS)
            raise InputError(f"filename: unknown format '{path.suffix}'; use one of {known}", "filename")
        query.given(self.served.rule)  # a wrong one need not wait for the recording
        with path.open("xb") as file:
            async for chunk in self._bounded(request, self.limits.max_bytes):
                file.write(chunk)

    async def _bounded(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """The body's chunks; 413 as soon as it is known to be longer than `most`."""
        longer = TooLargeError(f"the body is longer than {most} bytes; send less at once, or cut the recording", "body")
        if int(request.headers.get("content-length", 0)) > most:
            raise longer
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received > most:
                raise longer
            yield chunk


class AccessMiddleware:
    """Around every request: who may ask, and the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str | None, loopback: bool) -> None:
        self.app, self.token, self.loopback = app, token, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self.token is None:
            if not self.loopback or _is_local(headers.get("host", "")):
                return None
            local = "this server answers to localhost and addresses alone; start it with a token to use other names"
            return _refuse(403, local)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":  # how browsers send a password
            given = _password(given)
        if scope["path"] == "/health" or secrets.compare_digest(given.strip().encode(), self.token.encode()):
            return None
        reason = "this server wants its token, as the header Authorization: Bearer TOKEN, or as a password"
        asked = 'Basic realm="bearcat: any name, the token as password", charset="UTF-8"'
        return _refuse(401, reason, "authorization", {"WWW-Authenticate": asked})


def _password(credentials: str) -> str:
    """Of HTTP's basic scheme; empty where there is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _is_local(host: str) -> bool:
    """Whether a Host header is localhost or a plain address; under another name, a foreign page may have found us."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        ipaddress.ip_address(name)
    except ValueError:
        return host.partition(":")[0].lower() in ("localhost", "")
    return True


def _refuse(status: int, reason: str, field: str | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"reason": reason, "field": field}, status, headers)


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


def make_app(
    served: Served | None,
    limits: ServeRequest,
    token: str | None = None,
    loopback: bool = True,
    fleet: Pages | None = None,
) -> ASGIApp:
    """The whole application, with its middleware: for a model, for pages of watched machines, or for both."""
    service = None if served is None else PredictionService(served, limits)
    app = FastAPI(
        title="bearcat serve", version=__version__, description=ABOUT, docs_url=None, redoc_url=None,
        lifespan=None if service is None else service.running,
    )  # fmt: skip
    if service is not None:
        _add_model(app, service)
    if fleet is not None:
        _add_fleet(app, fleet, first=service is None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server is there; needs no token."""
        return {"status": "ok"}

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        problem = first["msg"][:1].lower() + first["msg"][1:]  # pydantic's begin sentences
        problem = NOT_A_NAME if first["type"] == "string_pattern_mismatch" else REMOVED.get(name, problem)
        return _refuse(422, f"{name}: {problem}", name)

    return AccessMiddleware(app, token, loopback)


def _add_model(app: FastAPI, service: PredictionService) -> None:
    """The addresses of the model, and its page."""
    limits = {name: getattr(service.limits, name) for name in ("max_bytes", "timeout", "concurrency")}
    description = service.served.describe(limits)
    text = files("bearcat.deploy").joinpath("serve.html").read_text(encoding="utf-8")
    policy = page_policy(text)

    @app.post("/predict", openapi_extra=BODY, response_description=ANSWER)
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Diagnose a recording."""
        return await service.answer(request, query)

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
    path: Path | None, request: ServeRequest, token: str | None = None, say: Callable[[str], None] = print,
    warn: Callable[[Predictor], None] = lambda _: None, fleet: Pages | None = None,
) -> None:  # fmt: skip
    """Serves the model, pages of watched machines, or both, until SIGTERM or SIGINT; then finishes what was accepted.

    With neither, recordings are diagnosed by fault lines and the general model. `say` is called with the address once
    the server listens, `warn` with the model before that. Requests must carry the `token`, where there is one.
    """
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        one = "must be one token of printable ASCII, without blanks at its ends; a reverse proxy can accept several"
        raise InputError(f"BEARCAT_TOKEN: {one}")
    served = None
    if path is not None:
        warn(model := open_model(path))
        served = Served(model, AlarmRule.of(model.classes, request.alarm or None))
    elif fleet is None:
        served = Served(None, AlarmRule.of((), request.alarm or None))
    config = uvicorn.Config(
        make_app(served, request, token, is_loopback(request.host), fleet), http="h11", ws="none", log_level="warning",
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=request.concurrency + CONNECTIONS,
        timeout_graceful_shutdown=int(request.timeout) + GRACE, h11_max_incomplete_event_size=HEAD_BYTES,
    )  # fmt: skip
    with listening(request.host, request.port) as listener:
        host, port = listener.getsockname()[:2]

        class Server(uvicorn.Server):
            """Says where it listens once a signal would stop it in order."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    say(f"http://{f'[{host}]' if ':' in host else host}:{port}")

        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when it has shut down
            signal.signal(number, lambda *_: sys.exit(0))
        Server(config).run(sockets=[listener])


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
