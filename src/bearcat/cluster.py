"""A Ray cluster, on this machine or elsewhere, for work that is spread over several.

>>> ray = connect_ray(jobs=2)
>>> ray.get(ray.remote(len).remote("bearing"))
7
"""

from __future__ import annotations

import os
import socket
from typing import Any

from bearcat.errors import InputError


def connect_ray(address: str | None = None, jobs: int | None = None) -> Any:
    """Ray, connected to a cluster, a local one without address; a sentence where it is missing or cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what will be Ray's default; silences a warning
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("the executor 'ray' needs an extra; pip install 'bearcat[ray]'") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": jobs or os.cpu_count(), "include_dashboard": False}
    elif jobs is not None:
        raise InputError("--jobs is for a local Ray cluster; the one at --address decides itself, leave it out")
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"at '{address}'" if address else "on this machine"
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"no Ray cluster {where} could be reached ({type(error).__name__}: {reason})") from error
    return ray


def lost_workers(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where a worker or its machine died, and another may do the work."""
    errors = ray.exceptions
    return (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.LocalRayletDiedError,
            errors.ObjectLostError)  # fmt: skip
