"""`bearcat methods`: the parts of each method, and the settings of one with the values that are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from bearcat.cli.options import print_lines, print_table

if TYPE_CHECKING:
    from bearcat.cat.recipes import Recipe


def methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="A method, to see its settings.")] = None,
) -> None:
    """List the methods, or the parts and settings of one (docs/method.md)."""
    from bearcat.cat.recipes import GROUPS, RECIPES, find_recipe

    if name is not None:
        name = find_recipe(name)
        recipe = RECIPES[name]
        print_lines(f"{name}, input {recipe.input}")
        for part in recipe.ingredients:
            first, _, _ = str(part.__doc__).partition("\n\n")
            print_lines(f"{part.name}: {' '.join(first.split())}")
        print_table(list(settings_of(recipe)))
        return
    known = {method for group in GROUPS.values() for method in group}
    added = {method: recipe for method, recipe in RECIPES.items() if method not in known}
    for title, group in (GROUPS | {"added": added}).items():
        rows = [
            {
                "method": method,
                "input": recipe.input,
                "parts": ", ".join(part.name for part in recipe.ingredients),
                "calibrator": ", ".join(filter(None, (recipe.calibration, recipe.final))),
            }
            for method, recipe in group.items()
        ]
        print_table(rows, title=title)


def settings_of(recipe: Recipe) -> Iterator[dict[str, str]]:
    """Every setting of a method as `--method-set` takes it: name, value and what it may be."""
    from bearcat.cat.evaluate import CALIBRATORS
    from bearcat.cat.networks import ENCODERS

    calibrators = ", ".join([*CALIBRATORS, "none"])
    tables = {"encoder": ", ".join(ENCODERS), "calibration": calibrators, "final": calibrators}
    tables["precision"] = "float32, tf32, bfloat16, none"
    kinds = {bool: "true, false", int: "a whole number", float: "a number", tuple: "values with commas between them"}
    owners: list[tuple[str, Any]] = [("", recipe), ("schedule.", recipe.schedule)]
    for part in recipe.ingredients:
        owners.append((f"{part.name}.", part))
        owners += [(f"{name}.", value) for name, value in vars(part).items() if is_dataclass(value)]
    for prefix, owner in owners:
        for setting in fields(owner):
            value = getattr(owner, setting.name)
            if is_dataclass(value) or setting.name in ("ingredients", "input", "epochs"):  # which options set
                continue
            known = ", ".join(setting.metadata.get("known", ())) or tables.get(prefix + setting.name, "")
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            text = text.lower() if value is None or isinstance(value, bool) else text
            accepted = known or kinds.get(type(value), "")
            yield {"--method-set": prefix + setting.name, "value": text, "accepted": accepted}
