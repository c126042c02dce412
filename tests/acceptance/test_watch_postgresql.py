"""The store's tests with a real PostgreSQL server, where there is one on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.test_watch_store import (  # noqa: F401 (they run with the address below)
    test_a_file_is_added_whole_or_not_at_all,
    test_a_store_gives_back_what_was_added,
    test_one_process_watches_and_others_read_and_acknowledge,
    test_people_acknowledge_relearn_and_forget,
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a new server, which listens to a socket in its folder only."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not programs:
        pytest.skip("there is no PostgreSQL server on this machine (make postgresql installs one)")
    folder = Path(tempfile.mkdtemp(prefix="bearcat-pg-", dir="/tmp"))
    user = {"user": "postgres", "cwd": folder} if os.geteuid() == 0 else {"cwd": folder}  # it refuses root
    shutil.chown(folder, user.get("user", os.geteuid()))

    def control(*words: object) -> None:
        call = [programs[-1], "-D", folder / "data", *words]
        subprocess.run(call, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user)

    control("initdb", "-o", "-A trust -U bearcat -E UTF8 --no-sync")
    control("-w", "-o", f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off", "start")
    try:
        yield f"postgresql://bearcat@/postgres?host={folder}"
    finally:
        control("-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def address(postgres: str) -> str:
    """Of a store that is not there yet."""
    name = f"plant_{time.monotonic_ns()}"
    engine = sql.create_engine(postgres.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return postgres.replace("/postgres?", f"/{name}?")
