"""The store's tests with a real PostgreSQL server, where there is one on this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
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
    test_a_thinned_trend_is_even_and_keeps_alarms,
    test_one_process_watches_and_others_read_and_acknowledge,
    test_people_acknowledge_relearn_and_forget,
)


def postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a server of our own, which listens to a socket in its folder only."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL server on this machine (make postgresql installs one)")
    folder = Path(tempfile.mkdtemp(prefix="bearcat-pg-", dir="/tmp"))
    own: dict[str, str] = {}
    if os.geteuid() == 0:  # it refuses to be run by root
        own = {
            "user": next(name for name in ("postgres", "nobody") if name in {each.pw_name for each in pwd.getpwall()})
        }
        shutil.chown(folder, own["user"])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    call = [programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "bearcat", "-E", "UTF8", "--no-sync"]
    subprocess.run(call, check=True, cwd=folder, **quiet, **own)
    settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    server = subprocess.Popen([programs / "postgres", "-D", folder / "data", *settings], cwd=folder, **quiet, **own)
    try:
        address = f"postgresql://bearcat@/postgres?host={folder}"
        deadline = time.monotonic() + 30
        while not (folder / ".s.PGSQL.5432").exists() or not answers(address):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder)


def answers(address: str) -> bool:
    engine = sql.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    try:
        engine.connect().close()
    except sql.exc.OperationalError:
        return False
    finally:
        engine.dispose()
    return True


@pytest.fixture
def address(postgres: str) -> str:
    """Of a store that is not there yet."""
    name = f"plant_{time.monotonic_ns()}"
    engine = sql.create_engine(postgres.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return postgres.replace("/postgres?", f"/{name}?")
