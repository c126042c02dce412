"""`bearcat serve`: diagnoses over HTTP, and a page to drop recordings on (docs/deploy.md).

FastAPI and uvicorn as they are, for one machine; a reverse proxy controls access. Recordings are raw bodies rather
than multipart forms: they go from the socket into a temporary file, and browsers send such bodies to other sites only
after a preflight request. Workers are threads, one for each core.

>>> serve(open_model(Path("out/model")), ServeRequest(port=8000))  # until SIGTERM or Ctrl-C; None: without a model
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bearcat import __version__
from bearcat.data.bearing import BEARINGS
from bearcat.data.formats import FORMATS, is_risky, read_signals
from bearcat.data.recording import Recording
from bearcat.deploy import diagnose
from bearcat.deploy.find import FoundUnit, Given
from bearcat.deploy.opened import Predictor
from bearcat.diagnosis.physics import STATES
from bearcat.diagnosis.recording import AlarmRule, Diagnosis
from bearcat.errors import InputError, suggest, to_json
from bearcat.report.figures import draw_evidence
from bearcat.settings import DiagnoseRequest, ServeRequest

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise InputError("serving needs an extra; pip install 'bearcat[serve]'") from error

GRACE = 5  # seconds beyond a request's time, after which a shutdown no longer waits for it
LOCAL = ["localhost", "127.0.0.1", "::1", "[::1]"]  # other host names may come from DNS rebinding
BINARY = "application/octet-stream"
# Parameters of /predict: the first two belong to the server alone, the others are fields of DiagnoseRequest.
QUERY = (
    "filename", "picture", "rate", "rpm", "bearing", "channel", "trust_speed", "prior", "unit", "group", "mounting"
)  # fmt: skip

Pages = Callable[[str | None], str]  # a machine's name → its page; None: the page of all machines


def read_query(query: Mapping[str, str]) -> tuple[str, bool, DiagnoseRequest]:
    """The recording's name, whether to draw it, and the statements about it; InputError names a wrong parameter."""
    name, picture = query.get("filename", ""), query.get("picture", "false")
    if not re.fullmatch(r"[^\x00-\x1f\x7f/\\]{1,255}", name):
        raise InputError("filename: must be a plain file name, without folders", "filename")
    if Path(name).suffix.lower() not in FORMATS:
        raise InputError(f"filename: unknown format; use one of {', '.join(FORMATS)}", "filename")
    if picture not in ("true", "false"):
        raise InputError("picture: must be true or false", "picture")
    stated = {field: value for field, value in query.items() if field not in ("filename", "picture")}
    for field, value in stated.items():
        if field not in QUERY:
            raise InputError(f"unknown parameter '{field:.80}'{suggest(field, QUERY)}", field)
        try:
            Given.of(DiagnoseRequest.of(**{field: value}))
        except InputError as error:
            raise InputError(str(error), field) from error
    return name, picture == "true", DiagnoseRequest.of(**stated)


def answer(model: Predictor | None, path: Path, query: Mapping[str, str], request: ServeRequest) -> dict[str, Any]:
    """The diagnosis of an uploaded recording, as in `bearcat diagnose --format json`; `path` is never shown."""
    origin, picture, stated = read_query(query)
    if sys.platform == "win32" and is_risky(path):  # which has no limit of memory
        raise InputError(f"{origin}: cannot be read safely on Windows; convert it to wav, or use WSL")
    signals = read_signals(path, origin, seconds=request.timeout)
    name, samples = signals.pick(stated.channel)
    recording = Recording(
        signal=samples, rate=signals.rate, own_rpm=signals.rpm, channel=name, domain="", origin=origin
    )  # fmt: skip
    (diagnosis,) = diagnose([FoundUnit.of(recording)], model, request=replace(stated, alarm=request.alarm)).usable()
    plain = {name: value for name, value in diagnosis.to_dict().items() if name != "drawing"}
    return plain | {"picture": _picture(diagnosis) if picture else None}


def _picture(diagnosis: Diagnosis) -> str | None:
    """The evidence as a data: address; None if there is no evidence, or no matplotlib."""
    if diagnosis.drawing is None or find_spec("matplotlib") is None:
        return None
    return f"data:image/png;base64,{base64.b64encode(draw_evidence(diagnosis).render('png')).decode()}"


async def _receive(request: Request, path: Path, most: int) -> None:
    """Writes the body to a file; InputError as soon as it is longer than `most` bytes."""
    with path.open("xb") as file:
        async for chunk in request.stream():
            file.write(chunk)
            if file.tell() > most:
                raise InputError(f"the body is longer than {most} bytes; cut the recording", "body")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _refuse(status: int, reason: str, field: str | None = None) -> JSONResponse:
    return JSONResponse({"reason": reason, "field": field}, status)


def make_app(model: Predictor | None, limits: ServeRequest, fleet: Pages | None = None) -> FastAPI:
    """The application: for recordings, and for pages of watched machines."""
    AlarmRule(limits.alarm).checked(() if model is None else model.classes)
    app = FastAPI(title="bearcat serve", version=__version__, openapi_url=None)
    if is_loopback(limits.host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL, limits.host])
    page = files("bearcat.deploy").joinpath("serve.html").read_text(encoding="utf-8")
    workers = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="bearcat")

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        """Diagnose a recording."""
        query = dict(request.query_params)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != BINARY:
            return _refuse(415, f"send a recording as {BINARY} (its name in the address, ?filename=…)", "content-type")
        try:
            name, *_ = read_query(query)  # before the recording is received
            with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
                path = Path(folder) / f"upload{Path(name).suffix.lower()}"
                async with asyncio.timeout(limits.timeout):
                    await _receive(request, path, limits.max_bytes)
                    work = partial(answer, model, path, query, limits)
                    answered = await asyncio.get_running_loop().run_in_executor(workers, work)
        except (TimeoutError, ClientDisconnect):
            return _refuse(408, f"the request took longer than {limits.timeout:g} s; send less at once")
        except InputError as error:
            status = 413 if error.field == "body" else 422
            return _refuse(status, str(error), error.field or "file")
        except OSError as error:
            return _refuse(507, f"the server cannot keep uploads ({error.strerror}); make room in its temporary folder")
        return Response(to_json(answered), media_type="application/json")

    @app.get("/model")
    async def about() -> dict[str, Any]:
        """The model's classes and recommendation, and what this server accepts."""
        return {
            "decision": None if model is None else asdict(model.decision) | {"sentence": model.decision.sentence},
            "classes": list(STATES if model is None else model.classes), "formats": list(FORMATS),
            "bearings": list(BEARINGS), "max_bytes": limits.max_bytes, "fleet": fleet is not None,
        }  # fmt: skip

    @app.get("/")
    async def show_page() -> Response:
        return HTMLResponse(page)

    if fleet is not None:

        @app.get("/fleet")
        def show_fleet(machine: str | None = None) -> Response:
            """The watched machines, worst first, or one of them with its trends, as a page."""
            try:
                return HTMLResponse(fleet(machine))
            except InputError as error:
                return _refuse(404 if error.field == "machine" else 503, str(error), error.field)

    return app


def serve(
    model: Predictor | None, request: ServeRequest, say: Callable[[str], None] = print, fleet: Pages | None = None
) -> None:
    """Diagnoses recordings, with the model or without one, and shows watched machines, until SIGTERM or SIGINT; then
    finishes what was accepted. `say` is called with the address once connections are taken.
    """
    if "BEARCAT_TOKEN" in os.environ:  # ignoring it would leave the server open
        raise InputError("BEARCAT_TOKEN: was removed; let a reverse proxy ask for a password (docs/deploy.md)")
    app = make_app(model, request, fleet)
    config = uvicorn.Config(
        app, http="h11", ws="none", log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        limit_concurrency=request.concurrency + 1, timeout_graceful_shutdown=int(request.timeout) + GRACE,
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when it has shut down
        signal.signal(number, lambda *_: sys.exit(0))
    with listening(request.host, request.port) as listener:
        host, port = listener.getsockname()[:2]
        say(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        uvicorn.Server(config).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; InputError if that fails, where uvicorn would exit with status 1."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio sets this only on sockets it recognises as TCP; otherwise answers wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: cannot listen ({error.strerror}); choose another") from error
