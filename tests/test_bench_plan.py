"""Grids: what a file asks for, and what is said where it cannot be meant."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bearcat.adaptation import Library
from bearcat.bench.grid import plan, read_grid
from bearcat.cat.teacher import SelfTraining
from bearcat.errors import InputError

GRIDS = Path(__file__).parents[1] / "grids"
SMALL = """
title = "small"
methods = ["source-only", "DANN"]
tasks = ["N15_M07_F10:N09_M07_F10"]
inputs = ["frequency"]
seeds = 2
epochs = 2
preparation = { length = 256 }

[data]
name = "simulated"
settings = { severities = [4], faults = ["inner", "outer"], seconds = 1.0 }
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_grid_can_be_planned_and_that_of_the_page_can_be_read(tmp_path, monkeypatch, real_data):
    page = (GRIDS.parent / "docs" / "benchmark.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (grid,) = read_grid(written(tmp_path, example))
    assert [method.name for method in (*grid.methods, *grid.method)] == ["source-only", "DANN", "AT, τ=0.95"]
    monkeypatch.setenv("BEARCAT_DATA", str(real_data("cwru").parent))
    for path in GRIDS.glob("*.toml"):
        assert plan(read_grid(path)), path


def test_the_paper_is_960_runs_as_the_published_code_does_them_without_reading_data(tmp_path):
    planned = plan(read_grid(GRIDS / "paper.toml"), tmp_path / "nowhere")
    assert len({spec.cell for spec in planned}) == 960
    assert (planned[-1].recipe.published, planned[-1].recipe.precision) == (True, "float32")


def test_a_grid_may_have_parts_with_data_windows_and_methods_of_their_own(tmp_path):
    text = """
    seeds = 2
    inputs = ["time"]
    methods = ["source-only", "DANN"]
    [[part]]
    data = "simulated"
    domains = ["N15_M07_F10", "N09_M07_F10"]
    [[part]]
    data = { name = "simulated", settings = { seconds = 1 } }
    tasks = ["N15_M07_F10:N09_M07_F10"]
    methods = ["AT"]
    preparation = { length = 512 }
    """
    path = written(tmp_path, text)
    planned = plan(read_grid(path))
    assert [(spec.recipe_name, spec.preparation.length) for spec in planned] == [
        *[("source-only", 1024)] * 4, *[("DANN", 1024)] * 4, *[("AT", 512)] * 2,
    ]  # fmt: skip
    assert {spec.dataset.seconds for spec in planned} == {4.0, 1.0}
    with pytest.raises(InputError, match="--root"):
        plan(read_grid(path), tmp_path)
    with pytest.raises(InputError, match=r"part 1: .*seeds"):
        read_grid(written(tmp_path, "[[part]]\ndata = 'simulated'\nmethods = ['source-only']\nsedds = 1"))


def test_a_method_can_have_a_name_and_settings_of_its_own(tmp_path):
    text = SMALL.replace('methods = ["source-only", "DANN"]', "") + (
        '[[method]]\nname = "AT, τ=0.95"\nmethod = "at"\nset = { "labels.tau" = 0.95 }\n'
        '[[method]]\nname = "AT, undropped"\nmethod = "AT"\nset.teacher.dropout = false\nset.dropout = 0\n'
    )
    first, _, other, _ = plan(read_grid(written(tmp_path, text)))
    assert (first.cell.method, first.recipe_name, first.recipe.find(SelfTraining).tau) == ("AT, τ=0.95", "AT", 0.95)
    assert (other.recipe.find(SelfTraining).teacher.dropout, other.recipe.dropout) == (False, 0.0)


def test_domains_of_a_grid_go_by_name_or_index(tmp_path):
    def tasks(words: str) -> set[str]:
        text = SMALL.replace('tasks = ["N15_M07_F10:N09_M07_F10"]', words)
        return {str(spec.task) for spec in plan(read_grid(written(tmp_path, text)))}

    named = tasks('domains = ["N15_M07_F10", "N09_M07_F10"]')
    assert len(named) == 2
    assert tasks('domains = ["0", "N09_M07_F10"]') == tasks('domains = ["0", "1"]') == named
    assert tasks('domains = ["1", "0"]\ntasks = ["0:1", "1:0"]') == tasks('tasks = ["0:1", "1:0"]') == named


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seeds = 2", "sedes = 2"), ["'sedes'", "'seeds'?"]),
        (("length = 256", "lenght = 256"), ["preparation", "'lenght'", "'length'?"]),
        (("length = 256", 'input = "time"'), ["preparation", "'inputs'"]),
        (('name = "simulated"', 'nme = "simulated"'), ["data: ", "'nme'", "'name'?"]),
        (("severities = [4]", "severity = [4]"), ["'severity'", "'severities'?"]),
        (('"DANN"', '"DAN"'), ["'DAN'", "'DANN'?"]),
        (('"DANN"', '"dann", "DANN"'), ["'DANN, N15", "twice"]),
        (("seeds = 2", "seeds = -1"), ["'seeds'", "-1"]),
        (("epochs = 2", "epochs = 0"), ["epochs", "at least 1"]),
        (("epochs = 2", "epochs = 2.5"), ["'epochs'", "whole number"]),
        (('["frequency"]', '["frequenzy"]'), ["'frequenzy'", "'frequency'?"]),
        (('["N15_M07_F10:N09_M07_F10"]', '["N15_M07_F10"]'), ["task 1", '"A:B"']),
        (("M07_F10:N09", "M07_F10:N15"), ["'N15_M07_F10'", "two different domains"]),
        (("title", "split = 'blok'\ntitle"), ["split", "'blok'", "'block'?"]),
        (("title", "method = [{ method = 'AT', set.labels.ta = 1 }]\ntitle"), ["method 'AT'", "'ta'", "'tau'?"]),
        (("title", "method = [{ name = 'x' }]\ntitle"), ["method 1", "'method' is missing"]),
        (("title = ", "title "), ["TOML"]),
        (("seeds = 2", "seeds = 0"), ["'seeds'"]),
        (("preparation = { length = 256 }", "preparation = 3"), ["preparation", "table"]),
        (("title", "target = { kep = ['healthy'] }\ntitle"), ["target 1", "'kep'", "'keep'?"]),
        (("title", "target = { recordings = { rest = 'two' } }\ntitle"), ["recordings", "'two'"]),
        (("title", "target = { recordings = { rest = 0 } }\ntitle"), ["'rest'", "at least 1"]),
        (("title", "target = { recordings = { rset = 1 } }\ntitle"), ["'rset'"]),
        (("title", "part = []\ntitle"), ["'part'", "[[part]]"]),
        (('data]\nname = "simulated"\nsettings', 'data]\nsettings'), ["data: 'name' is missing"]),
        (("tasks = ", 'domains = ["N15_M07_F10"]\ntasks = "all" # '), ["has no cells", "two domains"]),
    ],
)  # fmt: skip
def test_a_grid_that_cannot_work_gets_one_sentence_that_names_the_field(tmp_path, change, words):
    assert change[0] in SMALL
    path = written(tmp_path, SMALL.replace(*change, 1))
    with pytest.raises(InputError) as caught:
        plan(read_grid(path))
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_line_prints_the_same_and_exits_with_2(tmp_path, command):
    grid, store = written(tmp_path, SMALL), ("--store", tmp_path / "store")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("precious")
    for words, sentence in (
        (("run", tmp_path / "grit.toml", *store), "No such file"),
        (("run", grid, "--store", tmp_path / "thesis"), "holds no store"),
        (("report", grid, *store), "holds no finished run"),
    ):
        status, _, errors = command("bench", *words)
        assert (status, errors.count("\n")) == (2, 1)
        assert sentence in errors


def names(path: Path, root: Path | None = None) -> list[str]:
    library = Library()
    return [library.identified(spec).identity for spec in plan(read_grid(path), root, library)]


def test_what_determines_a_result_and_nothing_else_changes_every_run_s_name(tmp_path):
    before, methods = names(written(tmp_path, SMALL)), 'methods = ["source-only", "DANN"]'
    assert len({*before}) == 4
    for change in (
        ("epochs = 2", "epochs = 3"),
        ("length = 256", "length = 256, stride = 128"),
        ('inputs = ["frequency"]', 'inputs = ["time"]'),
        ("seconds = 1.0", "seconds = 1.5"),
        ("N15_M07_F10:N09_M07_F10", "N15_M07_F10:N15_M01_F10"),
        ("seeds = 2", "seeds = [2, 3]"),
        ("title", "split = 'block'\ntitle"),
        (methods, 'methods = ["DANN*", "AT"]'),
        (methods, 'method = [{ method = "source-only", set.dropout = 0.4 }, { method = "DANN", set.dropout = 0.4 }]'),
    ):
        assert change[0] in SMALL
        assert not {*before} & {*names(written(tmp_path, SMALL.replace(*change, 1)))}, change
    renamed = 'method = [{ name = "plain", method = "source-only" }, { name = "mine", method = "DANN" }]'
    for same in (('"small"', '"another title"'), (methods, renamed), ("seeds = 2", "seeds = [0, 1]")):
        assert names(written(tmp_path, SMALL.replace(*same))) == before
    assert {*before} < {*names(written(tmp_path, SMALL.replace("seeds = 2", "seeds = 3")))}


def recorded(root: Path, domains: str) -> Path:
    """A folder of noise, two classes to a domain."""
    for number, place in enumerate(root / domain / label for domain in domains for label in ("one", "two")):
        place.mkdir(parents=True)
        np.save(place / "x.npy", np.random.default_rng(number).standard_normal(1000))
    return root


def test_the_content_of_files_names_runs_wherever_they_lie(tmp_path):
    root = recorded(tmp_path / "mine", "abc")
    path = written(tmp_path, 'data = "folder"\ntasks = ["a:b", "b:c"]\nmethods = ["DANN"]\nseeds = 1\n')
    before = names(path, root)
    moved = root.rename(tmp_path / "elsewhere")
    assert names(path, moved) == before
    np.save(moved / "a" / "one" / "x.npy", np.zeros(1000))
    after = names(path, moved)
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)  # of its domain's runs alone
