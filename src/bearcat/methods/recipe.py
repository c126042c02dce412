"""What a method is made of. The table everyone opens first is RECIPES, at the end.

A recipe is a value: it says which ingredients are in and with which numbers. There is one training loop and it never
asks for a recipe's name. Defaults are the paper's, and where its text and the published code differ, the code's, with
the other as an option (docs/method.md names both). Nothing here imports torch.

>>> recipe = RECIPES["CAT*-Temperature"].for_input("frequency").in_epochs(QUICK_EPOCHS)
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from bearcat.errors import InputError, suggest


@dataclass(frozen=True)
class Schedule:
    """When things happen, in epochs (docs/method.md). An epoch is one pass over the source's training windows."""

    epochs: int = 300
    batch: int = 64
    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 1e-5  # ℓ2, in the gradient
    drops: tuple[int, ...] = (150, 250)  # the rate is multiplied by `drop_factor` from these epochs on
    drop_factor: float = 0.1
    align_from: int = 50  # T_DA: domain loss and MCC
    label_from: int = 50  # T_PL: teacher and pseudo-labels; 100 for frequency input
    calibrate_from: int = 150  # T_cal

    def scaled(self, epochs: int) -> Schedule:
        """The same course in fewer or more epochs: every phase keeps its share."""
        if epochs < 1:
            raise InputError(f"epochs must be at least 1, not {epochs}")

        def moved(epoch: int) -> int:
            return round(epoch * epochs / self.epochs)

        return replace(
            self, epochs=epochs, drops=tuple(moved(drop) for drop in self.drops), align_from=moved(self.align_from),
            label_from=moved(self.label_from), calibrate_from=moved(self.calibrate_from),
        )  # fmt: skip


@dataclass(frozen=True)
class Adversarial:
    """A domain classifier behind a gradient reversal layer whose coefficient rises as 2/(1+exp(−slope·p)) − 1."""

    weight: float = 1.0  # of the reversed gradient
    slope: float = 10.0


@dataclass(frozen=True)
class Confusion:
    """Minimum class confusion on the target."""

    weight: float = 1.0
    temperature: float = 2.0


@dataclass(frozen=True)
class Sharpness:
    """SDAT: sharpness-aware minimisation of the task loss; the domain classifier takes plain steps."""

    radius: float = 0.05


@dataclass(frozen=True)
class Teacher:
    """An average of the student that makes pseudo-labels and, at the end, the predictions."""

    momentum: float = 0.999
    # "target": parameters are averaged; normalisation statistics are its own, of target batches (authors' code).
    # "averaged": statistics are averaged too, and labels made with them, in evaluation mode.
    statistics: str = "target"
    dropout: bool = True  # live while labelling; only with statistics "target"


@dataclass(frozen=True)
class PseudoLabels:
    """Which of the teacher's labels the student learns from, and how they are averaged."""

    weight: float = 1.0
    threshold: str = "per-class"  # or "fixed"
    tau: float = 0.9
    counts: str = "uncalibrated"  # which probabilities count for per-class thresholds; text: "calibrated"
    average: str = "batch"  # authors' code: unselected windows count zero; text: "selected"


@dataclass(frozen=True)
class Calibration:
    """Which calibrator the teacher gets from T_cal on; its temperature, if it has one, stays within the bounds."""

    kind: str = "Temperature"  # Identity, Temperature, Vector, Matrix, CPCS, Oracle
    lower: float = 1.0
    upper: float = 100.0


# Settings of a recipe that came after the first results. They are told only where they are not at their default, so
# that the runs made before there was a choice keep their names.
LATER = ("balance",)


@dataclass(frozen=True)
class Recipe:
    """A method: ingredients that are in, None where one is not."""

    alignment: Adversarial | None = None
    confusion: Confusion | None = None
    sharpness: Sharpness | None = None
    teacher: Teacher | None = None
    labels: PseudoLabels | None = None
    calibration: Calibration | None = None
    schedule: Schedule = field(default_factory=Schedule)
    dropout: float = 0.5
    # "shared": source and target once through the student, each with its own batch statistics, and the domain
    # classifier reads those features. "separate": the authors' way, a joint pass of both for the domain loss besides.
    passes: str = "shared"
    # Classes of the source drawn equally often and counted equally by the calibrator, however many windows each has.
    # Not in the paper, whose classes are of one size; told in records only where it is on.
    balance: bool = False

    def __post_init__(self) -> None:
        choices = {
            "passes": (self.passes, ("shared", "separate")),
            "teacher.statistics": (self.teacher and self.teacher.statistics, ("target", "averaged")),
            "labels.threshold": (self.labels and self.labels.threshold, ("per-class", "fixed")),
            "labels.counts": (self.labels and self.labels.counts, ("uncalibrated", "calibrated")),
            "labels.average": (self.labels and self.labels.average, ("batch", "selected")),
            "calibration.kind": (
                self.calibration and self.calibration.kind,
                ("Identity", "Temperature", "Vector", "Matrix", "CPCS", "Oracle"),
            ),
        }
        for name, (value, known) in choices.items():
            if value is not None and value not in known:
                raise InputError(f"setting '{name}' is '{value}'{suggest(str(value), known)}")
        if (self.labels or self.calibration) and not self.teacher:
            raise InputError("pseudo-labels and calibration need a teacher; add the ingredient 'teacher'")
        if not 0 <= self.dropout < 1:
            raise InputError(f"setting 'dropout' must be at least 0 and below 1, not {self.dropout:g}")

    def for_input(self, kind: str) -> Recipe:
        """With the paper's schedule for "time" or "frequency" input."""
        return replace(self, schedule=replace(self.schedule, label_from=50 if kind == "time" else 100))

    def in_epochs(self, epochs: int) -> Recipe:
        """The same course in fewer or more epochs.

        The teacher's memory keeps its share of it: a tenth of the steps with the paper's momentum would leave it where
        it started.
        """
        schedule, teacher = self.schedule.scaled(epochs), self.teacher
        if teacher is not None:
            teacher = replace(teacher, momentum=teacher.momentum ** (self.schedule.epochs / epochs))
        return replace(self, schedule=schedule, teacher=teacher)

    def told(self) -> dict[str, Any]:
        """Every setting as plain values, for records."""
        plain = Recipe()
        late = {name for name in LATER if getattr(self, name) == getattr(plain, name)}
        return {one.name: _told(getattr(self, one.name)) for one in fields(self) if one.name not in late}

    def shape(self) -> Recipe:
        """The recipe without the numbers that may differ between the runs of a stack; equal shapes can be stacked."""
        return replace(
            self,
            alignment=self.alignment and replace(self.alignment, weight=0),
            confusion=self.confusion and replace(self.confusion, weight=0),
            sharpness=self.sharpness and replace(self.sharpness, radius=0),
            labels=self.labels and replace(self.labels, weight=0, tau=0),
        )


def _told(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _told(getattr(value, one.name)) for one in fields(value)}
    return list(value) if isinstance(value, tuple) else value


QUICK_EPOCHS = 40  # for demos and first looks; the paper's 300 otherwise

_DANN = Recipe(alignment=Adversarial())
_AT = replace(_DANN, teacher=Teacher(), labels=PseudoLabels())
_MCC, _SDAT = Confusion(), Sharpness()
_VARIANTS: dict[str, dict[str, Any]] = {
    "": {}, "+MCC": {"confusion": _MCC}, "+SDAT": {"sharpness": _SDAT}, "*": {"confusion": _MCC, "sharpness": _SDAT},
}  # fmt: skip

# The methods of the paper. The asterisk means MCC and SDAT.
RECIPES: dict[str, Recipe] = {
    "source-only": Recipe(),
    "DANN": _DANN,
    "DANN*": replace(_DANN, **_VARIANTS["*"]),
    "AT-fixed": replace(_AT, labels=PseudoLabels(threshold="fixed")),
    **{f"AT{sign}": replace(_AT, **more) for sign, more in _VARIANTS.items()},
    **{
        f"CAT{sign}-{kind}": replace(_AT, calibration=Calibration(kind=kind), **more)
        for sign, more in _VARIANTS.items()
        for kind in ("Temperature", "Vector", "Matrix", "CPCS")
    },
}
DEFAULT_RECIPE = "CAT*-Temperature"


def recipe_named(name: str) -> str:
    """The proper name of the recipe called so, in any case; the nearest is suggested if there is none."""
    found = {known.lower(): known for known in RECIPES}.get(name.lower())
    if found is None:
        raise InputError(f"unknown recipe '{name}'{suggest(name, RECIPES)}")
    return found
