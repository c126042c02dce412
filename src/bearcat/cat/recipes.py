"""Methods are values: a recipe lists its ingredients, its calibrator, its encoder and when things happen.

The table everyone opens first is GROUPS, at the end. There is one training loop and it never asks for a recipe's name.
Defaults are the paper's and, where its text and the published code differ, mostly the code's: published.py has what
the code does and our default does not (docs/method.md has the table).

>>> recipe = RECIPES["CAT*-Temperature"].for_input("frequency").in_epochs(40)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from inspect import isfunction
from typing import Any, TypeVar

from bearcat.cat import published
from bearcat.cat.calibration import Calibrator, Evidence
from bearcat.cat.ingredient import KINDS, Ingredient, Schedule
from bearcat.cat.losses import Adversarial, Confusion, Sharpness
from bearcat.cat.networks import CNN, Encoder, find_encoder
from bearcat.cat.scaling import CPCS, Matrix, Temperature, Vector
from bearcat.cat.teacher import SelfTraining
from bearcat.errors import InputError, naming_place, suggest
from bearcat.settings import find_name, from_text, override, to_plain, to_text

Kind = TypeVar("Kind", bound=Ingredient)
CALIBRATORS: dict[str, type[Calibrator]] = {
    "Temperature": Temperature, "Vector": Vector, "Matrix": Matrix, "CPCS": CPCS,
}  # fmt: skip
"""All calibrators by name, the paper's and those that bearcat.methods adds; a row more is a calibrator more."""


def find_calibrator(text: str | Calibrator) -> Calibrator:
    """The calibrator that `NAME` or `NAME:SETTING=VALUE` describes; one that is given is itself. InputError if it needs
    what is no evidence.

    >>> find_calibrator("Temperature:bounds=0.5,100").bounds
    (0.5, 100.0)
    """
    calibrator = from_text(text, CALIBRATORS, "calibrator") if isinstance(text, str) else text
    name, known = type(calibrator).__name__, [field.name for field in fields(Evidence)]
    if not is_dataclass(calibrator) or type(calibrator).__hash__ is None:
        raise InputError(f"the calibrator '{name}' must be a dataclass; write @dataclass(frozen=True) above it")
    for need in getattr(calibrator, "needs", ()):
        if need not in known:
            raise InputError(f"the calibrator '{name}' needs '{need}', which is no evidence{suggest(need, known)}")
    return calibrator


@dataclass(frozen=True)
class Recipe:
    """A method. Encoder and calibrators are values; where a text is given (`NAME:SETTING=VALUE`), it is read.

    >>> recipe = Recipe((SelfTraining(), Adversarial(weight=0.5)), calibration=Temperature(bounds=(0.5, 100.0)))
    >>> recipe.in_epochs(40).with_settings({"labels.tau": "0.95", "encoder": "dense:widths=64"}).encoder.widths
    (64,)
    """

    ingredients: tuple[Ingredient, ...] = ()
    calibration: Calibrator | None = None  # of the reported network, from T_cal on
    final: Calibrator | None = None  # of the finished network instead, which training does not see
    encoder: Encoder = field(default_factory=CNN)
    # A row of INPUTS, where a user names none: by name, because what it is depends on the recordings (`Input.suited`).
    input: str = "time"
    schedule: Schedule = field(default_factory=Schedule)
    dropout: float = 0.5
    published: bool = False  # follow the published code wherever our default differs (published.py)
    precision: str | None = None  # on a GPU: "float32", "tf32" or "bfloat16"; None: as fast as it can
    # Classes of the source are drawn equally often and counted equally by the calibrator, however many windows each
    # has. Not in the paper, whose classes are of one size.
    balance: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", find_encoder(self.encoder))
        for name in ("calibration", "final"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, find_calibrator(getattr(self, name)))
        if not isinstance(self.ingredients, tuple | list):
            raise InputError(f"ingredients must be a tuple, not {type(self.ingredients).__name__}; write (loss,)")
        for ingredient in self.ingredients:
            if not isinstance(ingredient, (*KINDS, Sharpness)):
                known = ", ".join(kind.__name__ for kind in KINDS)
                called = getattr(ingredient, "name", None) or getattr(ingredient, "__name__", type(ingredient).__name__)
                way = "write loss_of(…)" if isfunction(ingredient) else f"derive its class from {known}"
                raise InputError(f"the ingredient '{called}' would do nothing; {way}")
        names = [ingredient.name for ingredient in self.ingredients]
        for ingredient in self.ingredients:
            if names.count(ingredient.name) > 1:
                raise InputError(f"the method has the ingredient '{ingredient.name}' twice; leave one out")
        if not 0 <= self.dropout < 1:
            raise InputError(f"setting 'dropout' must be at least 0 and below 1, not {self.dropout:g}")

    def find(self, kind: type[Ingredient]) -> Any:
        """The recipe's ingredient of this kind; None where it has none."""
        return next((ingredient for ingredient in self.ingredients if isinstance(ingredient, kind)), None)

    def on(self, kind: type[Kind], epoch: int) -> list[Kind]:
        """Its ingredients of this kind that are on in an epoch."""
        parts = [part for part in self.ingredients if isinstance(part, kind)]
        return [part for part in parts if epoch >= part.start(self.schedule)]

    def change(self, name: str, **changes: Any) -> Recipe:
        """The recipe with other numbers of the ingredient called so."""
        if all(part.name != name for part in self.ingredients):
            raise InputError(f"the method has no '{name}' to be changed; choose another method")
        return self._with({part.name: replace(part, **changes) for part in self.ingredients if part.name == name})

    def _with(self, changed: Mapping[str, Ingredient]) -> Recipe:
        """The recipe with these ingredients in place of those of their names."""
        return replace(self, ingredients=tuple(changed.get(part.name, part) for part in self.ingredients))

    @property
    def adapts(self) -> bool:
        """Whether it uses the target; scaling by the source does not."""
        return any(part.adapts for part in self.ingredients)

    def for_input(self, text: str) -> Recipe:
        """With the paper's schedule for an input (a row of INPUTS)."""
        from bearcat.data.inputs import find_input

        kind = find_input(text)
        ingredients = tuple(ingredient.for_input(kind) for ingredient in self.ingredients)
        label_from = round(kind.label_from * self.schedule.epochs / Schedule.epochs)
        return replace(self, ingredients=ingredients, schedule=replace(self.schedule, label_from=label_from))

    def in_epochs(self, epochs: int) -> Recipe:
        """The same course in fewer or more epochs."""
        schedule = self.schedule.scaled(epochs)  # refuses what cannot be
        ingredients = tuple(ingredient.in_epochs(self.schedule.epochs, epochs) for ingredient in self.ingredients)
        return replace(self, schedule=schedule, ingredients=ingredients)

    def checked(self, epochs: int | None = None) -> Recipe:
        """The recipe, scaled to these epochs if they are given. InputError names a part that training would never
        reach, so that no AT is called CAT.
        """
        begins = {part.name: part.start(self.schedule) for part in self.ingredients}
        begins |= {} if self.calibration is None else {"calibration": self.schedule.calibrate_from}
        for name, epoch in begins.items():
            if epoch >= self.schedule.epochs:
                late = f"'{name}' would begin in epoch {epoch} of {self.schedule.epochs}, which is never"
                advice = "let it begin earlier (schedule.align_from, label_from or calibrate_from)"
                raise InputError(f"method: {late}; {advice}, or give epochs, to which every phase is scaled")
        return self if epochs is None else self.in_epochs(epochs).checked()

    def to_dict(self) -> dict[str, Any]:
        """Every setting as plain values, for records; of an ingredient also its phase and the epoch it `begins` in."""

        def described(part: Ingredient) -> dict[str, Any]:
            phase = {} if part.phase is None else {"phase": part.phase, "begins": part.start(self.schedule)}
            return {"kind": type(part).__name__, **phase, **to_plain(part)}

        parts = {ingredient.name: described(ingredient) for ingredient in self.ingredients}
        plain = to_plain(self) | self.texts() | {"ingredients": parts, "adapts": self.adapts}
        return {name: value for name, value in plain.items() if name != "final" or value}

    def texts(self) -> dict[str, str | None]:
        """Encoder and calibrators as they are written: the encoder with every setting, since weights depend on it."""
        texts: dict[str, str | None] = {"encoder": str(self.encoder)}
        for name in ("calibration", "final"):
            calibrator = getattr(self, name)
            texts[name] = calibrator and to_text(calibrator, CALIBRATORS, every=False)
        return texts

    def rows(self) -> dict[str, Any]:
        """Everything it is made of whose code may be a user's own, by name."""
        rows: dict[str, Any] = {f"ingredients.{part.name}": part for part in self.ingredients}
        rows |= {"encoder": self.encoder, "calibration": self.calibration, "final": self.final}
        return {name: row for name, row in rows.items() if row is not None}

    def with_settings(self, texts: Mapping[str, str]) -> Recipe:
        """The recipe with some settings changed: {"labels.tau": "0.95", "encoder": "dense", "schedule.batch": "32"}."""
        recipe = self
        for name, text in texts.items():
            recipe = recipe._with_setting(name, text)
        if "published" in texts and recipe.published:
            options = published.settings_of(recipe)
            recipe = recipe.with_settings({name: text for name, text in options.items() if name not in texts})
        return recipe

    def _with_setting(self, name: str, text: str) -> Recipe:
        part, dot, setting = name.partition(".")
        if name == "schedule.epochs":
            raise InputError(f"setting '{name}' would leave every phase where it is; use epochs, which scales them")
        if name in ("encoder", "calibration", "final"):
            none = name != "encoder" and text.lower() == "none"
            changed: Any = {name: None if none else text}  # which __post_init__ reads
            return replace(self, **changed)
        if not dot:
            return override(self, {name: text})
        if is_dataclass(value := getattr(self, part, None)):  # encoder, calibration, final, schedule
            with naming_place(part):
                changed = {part: override(value, {setting: text})}
            return replace(self, **changed)
        for ingredient in self.ingredients:  # or a part of one, such as the teacher
            if ingredient.name == part:
                return self._with({part: override(ingredient, {setting: text})})
            if is_dataclass(inner := getattr(ingredient, part, None)):
                return self.change(ingredient.name, **{part: override(inner, {setting: text})})
        if (named := PARTS.get(part.lower())) is not None:
            raise InputError(f"the settings of {part} begin with '{named[0]}'; use {named[0]}.{setting}")
        names = ["schedule", "encoder", *(ingredient.name for ingredient in self.ingredients)]
        names += ["teacher"] if self.find(SelfTraining) else []
        raise InputError(f"the method has no '{part}'{suggest(part, names)}")


_STARS: dict[str, tuple[Ingredient, ...]] = {
    "": (),
    "+MCC": (Confusion(),),
    "+SDAT": (Sharpness(),),
    "*": (Confusion(), Sharpness()),
}
_AT = (SelfTraining(), Adversarial())

# Every method, by where it comes from; bearcat.methods adds its groups. The asterisk means MCC and SDAT;
# CAT*-Temperature is the paper's CAT*-TempScaling.
GROUPS: dict[str, dict[str, Recipe]] = {
    "paper": {
        "source-only": Recipe(),
        "DANN": Recipe((Adversarial(),)),
        "DANN*": Recipe((Adversarial(), *_STARS["*"])),
        "AT-fixed": Recipe((SelfTraining(threshold="fixed"), Adversarial())),
        **{f"AT{sign}": Recipe((*_AT, *more)) for sign, more in _STARS.items()},
        **{
            f"CAT{sign}-{kind.__name__}": Recipe((*_AT, *more), calibration=kind())
            for sign, more in _STARS.items()
            for kind in (Temperature, Vector, Matrix, CPCS)
        },
    }
}
RECIPES: dict[str, Recipe] = dict(GROUPS["paper"])
"""All recipes by name; a row more is a recipe more."""
# Parts of methods that the paper names, with their name in settings and a method that has them.
PARTS = {"mcc": ("confusion", "AT+MCC"), "sdat": ("sharpness", "AT+SDAT"), "sam": ("sharpness", "AT+SDAT")}


def find_recipe(name: str) -> str:
    """The name of the recipe called so, in any case; the nearest is suggested if there is none.

    >>> find_recipe("cat*-temperature")
    'CAT*-Temperature'
    """
    if (part := PARTS.get(name.lower())) is not None and name not in RECIPES:
        raise InputError(f"{name} is a part of methods; did you mean '{part[1]}'?")
    return find_name(name, RECIPES, "method")


import bearcat.methods  # noqa: E402, F401  (it adds the rows of other methods, as a user's own module would)
