"""The folder of a server's uploads: removed by a cleaner, replaced by a link, on a disk that is full."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bearcat.deploy.model import export_onnx
from bearcat.deploy.serve import uploads as module
from bearcat.deploy.serve.fair import ClientReaders
from bearcat.deploy.serve.uploads import UploadError, UploadFolder
from bearcat.deploy.turns import Turn, Turns
from tests.test_artefact import made_model
from tests.test_serve import LENGTH, START, Server, as_wav, noise, refused

pytestmark = pytest.mark.usefixtures("traced_once")

SMALL, LARGE = as_wav(noise(4 * LENGTH)), as_wav(noise(200_000))
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n{START}"
TINY_DISK = "mount -t tmpfs -o size=300k tmpfs"  # in a mount namespace of one's own, for which no rights are needed


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export_onnx(made_model(), tmp_path_factory.mktemp("models") / "model.onnx")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), model)
    yield running
    assert running.stop() == 0
    assert list(running.temporary.iterdir()) == [], "nothing is left behind"


def test_a_folder_that_a_cleaner_removed_is_made_again(server):
    assert server.upload("a.wav", SMALL).status_code == 200
    (private,) = server.temporary.iterdir()
    shutil.rmtree(private)
    assert server.upload("a.wav", SMALL).status_code == 200
    assert server.client.get("/health").json() == {"status": "ok"}
    assert [path.stat().st_mode & 0o777 for path in server.temporary.iterdir()] == [0o700]


def test_a_link_or_a_folder_in_its_place_is_not_used(server, tmp_path):
    """As another user of the machine could leave one there, once the cleaner had come."""
    server.upload("a.wav", SMALL)
    (private,) = server.temporary.iterdir()
    shutil.rmtree(private)
    private.symlink_to(tmp_path)
    before = tmp_path.stat().st_mtime_ns
    assert server.upload("a.wav", SMALL).status_code == 200
    assert tmp_path.stat().st_mtime_ns == before, "nothing was ever written there"
    private.unlink()
    private.mkdir(0o777)
    assert server.upload("a.wav", SMALL).status_code == 200
    private.rmdir()


def full(server: Server) -> None:
    """Uploads that do not fit are a sentence, and /health says so while nothing fits."""
    assert "store" in refused(server.upload("a.wav", LARGE), 507, None)
    assert [list(folder.iterdir()) for folder in server.temporary.iterdir()] in ([[]], [])
    assert server.logged() == ""


def test_an_upload_that_does_not_fit_is_a_sentence_and_health_tells_the_truth(model, tmp_path):
    server = Server(tmp_path, model, code=LIMITED)
    full(server)
    answer = server.client.get("/health")
    assert answer.status_code == 503
    assert "store" in answer.json()["status"]
    assert server.upload("a.wav", SMALL).status_code == 200, "what fits is answered"
    assert server.stop() == 0


def test_a_full_disk_is_a_sentence_too(model, tmp_path):
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*namespace, f"{TINY_DISK} /mnt"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system does not let users mount a small disk of their own")
    code = f"import os, sys; os.execvp('unshare', {namespace!r} + ['{TINY_DISK} \"$TMPDIR\" && exec \"$@\"', 'sh', "
    code += f"sys.executable, '-c', {START!r}, *sys.argv[1:]])"
    server = Server(tmp_path, model, code=code)
    full(server)
    assert server.client.get("/health").json() == {"status": "ok"}, "the next one fits"
    assert server.upload("a.wav", SMALL).status_code == 200
    assert server.stop() == 0


def test_health_looks_once_a_second_at_most(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(module, "TRIAL_SECONDS", 60.0)
    with UploadFolder() as uploads:
        assert uploads.problem() is None
        made = next(uploads.numbers)
        assert uploads.problem() is None
        assert next(uploads.numbers) == made + 1
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_was_removed_while_it_waited_is_the_servers_trouble_and_no_failure(tmp_path):
    turn = Turn(time.monotonic() + 60, Turns(1), "a")
    with pytest.raises(UploadError), ClientReaders(None, turn).open_stream(tmp_path / "a.wav", None, "it", turn.until):
        pass


def test_a_folder_that_cannot_be_made_again_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with UploadFolder() as uploads:
        shutil.rmtree(tmp_path / "temporary")
        assert os.strerror(2) in str(uploads.problem())
