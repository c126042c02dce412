"""Archives are read without trust: what is safe comes out whole, what is not leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import stat
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from bearcat.data import archives
from bearcat.data.archives import DamagedArchiveError, is_archive, members, read_member, unpack
from bearcat.errors import InputError

FILES = {"KA04/one.mat": b"first " * 1000, "KA04/two.mat": os.urandom(5000), "empty.txt": b""}


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def vint(number: int) -> bytes:
    """A number the way RAR 5 writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def rar_block(*fields: bytes) -> bytes:
    """A header of RAR 5: its checksum, its length, its fields."""
    body = b"".join(fields)
    body = vint(len(body)) + body
    return struct.pack("<I", zlib.crc32(body)) + body


def make_rar(path: Path, files: dict[str, bytes], *, method: int = 0, link: str | None = None) -> Path:
    """A RAR 5 whose members are stored, or claim a compression method; with `link` they are links to there."""
    parts = [b"Rar!\x1a\x07\x01\x00", rar_block(vint(1), vint(0), vint(0))]
    for name, content in files.items():
        extra = b""
        if link is not None:
            target = link.encode()
            record = vint(5) + vint(1) + vint(0) + vint(len(target)) + target
            extra = vint(len(record)) + record
        fields = [vint(2), vint(3 if extra else 2), vint(len(extra)) if extra else b"", vint(len(content)), vint(4)]
        fields += [vint(len(content)), vint(0o100644), struct.pack("<I", zlib.crc32(content)), vint(method << 7)]
        fields += [vint(1), vint(len(name.encode())), name.encode(), extra]
        parts += [rar_block(*fields), content]
    path.write_bytes(b"".join([*parts, rar_block(vint(5), vint(0), vint(0))]))
    return path


def make(path: Path, files: dict[str, bytes]) -> Path:
    return {".zip": make_zip, ".rar": make_rar}[path.suffix](path, files)


def everything_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


KINDS = ["a.zip", "a.rar"]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_lists_reads_and_unpacks_the_same_files(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / name, FILES)
    assert is_archive(path)
    assert members(path) == list(FILES)
    assert {name: read_member(path, name) for name in FILES} == FILES
    found = unpack(path, tmp_path / "out")
    assert found == [tmp_path / "out" / name for name in FILES]
    assert [path.read_bytes() for path in found] == list(FILES.values())
    assert everything_below(tmp_path / "out") == set(FILES)  # no lock, no hidden folder


def test_an_archive_is_recognised_by_its_ending_in_any_case() -> None:
    assert is_archive(Path("KA04.RAR"))
    assert not is_archive(Path("KA04.mat"))


@pytest.mark.parametrize("name", KINDS)
def test_an_archive_cut_short_anywhere_is_refused_by_name(tmp_path: Path, name: str) -> None:
    whole = make(tmp_path / name, FILES).read_bytes()
    path = tmp_path / f"cut-{name}"
    for share in (0, 5, 30, 50, 60):
        path.write_bytes(whole[: len(whole) * share // 100])
        with pytest.raises(DamagedArchiveError, match=r"cut-a.*cannot be read"):
            members(path)
        with pytest.raises(DamagedArchiveError):
            unpack(path, tmp_path / "out")
        assert everything_below(tmp_path / "out") == set()


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / name, {"two.mat": FILES["KA04/two.mat"]})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedArchiveError, match=name):
        read_member(path, "two.mat")


def test_a_web_page_called_rar_is_named(tmp_path: Path) -> None:
    path = tmp_path / "KA04.rar"
    path.write_text("<html>not found</html>" * 100)
    with pytest.raises(DamagedArchiveError, match=r"KA04.rar: cannot be read"):
        members(path)


def test_an_archive_that_is_missing_or_lacks_the_member_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.zip: .*no such file"):
        members(tmp_path / "gone.zip")
    with pytest.raises(InputError, match=r"a.zip: holds 'three.mat' nowhere"):
        read_member(make_zip(tmp_path / "a.zip", FILES), "three.mat")


ESCAPES = ["../evil", "a/../../evil", "/evil", "C:/evil", "C:evil", "a\\..\\..\\evil", "a//b", "a/./b", "a\nb", ".. /x"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_names_that_lead_elsewhere_are_refused_and_nothing_is_written(tmp_path: Path, kind: str, name: str) -> None:
    path = make(tmp_path / kind, {"good.mat": b"good", name: b"evil"})
    with pytest.raises(InputError, match="was not unpacked, because"):
        unpack(path, tmp_path / "deep" / "out")
    assert everything_below(tmp_path) == {kind}


def test_links_and_devices_are_neither_listed_nor_unpacked(tmp_path: Path) -> None:
    linked = zipfile.ZipInfo("link")
    linked.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(linked, "/etc/passwd")
    device = zipfile.ZipInfo("link")
    device.external_attr = (stat.S_IFCHR | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(device, "")
    make_rar(tmp_path / "a.rar", {"link": b""}, link="/etc/passwd")
    packed = sorted(tmp_path.iterdir())
    assert len(packed) == 3
    for path in packed:
        assert members(path) == []
        with pytest.raises(InputError, match=r"'link', a link or device"):
            unpack(path, tmp_path / "out")
        assert everything_below(tmp_path / "out") == set()


def test_a_link_already_in_the_folder_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "KA04").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="leads outside"):
        unpack(make_zip(tmp_path / "a.zip", FILES), tmp_path / "out")
    assert everything_below(tmp_path / "elsewhere") == set()


@pytest.mark.parametrize("names", [("a.mat", "A.MAT"), ("a", "a/b"), ("a/b", "A"), ("a", "a."), ("é", "e\u0301")])
def test_names_that_are_one_on_some_disk_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    path = make_zip(tmp_path / "a.zip", {name: name.encode() for name in names})
    with pytest.raises(InputError, match="same name"):
        unpack(path, tmp_path / "out")
    assert everything_below(tmp_path / "out") == set()


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.mat", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.mat", b"2")
    with pytest.raises(InputError, match="twice"):
        read_member(path, "a.mat")
    with pytest.raises(InputError, match="same name"):
        unpack(path, tmp_path / "out")


@pytest.mark.parametrize("name", KINDS)
def test_sizes_and_counts_are_bounded_by_what_really_comes_out(tmp_path: Path, name: str, monkeypatch) -> None:
    path = make(tmp_path / name, {"a": bytes(3 * 2**20), "b": bytes(3 * 2**20)})
    with pytest.raises(InputError, match="past the limit"):
        read_member(path, "a", limit=1000)
    monkeypatch.setattr(archives, "UNPACK_LIMIT", 4 * 2**20)
    with pytest.raises(InputError, match="unpacks 'b' past the limit"):
        unpack(path, tmp_path / "out")
    monkeypatch.setattr(archives, "FILES_LIMIT", 1)
    with pytest.raises(InputError, match="more than 1 files"):
        unpack(path, tmp_path / "out")
    assert everything_below(tmp_path / "out") == set()
    monkeypatch.setattr(archives, "UNPACK_LIMIT", 6 * 2**20)
    monkeypatch.setattr(archives, "FILES_LIMIT", 2)
    assert len(unpack(path, tmp_path / "out")) == 2


@pytest.mark.parametrize("claim", [10, 2**31])
def test_a_zip_that_lies_about_its_size_unpacks_neither_more_nor_wrong(tmp_path: Path, claim: int, monkeypatch) -> None:
    size = 5 * 2**20
    path = make_zip(tmp_path / "a.zip", {"bomb": bytes(size)})
    honest, lie = struct.pack("<I", size), struct.pack("<I", claim)
    assert path.read_bytes().count(honest) == 2  # in the member's own header and in the list at the end
    path.write_bytes(path.read_bytes().replace(honest, lie))
    assert members(path) == ["bomb"]
    with pytest.raises(InputError, match=r"cannot be read|limit"):
        read_member(path, "bomb", limit=2**20)
    monkeypatch.setattr(archives, "UNPACK_LIMIT", 2**20)
    with pytest.raises(InputError, match=r"cannot be read|limit"):
        unpack(path, tmp_path / "out")
    assert everything_below(tmp_path / "out") == set()


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_are_neither_stored_nor_deflated_are_refused(tmp_path: Path, how: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", how) as archive:
        archive.writestr("bomb", bytes(2**20))
    for read in (members, lambda path: read_member(path, "bomb"), lambda path: unpack(path, tmp_path / "out")):
        with pytest.raises(InputError, match="neither stored nor deflated"):
            read(tmp_path / "a.zip")
    assert everything_below(tmp_path / "out") == set()


def test_a_different_file_is_never_overwritten_and_an_identical_one_is_kept(tmp_path: Path) -> None:
    path, out = make_zip(tmp_path / "a.zip", FILES), tmp_path / "out"
    first = unpack(path, out)
    stamps = [path.stat().st_mtime_ns for path in first]
    assert unpack(path, out) == first
    assert [path.stat().st_mtime_ns for path in first] == stamps
    (out / "KA04" / "one.mat").unlink()
    (out / "KA04" / "two.mat").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"two.mat: .*differs"):
        unpack(path, out)
    assert (out / "KA04" / "two.mat").read_bytes() == b"mine"
    assert not (out / "KA04" / "one.mat").exists()  # all or none


def test_an_interrupted_unpacking_leaves_nothing_and_can_be_run_again(tmp_path: Path, monkeypatch) -> None:
    path, out = make_zip(tmp_path / "a.zip", FILES), tmp_path / "out"
    chunks = archives._chunks

    def interrupted(path, item, limit):
        yield from chunks(path, item, limit)
        if item.name == "KA04/two.mat":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archives, "_chunks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            unpack(path, out)
    assert everything_below(out) == set()
    assert len(unpack(path, out)) == 3


def _unpack_and_die(path: Path, out: Path) -> None:
    archives._place = lambda *_: os._exit(9)
    unpack(path, out)


def test_files_left_by_a_killed_process_are_not_taken_for_data_and_are_removed(tmp_path: Path) -> None:
    path, out = make_zip(tmp_path / "a.zip", FILES), tmp_path / "out"
    process = multiprocessing.get_context("spawn").Process(target=_unpack_and_die, args=(path, out))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    process.close()
    left = everything_below(out)
    assert {Path(name).suffix for name in left} == {".part"}
    assert len(unpack(path, out)) == 3
    assert everything_below(out) == set(FILES)


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_named(tmp_path: Path, monkeypatch) -> None:
    path = make_zip(tmp_path / "a.zip", FILES)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file"):
        unpack(path, tmp_path / "file")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives, "_place", full)
    with pytest.raises(InputError, match=r"the disk of .*out is full"):
        unpack(path, tmp_path / "out")
    assert everything_below(tmp_path / "out") == set()


def test_without_rarfile_the_error_has_the_install_command(tmp_path: Path, monkeypatch) -> None:
    path = make_rar(tmp_path / "KA04.rar", FILES)
    monkeypatch.setitem(sys.modules, "rarfile", None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[fetch\]'"):
        members(path)
    assert members(make_zip(tmp_path / "a.zip", {"a": b""})) == ["a"]


def test_without_a_program_for_compressed_members_several_are_named(tmp_path: Path, monkeypatch) -> None:
    rarfile = archives.rar_reader()
    for tool in ("UNRAR", "UNAR", "BSDTAR", "SEVENZIP", "SEVENZIP2"):
        monkeypatch.setattr(rarfile, f"{tool}_TOOL", str(tmp_path / "nothing"))
    monkeypatch.setattr(rarfile, "CURRENT_SETUP", None)
    path = make_rar(tmp_path / "KA04.rar", {"a.mat": b"pretend this is compressed"}, method=3)
    assert members(path) == ["a.mat"]
    with pytest.raises(InputError, match=r"KA04.rar: is compressed.*unrar.*bsdtar") as caught:
        read_member(path, "a.mat")
    assert not isinstance(caught.value, DamagedArchiveError)
    assert read_member(make_rar(tmp_path / "stored.rar", FILES), "KA04/two.mat") == FILES["KA04/two.mat"]
