"""The server's application: what is asked, who may ask, how much at once.

Every request of /predict takes one of `concurrency` places before a byte of its body is read (else 429), sends at most
`max_bytes` (else 413) and is answered within `timeout` seconds (else 408), of which receiving, waiting for a worker
and computing are all part. Workers are threads, one for each core; onnxruntime computes without Python's lock. A place
is free again when its worker has stopped, not when its client was told 408, so that late work cannot pile up.

Uploaded recordings are raw bodies (application/octet-stream, the name in the address) rather than multipart forms: they
go from the socket into a private temporary file as they come, `curl --data-binary` and fetch() send them as they are,
and web pages of other origins cannot, for browsers ask before they send such bodies.

>>> app = make_app(Served(load_onnx(Path("model.onnx")), {"inner"}), Limits(), token=None)
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bearcat import __version__
from bearcat.data.bearing import BEARINGS, Bearing
from bearcat.data.formats import FORMATS
from bearcat.deploy.serve.answer import (
    Answer,
    Asked,
    FieldError,
    GivenWindows,
    OutOfTimeError,
    Served,
    answer_file,
    answer_windows,
    distrusted,
    lower_first,
)
from bearcat.deploy.serve.limits import Limits
from bearcat.deploy.serve.metrics import Metrics
from bearcat.deploy.serve.pages import CLOSED, docs_page, main_page
from bearcat.deploy.serve.unpacked import TooLargeError, check_unpacked
from bearcat.errors import InputError

MOST_JSON = 2**24  # bytes; numbers as text become objects of Python's before they are an array
EXPANSION = 8  # a recording may unpack to so many times max_bytes
NOT_A_NAME = "must be a plain file name, without / or \\"  # what pydantic says is the regular expression
OPEN = {"/health", "/"}  # without a token: the page holds nothing, and what it asks for carries the token
PATHS = {"/", "/predict", "/model", "/health", "/metrics", "/docs", "/openapi.json"}
HEADERS = {
    "Content-Security-Policy": CLOSED,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ABOUT = "Diagnoses recordings of bearings: send one, or windows of it, and read class, confidence and doubts."


class Problem(BaseModel):
    """Why there is no answer."""

    reason: str = Field(description="One sentence.")
    field: str | None = Field(None, description="The parameter or field it is about.")


class Health(BaseModel):
    status: str


class ModelAnswer(BaseModel):
    """What the model takes and tells apart, and what this server takes."""

    classes: list[str]
    alarms: list[str]
    input: str
    length: int
    stride: int
    rate: float | None
    channels: int
    pooled_temperature: float
    calibrated: bool | None = Field(description="Whether its confidence is; null where the file does not say.")
    refusal: str | None = Field(
        description="The verdict of the run that made it, where that is not to use it; in every answer's notes too."
    )
    knows_familiar: bool = Field(description="Whether it can tell familiar recordings from others.")
    made_by: dict[str, Any]
    formats: list[str]
    bearings: dict[str, dict[str, int | float]]
    limits: dict[str, int | float]
    bearcat: str


class RefusalError(Exception):
    """An answer that is a Problem."""

    def __init__(self, status: int, reason: str, field: str | None = None, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.field = status, reason, field
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(eq=False)
class Desk:
    """Takes recordings and windows in and hands them to workers."""

    served: Served
    limits: Limits
    metrics: Metrics
    numbers: count[int] = field(default_factory=count)
    folder: Path | None = None  # for uploads, nobody else's, gone with the server
    workers: ThreadPoolExecutor | None = None

    @asynccontextmanager
    async def opened(self, _: FastAPI) -> AsyncIterator[None]:
        cores = min(os.cpu_count() or 1, self.limits.concurrency)
        with (
            tempfile.TemporaryDirectory(prefix="bearcat-", ignore_cleanup_errors=True) as folder,
            ThreadPoolExecutor(cores, thread_name_prefix="bearcat") as workers,
        ):
            self.folder, self.workers = Path(folder), workers
            yield

    async def answer(self, request: Request, asked: Asked) -> bytes:
        """The answer as JSON, or RefusalError; the place is kept until nothing of the request runs any more."""
        if self.metrics.accepted >= self.limits.concurrency:
            raise RefusalError(
                429,
                f"the server is busy with {self.limits.concurrency} requests; try again in a second",
                Retry_After="1",
            )
        self.metrics.accepted += 1
        job: asyncio.Future[Answer] | None = None
        loop = asyncio.get_running_loop()
        until = time.monotonic() + self.limits.timeout
        try:
            async with asyncio.timeout(self.limits.timeout):
                work = await self._received(request, asked, until)
                job = loop.run_in_executor(self.workers, work)
                found = await asyncio.shield(job)
        except (TimeoutError, OutOfTimeError) as error:
            received = "the answer took" if job else "the request's body took"
            raise RefusalError(
                408, f"{received} longer than {self.limits.timeout:g} s; send less at once", Connection="close"
            ) from error
        except TooLargeError as error:
            raise RefusalError(413, str(error), "file") from error
        except FieldError as error:
            raise RefusalError(422, str(error), error.field) from error
        except InputError as error:
            raise RefusalError(422, str(error), "body") from error
        except ClientDisconnect as error:
            raise RefusalError(499, "the client went away") from error
        finally:
            if job is None or job.done():
                self._leave(job)
            else:
                job.add_done_callback(self._leave)
        self._count(found)
        return found.model_dump_json(by_alias=True).encode()

    def _leave(self, job: asyncio.Future[Answer] | None) -> None:
        if job is not None and not job.cancelled():
            job.exception()  # that of a job whose client was told 408 is nobody's
        self.metrics.accepted -= 1

    def _count(self, found: Answer) -> None:
        self.metrics.count("bearcat_recordings_total", labels={"class": found.label})
        self.metrics.count("bearcat_windows_total", found.windows)
        self.metrics.count("bearcat_alarms_total", int(found.alarm))
        self.metrics.count("bearcat_unfamiliar_total", int(found.familiar is False))

    async def _received(self, request: Request, asked: Asked, until: float) -> Callable[[], Answer]:
        """The body, checked as far as can be without reading it, and what is to be done with it."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            self._check_windows(asked)
            content = bytearray()
            async for chunk in self._bounded(request, min(self.limits.max_bytes, MOST_JSON)):
                content += chunk
            return partial(answer_windows, self.served, bytes(content), asked, until)
        if kind != "application/octet-stream":
            raise RefusalError(
                415, "send a recording as application/octet-stream (its name in the address, ?filename=…),"
                " or windows as application/json", "content-type",
            )  # fmt: skip
        return partial(self._answer_upload, await self._uploaded(request, asked), asked, until)

    def _check_windows(self, asked: Asked) -> None:
        """Windows have no file's parameters."""
        for name in asked.model_fields_set - {"by"}:
            raise FieldError(name, f"{name}: is for uploaded recordings; leave it out of the address of windows")

    async def _uploaded(self, request: Request, asked: Asked) -> Path:
        if asked.filename is None:
            raise FieldError(
                "filename", "filename: is missing; add ?filename=NAME to the address, for it says the format"
            )
        suffix = Path(asked.filename).suffix.lower()
        if suffix not in FORMATS:
            raise FieldError("filename", f"filename: unknown format '{suffix}'; use one of {', '.join(FORMATS)}")
        asked.marks()  # a wrong geometry need not wait for the recording
        assert self.folder is not None, "the server has started"  # noqa: S101
        path = self.folder / f"{next(self.numbers)}{suffix}"
        try:
            with path.open("xb") as file:
                async for chunk in self._bounded(request, self.limits.max_bytes):
                    file.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _answer_upload(self, path: Path, asked: Asked, until: float) -> Answer:
        origin = asked.filename or path.name
        try:
            with distrusted(origin):
                check_unpacked(path, origin, EXPANSION * self.limits.max_bytes)
            return answer_file(self.served, path, asked, until)
        except (TooLargeError, FieldError):
            raise
        except InputError as error:
            raise FieldError("file", str(error).replace(str(path), origin)) from error
        finally:
            path.unlink(missing_ok=True)

    async def _bounded(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """The body's chunks; 413 as soon as it is known to be longer than `most`."""
        problem = RefusalError(
            413, f"the body is longer than {most} bytes; send less at once, or cut the recording", "body"
        )
        if int(request.headers.get("content-length", 0)) > most:
            raise problem
        found = 0
        async for chunk in request.stream():
            found += len(chunk)
            if found > most:
                raise problem
            yield chunk


class Door:
    """Everything passes here: who may ask, the headers of every answer, counts and times."""

    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None, loopback: bool) -> None:
        self.app, self.metrics, self.loopback = app, metrics, loopback
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self.metrics.in_flight += 1
        try:
            refused = self._refused(scope)
            await (refused or self.app)(scope, receive, dressed)
        finally:
            self.metrics.in_flight -= 1
            self.metrics.count("bearcat_requests_total", labels={"path": path, "status": str(status)})
            self.metrics.time(path, time.perf_counter() - start)
        return None

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self.token is None:
            if self.loopback and not _local(headers.get("host", "")):
                return _problem(
                    403,
                    "this server answers to localhost and addresses alone; start it with a token to use other names",
                )
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scope["path"] in OPEN or (
            scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token)
        ):
            return None
        return _problem(
            401, "this server wants its token, as the header Authorization: Bearer TOKEN",
            "authorization", {"WWW-Authenticate": "Bearer"},
        )  # fmt: skip


def _local(host: str) -> bool:
    """Whether a Host header is localhost or a plain address; with other names a page elsewhere may have found us."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() in ("localhost", "")
    return True


def _problem(status: int, reason: str, field: str | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"reason": reason, "field": field}, status, headers)


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": told}
    for status, told in {
        401: "The token is missing or wrong.",
        403: "Asked under a name that is not this server's.",
        408: "The request took too long.",
        413: "The body, or what it unpacks to, is too large.",
        415: "The body is neither a recording nor JSON.",
        422: "A parameter, the file or a window cannot be used.",
        429: "Too many requests at once; Retry-After says when to come back.",
    }.items()
}
ANSWERS: dict[int | str, dict[str, Any]] = {200: {"model": Answer, "description": "The diagnosis."}, **PROBLEMS}
SHUT: dict[int | str, dict[str, Any]] = {status: PROBLEMS[status] for status in (401, 403)}
SHUT_PLAIN: dict[int | str, dict[str, Any]] = {  # a reason is JSON where the answer is plain text, too
    status: {
        "description": told["description"],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, told in SHUT.items()
}
PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "A recording as it is on disk; ?filename=NAME says its format.",
                }
            },
            "application/json": {"schema": GivenWindows.model_json_schema()},
        },
    }
}


def make_app(served: Served, limits: Limits, token: str | None, loopback: bool = True) -> ASGIApp:
    """The whole application, its door included."""
    metrics = Metrics()
    desk = Desk(served, limits, metrics)
    app = FastAPI(
        title="bearcat serve",
        version=__version__,
        description=ABOUT,
        lifespan=desk.opened,
        docs_url=None,
        redoc_url=None,
    )
    told = _told(served, limits)

    @app.post(
        "/predict", responses=ANSWERS,
        openapi_extra=PREDICT_BODY,
    )  # fmt: skip
    async def predict(request: Request, asked: Annotated[Asked, Query()]) -> Response:
        """Diagnose a recording, or windows as recorded."""
        return Response(await desk.answer(request, asked), media_type="application/json")

    @app.get("/model", responses=SHUT, response_description="The model.")
    async def model() -> ModelAnswer:
        """What the model takes and tells apart, and what this server takes."""
        return told

    @app.get("/health", responses={403: PROBLEMS[403]}, response_description="It is there.")
    async def health() -> Health:
        """Whether the server is there; needs no token."""
        return Health(status="ok")

    @app.get("/metrics", response_class=PlainTextResponse, responses=SHUT_PLAIN, response_description="Lines of text.")
    async def show_metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        found = main_page()
        return HTMLResponse(found.text, headers={"Content-Security-Policy": found.policy})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        found = docs_page(app.openapi())
        return HTMLResponse(found.text, headers={"Content-Security-Policy": found.policy})

    @app.exception_handler(RefusalError)
    async def refused(_: Request, error: RefusalError) -> Response:
        return _problem(error.status, error.reason, error.field, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        said = NOT_A_NAME if first["type"] == "string_pattern_mismatch" else lower_first(first["msg"])
        return _problem(422, f"{name}: {said}", name)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        reason = {
            404: "there is nothing at this address; /docs lists what there is",
            405: f"this address does not take {request.method}; /docs says what it takes",
        }.get(error.status_code, error.detail)
        return _problem(error.status_code, reason, None, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:  # logged with its traceback by uvicorn
        return _problem(500, "the server failed on this request; its log says why")

    return Door(app, metrics, token, loopback)


def _numbers(bearing: Bearing) -> dict[str, int | float]:
    return {name: value for name, value in asdict(bearing).items() if name != "designation"}


def _told(served: Served, limits: Limits) -> ModelAnswer:
    model = served.model
    return ModelAnswer(
        classes=list(model.classes), alarms=sorted(served.alarms), input=model.preparation.input,
        length=model.preparation.length, stride=model.preparation.step, rate=model.preparation.rate or model.rate,
        channels=model.channels, calibrated=served.calibrated, pooled_temperature=model.pooled_temperature,
        refusal=model.refusal, knows_familiar=model.familiarity is not None, made_by=dict(served.made_by),
        formats=list(FORMATS), bearings={name: _numbers(bearing) for name, bearing in BEARINGS.items()},
        limits=asdict(limits), bearcat=__version__,
    )  # fmt: skip
