"""What version 0.3 had and this one has not: each old form is refused with status 2 and names what to use instead."""

import re
import tomllib

import pytest
import typer

from bearcat.adaptation import make_recipe
from bearcat.cat import find_calibrator
from bearcat.cat.networks import find_encoder
from bearcat.cat.recipes import RECIPES, find_recipe
from bearcat.cli import application
from bearcat.data import open_dataset
from bearcat.errors import InputError
from bearcat.settings import DiagnoseRequest
from bearcat.watch.notify import Notifier
from tests.commands import ROOT

GRID = 'data = "simulated"\ntasks = ["N15_M07_F10:N09_M07_F10"]\ninputs = ["frequency"]\n'
METHOD = '[[method]]\nmethod = "{}"\n'


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("recipes", "bearcat methods"), ("data fetch collection", "manifest"), ("data fetch femto", "manifest"), ("data fetch ims", "manifest"),
        ("adapt --split machine", "specimen"), ("adapt --method SHOT", "dense-MCC"), ("adapt --data femto", "manifest"),
        ("adapt --method AT --method-set encoder=silero", "cnn"), ("adapt --set clearance=1", "specimen"),
        ("report a --out a.pdf", "print"), ("diagnose a.mf4", ".npz"), ("diagnose a.unv", ".npz"),
        ("predict a b --min-confidence=0.8", "confidence"), ("bench run a --jobs 2", "--ray local"),
        ("watch a --store a.db --false-alarms 1/month", "12 for one a month"),
        ("watch a --store a.db --baseline 30,2d", "--baseline-days"),
    ],
)  # fmt: skip
def test_an_old_command_line_names_what_to_use(command, tmp_path, monkeypatch, line, instead):
    """Options and commands alone: below."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("a.mf4", "a.unv"):
        (tmp_path / name).write_bytes(b"MDF     4.10")
    status, _, said = command(*line.split())
    assert (status, said.count("\n")) == (2, 1), said
    assert instead in said


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ('[[part]]\ntasks = [["a", "b"]]\n', "A+B:C"), (METHOD.format("SHOT"), "dense-MCC"), ('[[method]]\nrecipe = "DANN"', "method = "), ('precision = "bfloat16"\n' + METHOD.format("DANN"), "set = {"),
        ('split = { scheme = "block", test = 0.3 }\n' + METHOD.format("DANN"), "unknown setting"),
        ('split = { scheme = "block", gap = 1 }\n' + METHOD.format("DANN"), "unknown setting"),
    ],
)  # fmt: skip
def test_an_old_grid_names_what_to_write(command, tmp_path, text, instead):
    (tmp_path / "a.toml").write_text(GRID + text)
    status, _, said = command("bench", "status", tmp_path / "a.toml", "--store", tmp_path / "runs")
    assert (status, said.count("\n")) == (2, 1), said
    assert instead in said


@pytest.mark.parametrize(
    ("old", "instead"),
    [
        (lambda: find_encoder("silero"), "cnn"), (lambda: find_calibrator("Vector:ridge=1"), "1e-4"),
        (lambda: find_calibrator("CPCS:resampling=over"), "solver=scikit-learn"),
        (lambda: make_recipe("AT", "time", 3, {"labels.ramp_up": "1"}), "labels.weight"),
        (lambda: open_dataset("collection"), "manifest"), (lambda: open_dataset("femto"), "manifest"),
        (lambda: open_dataset("ims"), "manifest"), (lambda: DiagnoseRequest.of(override=True), "manifest"),
        (lambda: open_dataset("paderborn", ROOT, {"channel": "x"}), "manifest"),
        (lambda: open_dataset("paderborn", ROOT, {"label_by": "type"}), "manifest"),
        (lambda: Notifier(["echo"], print), "json://"), (lambda: Notifier(["smtp://host"], print), "mailto://"),
    ],
)  # fmt: skip
def test_an_old_name_in_python_names_what_to_use(old, instead):
    with pytest.raises(InputError, match=re.escape(instead)):
        old()


NAMES = (line.partition(":") for line in (ROOT / "tests/names_of_v03.txt").read_text().splitlines()[1:])
OLD = {name: names.split() for name, _, names in NAMES}
METHODS = OLD.pop("methods")


@pytest.mark.parametrize("path", OLD)
def test_an_old_option_works_or_names_what_to_use(command, path):
    """Sentences name commands and options that there are."""
    options, words = options_of(), path.replace("FOLDER", "folder").split()
    for option in OLD[path]:
        if option in options.get(path, ()):
            continue
        status, _, sentence = command(*words, option)
        assert (status, sentence.count("\n")) == (2, 1), sentence
        instead = sentence.partition("was removed; ")[2]
        assert instead, sentence
        assert set(re.findall(r"--[a-z-]+", instead)) <= {option for known in options.values() for option in known}
        assert set(re.findall(r"bearcat ([a-z]+)", instead)) <= {known.partition(" ")[0] for known in options}


def options_of() -> dict[str, set[str]]:
    """The options of each command of today."""
    options, waiting = {}, [("", typer.main.get_command(application()))]
    while waiting:
        path, command = waiting.pop()
        if hasattr(command, "commands"):
            waiting += [(f"{path} {name}", inner) for name, inner in command.commands.items()]
        else:
            options[path.strip()] = {flag for parameter in command.params for flag in parameter.opts}
    return options


@pytest.mark.parametrize("name", METHODS)
def test_an_old_method_is_there_or_names_one_that_is(name):
    if name in RECIPES:
        assert find_recipe(name) == name
        return
    with pytest.raises(InputError, match="any more; use '") as refused:
        find_recipe(name)
    assert any(f"'{instead}'" in str(refused.value) for instead in RECIPES)


def test_every_extra_that_a_sentence_names_is_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"bearcat\[(\w+)\]", text)) | set(re.findall(r'library\((?:"\w+"|name), "(\w+)"', text))
    assert {"formats", "serve", "watch"} <= named <= set(extras)
