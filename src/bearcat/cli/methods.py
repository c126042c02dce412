"""`bearcat methods`: a sentence about each method, and the settings of one with the values that are accepted."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from bearcat.cli.options import print_lines, print_table

if TYPE_CHECKING:
    from bearcat.cat.recipes import Recipe

CALIBRATED = {  # of the methods CAT, by their calibrator
    "Temperature": ("one temperature, fitted on the source", "§3.2, Eq. 6"),
    "Vector": ("a factor and an offset for each class", "§3.2, Eq. 7"),
    "Matrix": ("a full matrix and offsets", "§3.2, Eq. 8"),
    "CPCS": ("a temperature fitted on source windows, weighted by their likeness to the target", "§3.2, Eq. 9"),
    "TransCal": ("the temperature at which confidence is the estimated target accuracy", ""),
    "recordings": ("one temperature, at the end by the agreement of each recording's windows", ""),
}
OTHERS = {
    "source-only": ("Trains on the source alone.", "§5.2"),
    "DANN": ("Makes features of both domains alike with a domain classifier and gradient reversal.", "§2.2"),
    "DANN*": ("DANN, with minimum class confusion and SDAT.", "§5.2"),
    "AT-fixed": ("DANN and the teacher's pseudo-labels above one fixed threshold.", "§2.3, §5.4"),
    "AT": ("DANN and the teacher's pseudo-labels above a threshold of their class.", "§3.3, Eq. 12"),
    "AT+MCC": ("AT, with minimum class confusion.", "§5.4"),
    "AT+SDAT": ("AT, with SDAT.", "§5.4"),
    "AT*": ("AT, with minimum class confusion and SDAT.", "§5.4"),
    "AT-views": ("AT; the teacher labels a weak view of a window, the student learns a strong one.", ""),
    "AT*-views": ("AT-views, with minimum class confusion and SDAT.", ""),
    "CAT-views": ("AT-views; the teacher is calibrated by one temperature.", ""),
    "CAT*-views": ("AT*-views; the teacher is calibrated by one temperature.", ""),
    "PCG-CNN": ("Mean teacher with consistency of sure predictions and class balance (Wu et al. 2020).", "Table 1"),
    "DTL-IPLL": ("MK-MMD and labels on which two stochastic passes agree (Zhu et al. 2022).", "Table 1"),
    "Wang": ("Wasserstein alignment, triplets and pseudo-labels (Wang et al. 2022).", "Table 1"),
    "MK-MMD": ("Lowers the discrepancy of features under five kernels (Long et al. 2015).", ""),
    "JMMD": ("MK-MMD of features and predictions together (Long et al. 2017).", ""),
    "CORAL": ("Makes the covariances of both domains alike (Sun and Saenko 2016).", ""),
    "CDAN": ("DANN on features times predictions (Long et al. 2018).", ""),
    "CDAN+E": ("CDAN in which sure windows count more.", ""),
    "AdaBN": ("Trains on the source; normalises by statistics of the target (Li et al. 2016).", ""),
    "MCD": ("Two classifiers disagree on the target, the encoder unites them (Saito et al. 2018).", ""),
    "DeepJDOT": ("Moves source windows to target windows by optimal transport (Damodaran et al. 2018).", ""),
    "dense-source-only": ("Trains on the source alone.", ""),
    "match-clusters": ("Shifts each class to the target cluster that matches it; the default of `adapt`.", ""),
    "unseen-bearings": ("Trains on the source and on bearing states known from other benches.", ""),
    "dense-MCC": ("Scales each domain by itself and lowers class confusion (Jin et al. 2020).", ""),
    "dense-CAT*-Temperature": ("CAT*-Temperature on standardised physical inputs.", ""),
    "linear-source-only": ("A linear classifier of the source alone.", ""),
}


def about(name: str) -> tuple[str, str]:
    """A sentence about a method, and its place in the paper (Forest and Fink 2024), or an empty text.

    >>> about("CAT*-Temperature")[1]
    '§3.2, Eq. 6'
    """
    from bearcat.cat.recipes import RECIPES

    if name in OTHERS:
        return OTHERS[name]
    family, _, calibrator = name.partition("-")
    if family.startswith("CAT") and calibrator in CALIBRATED:
        calibration, place = CALIBRATED[calibrator]
        return f"{family[1:]}; the teacher is calibrated by {calibration}.", place
    return f"Ingredients: {', '.join(ingredient.name for ingredient in RECIPES[name].ingredients) or 'none'}.", ""


def settings_of(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Every setting of a method as `--method-set` takes it: name, value and what it may be."""
    from bearcat.cat.evaluate import CALIBRATORS
    from bearcat.cat.networks import ENCODERS

    calibrators = ", ".join([*CALIBRATORS, "none"])
    tables = {"encoder": ", ".join(ENCODERS), "calibration": calibrators, "final": calibrators}
    tables["precision"] = "float32, tf32, bfloat16, none"
    kinds = {bool: "true, false", int: "a whole number", float: "a number", tuple: "values with commas between them"}
    owners: list[tuple[str, Any]] = [("", recipe), ("schedule.", recipe.schedule)]
    for each in recipe.ingredients:
        owners.append((f"{each.name}.", each))
        owners += [(f"{name}.", value) for name, value in vars(each).items() if is_dataclass(value)]
    rows = []
    for prefix, owner in owners:
        for setting in fields(owner):
            value = getattr(owner, setting.name)
            if is_dataclass(value) or setting.name in ("ingredients", "input", "epochs"):  # which options set
                continue
            known = ", ".join(setting.metadata.get("known", ())) or tables.get(prefix + setting.name, "")
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            text = text.lower() if value is None or isinstance(value, bool) else text
            rows.append((prefix + setting.name, text, known or kinds.get(type(value), "")))
    return rows


def methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="A method, to see its settings.")] = None,
) -> None:
    """List the methods, or the settings of one."""
    from bearcat.cat.recipes import GROUPS, RECIPES, find_recipe

    if name is not None:
        name = find_recipe(name)
        (sentence, paper), recipe = about(name), RECIPES[name]
        print_lines(f"{name}: {sentence} Input: {recipe.input}.{f' Paper: {paper}.' if paper else ''}")
        columns = ("--method-set", "value", "accepted")
        rows = [dict(zip(columns, row, strict=True)) for row in settings_of(recipe)]
        print_table(rows, left=columns, fixed=columns)
        return
    added = set(RECIPES).difference(*GROUPS.values())
    columns = ("method", "what it does", "paper")
    for title, group in (GROUPS | {"added": sorted(added)} if added else GROUPS).items():
        rows = [dict(zip(columns, (method, *about(method)), strict=True)) for method in group]
        print_table(rows, left=columns, fixed=columns, title=title)
