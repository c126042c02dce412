"""Texts and values into settings and requests: each field once, whoever fills it in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bearcat.deploy.serve import QUERY
from bearcat.errors import InputError
from bearcat.settings import AdaptRequest, DiagnoseRequest, WatchRequest, override
from tests.test_docs import KNOWN


@dataclass(frozen=True)
class Example:
    count: int = 1
    share: float = 0.5
    on: bool = False
    place: Path = Path()
    rate: float | None = 1.0
    sizes: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


def test_every_type_of_setting_is_read_from_text():
    texts = {"count": "7", "share": "1e-3", "on": "True", "place": "a/b", "rate": "none", "sizes": "1, 2.5"}
    texts["words"] = "a,b"
    assert override(Example(), texts) == Example(7, 1e-3, True, Path("a/b"), None, (1.0, 2.5), ("a", "b"))
    assert override(Example(), {"rate": "5"}).rate == 5.0


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("cuont", "1", "'cuont'.*'count'"),
        ("count", "1.5", "'count' must be a whole number, not '1.5'"),
        ("share", "half", "'share' must be a number"),
        ("on", "yes", "'on' must be true or false"),
        ("sizes", "1,x", "'sizes 2' must be a number, not 'x'"),
    ],
)
def test_a_wrong_setting_is_named(name, text, sentence):
    with pytest.raises(InputError, match=sentence):
        override(Example(), {name: text})


def test_texts_and_values_make_the_same_request():
    typed = DiagnoseRequest.of(rpm=1480, rate=12_000, trust_speed=True, group=np.int64(1), alarm=["a,b"])
    assert typed == DiagnoseRequest.of(rpm="1480", rate="12000", trust_speed="true", group="1", alarm=("a,b",))
    assert (typed.rpm, typed.rate, typed.alarm) == ("1480", 12_000.0, ("a,b",))
    assert DiagnoseRequest.of(rpm=None, bearing=None) == DiagnoseRequest()
    assert AdaptRequest.of(settings=["seconds=1"], rpm=900).dataset_settings == {"seconds": "1", "rpm": "900"}
    assert WatchRequest.of(false_alarms="12", baseline_days=7) == WatchRequest(false_alarms=12.0, baseline_days=7.0)


@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        (AdaptRequest, "methd", "DANN", "did you mean 'method'"),
        (AdaptRequest, "epochs", 2.5, "whole number"), (AdaptRequest, "window", 1, "--window"),
        (AdaptRequest, "epochs", 0, "--epochs"), (AdaptRequest, "seed", -1, "--seed"),
        (WatchRequest, "jobs", -1, "--jobs"),
        (DiagnoseRequest, "rate", "fast", "a number"), (DiagnoseRequest, "rate", float("nan"), "--rate"),
        (DiagnoseRequest, "mounting", "soft", "'mounting' must be rigid or flexible"),
        (DiagnoseRequest, "group", 3, "--group"),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_request_is_named(kind, field, value, words):
    with pytest.raises(InputError) as refused:
        kind.of(**{field: value})
    assert words in refused.value.for_command_line


def test_commands_and_queries_have_the_fields_of_their_requests():
    fields = {field.name: field.metadata["help"] for field in dataclasses.fields(DiagnoseRequest)}
    options = {option.name: option.help for option in KNOWN["diagnose",].params}
    assert all(options[name].startswith(text) for name, text in fields.items())
    assert set(QUERY) - fields.keys() == {"filename", "picture"}


def test_every_help_fits_a_screen():
    for name, command in KNOWN.items():
        text = command.make_context(" ".join(name), [], resilient_parsing=True, terminal_width=80).get_help()
        assert text.count("\n") < 40, name
        assert max(map(len, text.splitlines())) <= 80, name
