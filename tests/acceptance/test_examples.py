"""Examples run, and the pages for newcomers do what they say: their commands are run and their outputs compared.

Of a page, in order: `bash` blocks are run line by line, `python` blocks are run, or saved where their first line says
`# file: NAME`. A block without a language that follows is what must
have been printed: its lines, in order, among others. Blanks may differ and so may numbers with a decimal point; `…`
stands for anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import python

ROOT = Path(__file__).parents[2]


def shell(line: str, folder: Path, pictures: bool) -> str:
    """What a line of a page prints."""
    words = line.split()
    if words[:2] == ["bearcat", "adapt"] and "--epochs" not in words:
        words += ["--epochs", "20"]  # of 60, for the same answers
    if words[0] == "bearcat":  # predict ends with 1 where there is an alarm
        return python(*words, folder=folder, status=(0, 1) if words[1] == "predict" else (0,), pictures=pictures)
    if words[0] == "python" and words[1] != "-m":
        return python(*words[1:], folder=folder, pictures=pictures)
    if words[0] == "python":
        line = line.replace("python", sys.executable, 1)
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        line, shell=True, cwd=folder, env=environment, text=True, timeout=300, stdout=-1, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, f"{line} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def assert_printed(promised: str, printed: str) -> None:
    """Every line that a page promises was printed, in this order."""
    lines = iter(printed.splitlines())
    for line in filter(None, map(str.strip, promised.splitlines())):
        pattern = "".join(map(_free, re.split(r"(…|\d+\.\d+|\s+)", line)))
        assert any(re.fullmatch(pattern, candidate.strip()) for candidate in lines), f"not printed: {line}\n\n{printed}"


def _free(part: str) -> str:
    """A part of a promised line as a pattern: what may differ is left open."""
    if part == "…":
        return ".*"
    if part.isspace():
        return r"\s+"
    return r"[\d.]+" if re.fullmatch(r"\d+\.\d+", part) else re.escape(part)


def follow(page: Path, folder: Path, pictures: bool = True) -> None:
    """Does what the page says, in this folder; without `pictures` where nobody reads them."""
    (folder / "examples").symlink_to(ROOT / "examples")
    printed = ""
    for language, text in blocks(page):
        if language == "bash":
            printed = "".join(shell(line, folder, pictures) for line in text.splitlines() if line.strip())
        elif language == "python":
            if text.startswith("# examples/"):  # shown; test_seams.py runs it
                continue
            name = re.match(r"# file: (\S+)\n", text)
            place = folder / (name[1] if name else "block.py")
            place.write_text(text, encoding="utf-8")
            printed = "" if name else python(str(place), folder=folder)
        else:
            assert_printed(text, printed)


@pytest.mark.parametrize("example", ["cat_in_one_page.py", "cat.ipynb"])
def test_cat_on_a_page_and_in_a_notebook_beats_source_only(tmp_path, example):
    script = ROOT / "examples" / example
    if example.endswith(".ipynb"):
        cells = json.loads(script.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        script = tmp_path / "cells.py"
        script.write_text(code, encoding="utf-8")
    printed = python(str(script), folder=tmp_path)
    accuracy = {name: int(value) for name, value in re.findall(r"^(\S+): target accuracy (\d+)%", printed, re.M)}
    assert set(accuracy) == {"source-only", "CAT*-Temperature"}
    assert accuracy["CAT*-Temperature"] > accuracy["source-only"]
    assert list(tmp_path.glob("*.png")) or example.endswith(".ipynb")


def test_your_own_folder_ends_with_a_recommendation_and_diagnoses(tmp_path):
    script = str(ROOT / "examples" / "your_own_folder.py")
    printed = python(script, "pump", "--epochs", "2", folder=tmp_path, pictures=False)
    assert re.search(r"^Recommendation: (use|check|do not use)\.", printed, re.M), printed
    for file in ("healthy12.csv", "inner16.wav", "outer20.wav"):
        line = rf"^{file}: (ok|check|alarm), (healthy|inner race|outer race|unknown|cannot tell), confidence \d+%$"
        assert re.search(line, printed, re.M), printed
    assert "balance: on" in printed
    assert (tmp_path / "pump" / "out" / "record.json").exists()  # the page is drawn in the tutorial


def test_read_the_records_makes_a_run_where_there_is_none_and_draws_it(tmp_path):
    printed = python(str(ROOT / "examples" / "read_the_records.py"), "--picture", "curves.png", folder=tmp_path)
    assert re.search(r"target accuracy: \d+\.\d%", printed)
    assert re.search(r"supervised loss: [\d.]+ in the first epoch, [\d.]+ in the last of 6", printed)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    empty = python(str(ROOT / "examples" / "read_the_records.py"), "nothing", folder=tmp_path)
    assert "nothing: no finished run in it" in empty


def test_the_first_hour_for_researchers_does_what_it_says(tmp_path):
    follow(ROOT / "docs" / "first-hour-researchers.md", tmp_path)
    assert all((tmp_path / name).exists() for name in ("curves.png", "out/record.json", "store", "tables"))


def test_what_is_added_works_as_its_page_says_which_shows_the_files_that_test_seams_runs(tmp_path):
    page = ROOT / "docs" / "extend.md"
    follow(page, tmp_path, pictures=False)
    assert all((tmp_path / folder / "record.json").exists() for folder in ("out", "mcc"))
    shown = re.findall(r"^```python\n# examples/(\S+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    assert len(shown) == 4
    for name, code in shown:
        assert (ROOT / "examples" / name).read_text(encoding="utf-8") == code
