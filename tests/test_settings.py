"""Texts into settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from bearcat.errors import InputError, suggest
from bearcat.settings import override, pairs


@dataclass(frozen=True)
class Example:
    count: int = 1
    share: float = 0.5
    name: str = "x"
    on: bool = False
    place: Path = Path()
    rate: float | None = 1.0
    sizes: tuple[float, ...] = ()
    numbers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()


def test_every_type_of_setting_is_read_from_text():
    texts = {
        "count": "7", "share": "1e-3", "name": "a b", "on": "True", "place": "a/b", "rate": "none",
        "sizes": "1, 2.5", "numbers": "1,3-5", "words": "a,b",
    }  # fmt: skip
    assert override(Example(), texts) == Example(
        7, 1e-3, "a b", True, Path("a/b"), None, (1.0, 2.5), (1, 3, 4, 5), ("a", "b")
    )
    assert override(Example(), {"rate": "5"}).rate == 5.0
    assert override(Example(), {}) == Example()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("cuont", "1", "'cuont'.*'count'"),
        ("count", "1.5", "'count'.*'1.5'.*whole"),
        ("share", "half", "is not a number"),
        ("on", "yes", "is not true or false"),
        ("sizes", "1,x", "list"),
    ],
)
def test_a_wrong_setting_is_named(name, text, sentence):
    with pytest.raises(InputError, match=sentence):
        override(Example(), {name: text})


def test_pairs_need_a_name_and_a_sign():
    assert pairs(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1"):
        with pytest.raises(InputError, match="write NAME=VALUE"):
            pairs([wrong])


def test_the_nearest_name_is_suggested_whatever_its_case():
    assert suggest("LOAD1", ["load0", "load1"]) == "; did you mean 'load1'?"
    assert suggest("zebra", ["load0", "load1"]) == "; choose from load0, load1"
    assert suggest("zebra", []) == ""
