"""The server's application: its addresses, access to them, and limits on simultaneous requests.

A request of /predict takes one of `concurrency` places before a byte of its body is read (else 429). Workers are
threads, of which as many compute at a time as there are cores, and one for another client (fair.py); onnxruntime
computes without Python's lock. A place is free again when its worker has stopped, not when its client was answered 408,
so that late work cannot pile up. Recordings are raw bodies rather than multipart forms: they go from the socket into a
private file, and browsers ask before they send such bodies elsewhere.

>>> app = make_app(Served(model, AlarmRule.of(model.classes)), Limits(), Clients())
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bearcat import __version__
from bearcat.data.isolated import Readers
from bearcat.data.signals import TooLargeError
from bearcat.data.stream import FORMATS
from bearcat.deploy.serve.answer import Answer, GivenWindows, PredictQuery, Served, field_error
from bearcat.deploy.serve.fair import RISKY, ClientReaders, Clients, Place, Places, ReaderPools
from bearcat.deploy.serve.uploads import UploadError, UploadFolder, storing
from bearcat.deploy.turns import Turn, Turns
from bearcat.errors import InputError

MOST_JSON = 2**24  # bytes; numbers as text become Python objects before they are an array
EXPANSION = 8  # a recording may unpack to so many times max_bytes
PATIENCE, SLOWEST = 5.0, 1024  # a body has these seconds, and one more for so many bytes that have come
MOST_FIELDS = 32  # of a query, before it is parsed
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
NOT_A_NAME = "must be a plain file name, without / or \\"  # pydantic would show the regular expression
OPEN_PATHS = {"/health", "/"}  # without a token: the page holds nothing, and what it asks for carries the token
PATHS = {"/", "/predict", "/model", "/fleet", "/health", "/metrics", "/openapi.json"}
CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "Content-Security-Policy": CLOSED,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ABOUT = "Diagnoses recordings of bearings: send one, or windows of it, and read the decision and what it rests on."

Pages = Callable[[str | None], str]  # a machine's name → its page; None: the page of all machines

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for each counter, which is not needed


@dataclass(frozen=True)
class Limits:
    max_bytes: int = 64 * 2**20
    timeout: float = 30.0  # seconds
    concurrency: int = 64

    def __post_init__(self) -> None:
        if self.max_bytes < 1024:
            raise InputError(f"--max-bytes: must be 1024 at least, not {self.max_bytes}")
        if not 0 < self.timeout <= 86_400:
            raise InputError(f"--timeout: must be a number of seconds above 0, up to a day, not {self.timeout:g}")
        if self.concurrency < 1:
            raise InputError(f"--concurrency: must be 1 at least, not {self.concurrency}")


class SlowBodyError(TimeoutError):
    """A body that comes too slowly to keep its place."""


class Refusal(BaseModel):
    """Why there is no answer."""

    reason: str = Field(description="One sentence.")
    field: str | None = Field(None, description="The parameter or field it is about.")


class Metrics:
    """Counters of this server alone; their names get the ending _total."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.requests = counter("bearcat_requests", "Requests answered, by path and status.", ["path", "status"])
        self.recordings = counter("bearcat_recordings", "Recordings, or sets of windows, by class.", ["class"])
        self.decisions = counter("bearcat_decisions", "The same, by decision.", ["decision"])
        self.windows = counter("bearcat_windows", "Windows diagnosed.")
        self.unfamiliar = counter("bearcat_unfamiliar", "Recordings unfamiliar to the model.")
        self.seconds = Histogram(
            "bearcat_request_seconds", "Seconds from a request's head to its answer.", ["path"],
            buckets=BOUNDS, registry=self.registry,
        )  # fmt: skip
        self.in_flight = gauge("bearcat_requests_in_flight", "Requests being answered.")
        self.accepted = gauge("bearcat_predictions_in_flight", "Recordings being received, waiting or computed.")

    def count(self, answer: Answer) -> None:
        self.recordings.labels(**{"class": answer.label or answer.state}).inc()
        self.decisions.labels(decision=answer.decision).inc()
        self.windows.inc(answer.windows or 0)
        self.unfamiliar.inc(answer.familiar is False)


class PredictionService:
    """Receives recordings and windows and hands them to workers."""

    def __init__(self, served: Served, limits: Limits, metrics: Metrics, clients: Clients) -> None:
        self.served, self.limits, self.metrics, self.clients = served, limits, metrics, clients
        self.places = Places(limits.concurrency)  # of requests being received, waiting or computed
        self.cores = min(os.cpu_count() or 1, limits.concurrency)
        self.turns = Turns(self.cores + 1, self.cores)  # one is always another client's

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        with (
            UploadFolder() as self.uploads,
            ThreadPoolExecutor(2 * self.limits.concurrency, thread_name_prefix="bearcat") as self.workers,
        ):
            self.readers = ReaderPools(Readers(RISKY, EXPANSION * self.limits.max_bytes), self.cores)
            yield

    async def answer(self, request: Request, query: PredictQuery) -> Response:
        """The answer as JSON, or a refusal; the place is kept until nothing of the request runs any more.

        Refusals are values here: an exception in a future refers to frames that refer to the future, with all the
        request has sent.
        """
        client = self.clients.of(request.client.host if request.client else "", request.scope["headers"])
        timer = asyncio.timeout(self.limits.timeout)
        place = self.places.take(client, timer)
        if place is None:
            return self._busy()
        self.metrics.accepted.set(len(self.places))
        job: asyncio.Future[Answer | Response] | None = None
        deadline = Turn(time.monotonic() + self.limits.timeout, self.turns, client)
        try:
            async with timer:
                work = partial(self._worked, await self._receive(request, query, deadline), query, deadline)
                job = asyncio.get_running_loop().run_in_executor(self.workers, work)
                await _done(job, request)
            answer = job.result()
        except Exception as error:
            deadline.until = 0
            return self._busy() if place.lost else self._refusal_of(error, query, job is not None)
        finally:
            place.timer = None
            if job is None or job.done():
                self._leave(place, job)
            else:
                job.add_done_callback(partial(self._leave, place))
            del job
        if isinstance(answer, Response):
            return answer
        self.metrics.count(answer)
        return Response(answer.model_dump_json(by_alias=True), media_type="application/json")

    def _worked(self, work: Callable[[], Answer], query: PredictQuery, turn: Turn) -> Answer | Response:
        try:
            return work()
        except Exception as error:
            return self._refusal_of(error, query, True)
        finally:
            turn.give()

    def _busy(self) -> Response:
        busy = f"the server is busy with {self.limits.concurrency} requests; try again in a second"
        return _refuse(429, busy, headers={"Retry-After": "1"})

    def _refusal_of(self, error: Exception, query: PredictQuery, received: bool) -> Response:
        """The answer to an error of the request's; any other is raised again."""
        if isinstance(error, TimeoutError):
            slow = "the answer took" if received else "the request's body took"
            reason = f"{slow} longer than {self.limits.timeout:g} s; send less at once"
            if isinstance(error, SlowBodyError):
                reason = f"the request's body came slower than {SLOWEST} bytes a second; send it faster"
            return _refuse(408, reason, headers={"Connection": "close"})
        if isinstance(error, UploadError):
            return _refuse(507, str(error), headers={"Retry-After": "60"})
        if isinstance(error, ClientDisconnect):
            return _refuse(499, "the client went away")
        if isinstance(error, InputError):
            status = 413 if isinstance(error, TooLargeError) else 415 if error.field == "content-type" else 422
            return _refuse(status, str(error), error.field or ("file" if query.filename else "body"))
        raise error

    def _leave(self, place: Place, job: asyncio.Future[Answer | Response] | None) -> None:
        if job is not None and not job.cancelled():
            job.exception()  # retrieved, since the client of this job was answered 408 already
        self.places.leave(place)
        self.metrics.accepted.set(len(self.places))

    async def _receive(self, request: Request, query: PredictQuery, deadline: Turn) -> Callable[[], Answer]:
        """The body, checked as far as can be without reading it, and what is to be done with it."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            for name in query.model_fields_set - {"by", "rpm", "bearing"}:
                raise field_error(name, "is for uploaded recordings; leave it out of the address of windows")
            content = bytearray()
            async for chunk in self._bounded(request, min(self.limits.max_bytes, MOST_JSON)):
                content += chunk
            return partial(self.served.answer_windows, bytes(content), query, deadline)
        if kind != "application/octet-stream":
            wanted = "a recording as application/octet-stream (its name in the address, ?filename=…)"
            raise InputError(f"send {wanted}, or windows as application/json", "content-type")
        return partial(self._answer_upload, await self._store_upload(request, query), query, deadline)

    async def _store_upload(self, request: Request, query: PredictQuery) -> Path:
        if query.filename is None:
            raise field_error("filename", "is missing; add ?filename=NAME to the address, for it says the format")
        suffix = Path(query.filename).suffix.lower()
        if suffix not in FORMATS:
            raise field_error("filename", f"unknown format '{suffix}'; use one of {', '.join(FORMATS)}")
        query.geometry()  # a wrong one need not wait for the recording
        path, file = self.uploads.create(suffix)
        try:
            async for chunk in self._bounded(request, self.limits.max_bytes):
                with storing():
                    file.write(chunk)
            with storing():
                file.close()
        except BaseException:
            with suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)
            raise
        return path

    def _answer_upload(self, path: Path, query: PredictQuery, deadline: Turn) -> Answer:
        try:
            return self.served.answer_file(ClientReaders(self.readers, deadline), path, query, deadline)
        finally:
            path.unlink(missing_ok=True)

    async def _bounded(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """The body's chunks; 413 as soon as it is known to be longer than `most`."""
        size = int(request.headers.get("content-length", 0))
        stream, received, patience = request.stream(), 0, asyncio.get_running_loop().time() + PATIENCE
        while size <= most:
            try:
                async with asyncio.timeout_at(patience + received / SLOWEST):
                    chunk = await anext(stream, None)
            except TimeoutError as error:
                raise SlowBodyError from error
            if chunk is None:
                break
            received += len(chunk)
            size = max(size, received)
            if size <= most:
                yield chunk
        if size > most:
            sentence = f"the body is longer than {most} bytes; send less at once, or cut the recording"
            raise TooLargeError(sentence, "body")


async def _done(job: asyncio.Future[Any], request: Request) -> None:
    """Waits until the job is done; ClientDisconnect where the client goes away before, within a second."""
    while not (await asyncio.wait([job], timeout=1.0))[0]:
        if await request.is_disconnected():
            raise ClientDisconnect


class AccessMiddleware:
    """Around every request: who may ask, the headers of every answer, counts and times."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clients: Clients, loopback: bool) -> None:
        self.app, self.metrics, self.clients, self.loopback = app, metrics, clients, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            with self.metrics.in_flight.track_inprogress():
                await (_many_fields(scope) or self._refusal(scope) or self.app)(scope, receive, send_with_headers)
        finally:
            self.metrics.requests.labels(path=path, status=str(status)).inc()
            self.metrics.seconds.labels(path=path).observe(time.perf_counter() - start)
        return None

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self.clients.names:
            if not self.loopback or _is_local(headers.get("host", "")):
                return None
            return _refuse(
                403, "this server answers to localhost and addresses alone; start it with a token to use other names"
            )
        scheme, _, given = headers.get("authorization", "").partition(" ")
        read = scope["path"] == "/fleet" and scope["method"] == "GET"
        if read and scheme.lower() == "basic":  # browsers ask for a password where a page has no script of its own
            scheme, given = "bearer", _password(given)
        right = scheme.lower() == "bearer" and self.clients.knows(given.strip())
        if right or scope["path"] in OPEN_PATHS:
            return None
        reason = "this server wants its token, as the header Authorization: Bearer TOKEN"
        schemes = 'Basic realm="bearcat: any name, the token as password", charset="UTF-8"' if read else "Bearer"
        return _refuse(401, reason, "authorization", {"WWW-Authenticate": schemes})


def _many_fields(scope: Scope) -> Response | None:
    """A refusal of more fields than any address has, before they are parsed."""
    if scope["query_string"].count(b"&") < MOST_FIELDS:
        return None
    return _refuse(422, f"the query has more than {MOST_FIELDS} fields; leave out what is not needed", "query")


def _password(credentials: str) -> str:
    """Of HTTP's basic scheme; empty where there is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _is_local(host: str) -> bool:
    """Whether a Host header is localhost or a plain address; under another name, a foreign page may have found us."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() in ("localhost", "")
    return True


def _refuse(status: int, reason: str, field: str | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"reason": reason, "field": field}, status, headers)


Responses = dict[int | str, dict[str, Any]]
REFUSALS: Responses = {
    status: {"model": Refusal, "description": description}
    for status, description in {
        401: "The token is missing or wrong.",
        403: "The Host header names another server.",
        408: "The request took too long.",
        413: "The body, or what it unpacks to, is too large.",
        415: "The body is neither a recording nor JSON.",
        422: "A parameter, the file or a window cannot be used.",
        429: "Too many requests at once; Retry-After says when to come back.",
        507: "The server has no room for the upload.",
    }.items()
}
ANSWERS: Responses = {200: {"model": Answer, "description": "The diagnosis."}, **REFUSALS}
ACCESS: Responses = {status: REFUSALS[status] for status in (401, 403)}
UPLOADED = "A recording as it is on disk; ?filename=NAME says its format."
PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary", "description": UPLOADED}},
            "application/json": {"schema": GivenWindows.model_json_schema()},
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
    served: Served | None, limits: Limits, clients: Clients, loopback: bool = True, fleet: Pages | None = None
) -> ASGIApp:
    """The whole application, with its middleware: for a model, for pages of watched machines, or for both."""
    metrics = Metrics()
    service = None if served is None else PredictionService(served, limits, metrics, clients)
    app = FastAPI(
        title="bearcat serve", version=__version__, description=ABOUT, docs_url=None, redoc_url=None,
        lifespan=None if service is None else service.running,
    )  # fmt: skip
    if service is not None:
        _add_model(app, service)
    if fleet is not None:
        _add_fleet(app, fleet, first=service is None)

    cannot: Responses = {403: REFUSALS[403], 503: {"model": dict[str, str], "description": "It cannot store uploads."}}

    @app.get("/health", responses=cannot, response_description="It is there.")
    async def health(response: Response) -> dict[str, str]:
        """Whether the server is there and can store uploads; needs no token."""
        problem = None if service is None else service.uploads.problem()
        if problem is not None:
            response.status_code = 503
        return {"status": problem or "ok"}

    lines: Responses = {200: {"content": {"text/plain": {}}, "description": "Lines of text."}}

    @app.get("/metrics", response_class=Response, responses=lines | ACCESS)
    async def show_metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        problem = first["msg"][:1].lower() + first["msg"][1:]  # pydantic's begin sentences
        problem = NOT_A_NAME if first["type"] == "string_pattern_mismatch" else problem
        return _refuse(422, f"{name}: {problem}", name)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        reason = {
            404: "there is nothing at this address; /openapi.json lists what there is",
            405: f"this address does not take {request.method}; /openapi.json says what it takes",
        }.get(error.status_code, error.detail)
        return _refuse(error.status_code, reason, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:  # logged with its traceback by uvicorn
        return _refuse(500, "the server failed on this request; its log says why")

    return AccessMiddleware(app, metrics, clients, loopback)


def _add_model(app: FastAPI, service: PredictionService) -> None:
    """The addresses of the model, and its page."""
    description = service.served.describe(asdict(service.limits))
    text = files("bearcat.deploy.serve").joinpath("page.html").read_text(encoding="utf-8")
    policy = page_policy(text)

    @app.post("/predict", responses=ANSWERS, openapi_extra=PREDICT_BODY)
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        """Diagnose a recording, or windows as recorded."""
        return await service.answer(request, query)

    @app.get("/model", responses=ACCESS, response_description="The model.")
    async def model() -> dict[str, Any]:
        """What the model takes and distinguishes, what to do with it, and what this server accepts."""
        return description

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})


def _add_fleet(app: FastAPI, fleet: Pages, first: bool) -> None:
    """The page of watched machines; `first`: there is no other page."""
    shown: Responses = {200: {"content": {"text/html": {}}, "description": "A page."}, **ACCESS}

    @app.get("/fleet", response_class=HTMLResponse, responses=shown)
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
