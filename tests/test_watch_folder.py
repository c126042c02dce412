"""Whose recordings are, and when they were made, by their places, names and manifests; and which are complete."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bearcat.data.manifest import time_in
from bearcat.watch.folder import WatchedFolder

MOMENT = datetime(2024, 5, 1, 10, 32, 39, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "2024.05.01.10.32.39", "2024-05-01T10-32-39", "20240501_103239", "20240501T103239Z", "20240501103239",
        "acc-2024-05-01_10h32m39s-ch1", "2024-05-01T12-32-39+0200", "2024-05-01T05:02:39-05:30", f"{MOMENT:.0f}000",
        "2024/05/01/103239",
    ],
)  # fmt: skip
def test_usual_spellings_of_a_time(text):
    assert time_in(text) == MOMENT


def test_parts_of_a_time_and_what_is_none():
    assert time_in("2024-05-01") == MOMENT - (10 * 60 + 32) * 60 - 39
    assert time_in("2024-05-01T10-32-39.250") == MOMENT + 0.25
    assert not any(map(time_in, ("acc_00001", "pump", "2024-02-31", "12345678901", "99999999")))


def made(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode("utf-8", "surrogateescape"))
        os.utime(root / name, (MOMENT, MOMENT))
    return root


def opened(root: Path) -> tuple[WatchedFolder, dict[str, str]]:
    """A folder, and the sentences it says, with their kinds."""
    folder, said = WatchedFolder(root), dict[str, str]()
    folder.say = said.__setitem__
    return folder, said


def places(folder: WatchedFolder) -> dict[str, tuple[str, str | None, bool]]:
    """Machine, point, and whether the time is the moment above, of each file."""
    return {Path(each.path).name: (each.machine, each.point, each.time == MOMENT) for each in folder.scan()}


def test_places_name_machine_and_point(tmp_path):
    stamp = "2024-05-01T10-32-39.wav"
    root = made(
        tmp_path / "plant", f"a{stamp}", f"pump/b{stamp}", f"pump/DE/c{stamp}", f"hall 2/pump/DE/d{stamp}",
        "pump/DE/2024/05/01/10-32-39-e.wav", f"pump/DE/2024-05-01/f{stamp}", "pump 1480rpm/DE/g.wav", "pump/notes.pdf",
    )  # fmt: skip
    folder, said = opened(root)
    assert places(folder) == {
        f"a{stamp}": ("plant", None, True), f"b{stamp}": ("pump", None, True), f"c{stamp}": ("pump", "DE", True),
        f"d{stamp}": ("hall 2/pump", "DE", True), "10-32-39-e.wav": ("pump", "DE", True),
        f"f{stamp}": ("pump", "DE", True), "g.wav": ("pump 1480rpm", "DE", True),
    }  # fmt: skip
    assert [each.rpm for each in folder.scan() if each.path.endswith("g.wav")] == [1480]
    assert any("pump 1480rpm" in note and "last change" in note for note in said)
    assert set(said.values()) == {"note"}


def test_hostile_names_and_files_are_skipped_or_named_and_nothing_hangs(tmp_path):
    stamp = "2024-05-01.wav"
    root = made(tmp_path / "plant", f"pump/DE/{stamp}", f".hidden/DE/{stamp}", f"pump/DE/.{stamp}")
    late = "pump/DE/2099-05-01.wav"  # all that come after it would be late
    made(root, f"pump/\x1b[2J/{stamp}", f"../outside/DE/{stamp}", os.fsdecode(b"pump/\xff\xfe/1.wav"), late)
    os.mkfifo(root / "pump" / "DE" / "pipe.wav")
    (root / "pump" / "loop").symlink_to(root)
    (root / "elsewhere").symlink_to(tmp_path / "outside")
    (root / "pump" / "DE" / "link.wav").symlink_to(tmp_path / "outside" / "DE" / stamp)
    (root / "pump" / "DE" / "dangling.wav").symlink_to(tmp_path / "nothing.wav")
    (root / "pump" / "DE" / "long.wav").symlink_to("x" * 300)
    folder, said = opened(root)
    assert places(folder).keys() == {stamp}
    assert not list(folder.scan({each.identity for each in folder.scan()})), "what is known is not looked at again"
    assert not any("\x1b" in problem for problem in said)
    assert all(any(word in problem for problem in said) for word in ("link.wav", "2099", r"\x1b", r"\xff"))


def test_a_manifest_says_it_all_and_may_grow(tmp_path):
    root = made(tmp_path, "a.wav", "b.wav", "c.wav", "left-out.wav")
    rows = [
        "path,machine,point,time,rpm,bearing,load,temperature,channel,rate",
        "a.wav,pump,DE,2024-05-01 12:32:39+02:00,1480,6205,40,-5.5,,25600",
        "b.wav,pump,DE,2024-05-01T10:32:39,,,,,x,", "b.wav,pump,NDE,2024-05-01T10:32:39,,,,,y,",
    ]  # fmt: skip
    (root / "manifest.csv").write_text("\n".join(rows) + "\n")
    folder, said = opened(root)
    first, second = sorted(folder.scan(), key=lambda each: each.path)
    assert (first.machine, first.point, first.time) == ("pump", "DE", MOMENT)
    (row,) = first.rows
    assert (row.rpm, row.load, row.temperature, row.rate, row.bearing.balls) == (1480, 40, -5.5, 25600, 9)
    assert [row.point for row in second.rows] == ["DE", "NDE"], "rows of one file and time are one measurement"
    assert first.part != second.part
    with (root / "manifest.csv").open("a") as file:
        for row in ("c.wav,pump,DE,2024-05-02", "missing.wav,pump,DE,2024-05-03", "c.wav,pump,DE,yesterday"):
            file.write(f"{row},,,,,,\n")
    arrivals = list(folder.scan())
    (missing,) = (arrival for arrival in arrivals if arrival.problem is not None)
    assert (len(arrivals), missing.point, missing.time) == (4, "DE", datetime(2024, 5, 3, tzinfo=UTC).timestamp())
    assert "missing.wav" in missing.problem
    assert "yesterday" in "\n".join(said)
    made(root, "missing.wav")
    assert [arrival.problem for arrival in folder.scan()] == [None] * 4, "a file may come after its row"
