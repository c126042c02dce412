"""The one decision: what to do with a model, and with a recording. No other module knows these thresholds.

`decide` gives an action, the accuracy or confidence behind it, its interval and the reasons, most important first.
Terminal, page, model card, server and Python print that and nothing else.

>>> decide(ModelEvidence(expected=Estimate(0.97, 0.91, 1.0))).action
'use'
>>> decide(RecordingEvidence("healthy", 0.9, 0.1, False, contradiction="physics finds outer race")).action
'check'
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bearcat.data.specimens import ONE_BEARING
from bearcat.trust.accuracy import Estimate, binomial_interval

USE, CHECK, REFUSE = "use", "check", "do not use"  # of a model
OK, ALARM = "ok", "alarm"  # of a recording, besides CHECK
ACTIONS = (OK, CHECK, ALARM)
HEALTHY, UNKNOWN_STATE, CANNOT_TELL = "healthy", "unknown", "cannot tell"
UNREADABLE, NOT_DIAGNOSED, NO_SIGNAL = "unreadable", "not diagnosed", "no signal"

# Expected accuracy and its lower end to use a model; below POOR it is not to be used (docs/results.md says how chosen).
GOOD, SAFE, POOR = 0.95, 0.75, 0.6
LEARNT = 0.2  # of the way from chance to certainty on the source, below which a model is called useless
FEWEST_WINDOWS = 20  # of the source: fewer, all right, are no sign that nothing was learnt
FEWEST_COMPARED = 2  # recordings that physics can diagnose, from which on it may outvote a model
ENOUGH = 3  # labelled recordings, all of them right, that confirm an estimate
SURE = 0.6  # probability of a state, or of any fault, below which nothing is claimed
SAFE_FAULT = 0.25  # probability of a fault above which a recording is not called healthy: a missed fault costs more
UNITED = 0.7  # share of a recording's windows that must agree before it is called ok
SLACK = 0.02  # a window in fifty, by which check models may agree less with an adapted model
MOST_REASONS = 2  # of a recording
FAMILY = 8.5  # dB of a family of lines of an unknown bearing above other orders, from which on it is an alarm
CONCERN, DANGER = "C", "D"  # zones of ISO 20816-3: not for long, and damaging
# What the accuracy to expect has been tested on, and what not, by the kind of past runs.
TESTED = {
    "condition": "tested on other loads and speeds, not on other bearings",
    "specimen": "tested on other bearings and machines",
    "machine": "tested on other machines",
    ONE_BEARING: "the source has one bearing of a damaged class, so what another one costs is not tested; add a second",
    "unknown": "which bearings these are is not known, so they may be others; name each recording's specimen",
}


@dataclass(frozen=True)
class Decision:
    """What to do: `use`, `check` or `do not use` of a model, `ok`, `check` or `alarm` of a recording.

    `expected` is the accuracy to expect of the model, or the confidence of the recording's diagnosis.
    """

    action: str
    expected: float | None = None
    interval: tuple[float, float] | None = None
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.action not in (USE, REFUSE, *ACTIONS):
            raise ValueError(f"a decision cannot be {self.action!r:.40}")

    @property
    def sentence(self) -> str:
        """The decision on a model in one line."""
        parts = [f"Recommendation: {self.action}."]
        if self.expected is not None:
            low, high = self.interval or (self.expected, self.expected)
            parts.append(f"Expected accuracy {100 * self.expected:.0f} % ({100 * low:.0f}–{100 * high:.0f} %).")
        return " ".join([*parts, *(f"{reason[0].upper()}{reason[1:]}." for reason in self.reasons)])


@dataclass(frozen=True)
class PhysicsCheck:
    """How many recordings both physics and the model can diagnose, and where they differ; only a fault that physics
    names counts against the model, as finding none is no proof of health.
    """

    compared: int
    contradicted: int = 0
    missed: tuple[str, ...] = ()  # recordings on which it names a fault that the model does not

    @property
    def outvotes(self) -> bool:
        return 2 * len(self.missed) > self.compared >= FEWEST_COMPARED


@dataclass(frozen=True)
class LabelCheck:
    """Labelled recordings of the target, how many are diagnosed correctly, and of how many classes they are."""

    recordings: int
    right: int
    classes: int

    @property
    def rate(self) -> Estimate:
        return Estimate(self.right / self.recordings, *binomial_interval(self.right, self.recordings))


@dataclass(frozen=True)
class ModelEvidence:
    """All that is known of a trained model without target labels, and what some labels say where there are any."""

    expected: Estimate | None  # accuracy on the target; None: its confidences are no numbers
    finite: bool = True  # the loss never became NaN or infinite
    source: Estimate | None = None  # balanced accuracy on held-out source windows, with its interval
    source_windows: int = 0
    classes: int = 0
    one_class: str | None = None  # the only class predicted on several target recordings, if it is a fault
    check_models: bool = True  # whether any could be fitted
    calibrated: bool = True
    uncertain: tuple[str, ...] = ()  # recordings whose labels would say most
    recordings: int = 0  # of the target that were diagnosed
    faulty: int | None = None  # how many of them show a fault; None: no class is called healthy
    physics: PhysicsCheck | None = None
    labels: LabelCheck | None = None
    estimated: bool = True  # False: nobody has tried to estimate the accuracy on the target
    median: float | None = None  # of the accuracy of past runs, where `expected.value` was held below it
    shift: str | None = None  # the kind of past runs it comes from: a key of TESTED; None: of none


@dataclass(frozen=True)
class RecordingEvidence:
    """What the witnesses say of one recording together, and where one of them says otherwise."""

    state: str  # the diagnosis: a state, or a class of the model; UNKNOWN_STATE, CANNOT_TELL, NO_SIGNAL
    confidence: float
    fault: float  # the probability that it is not healthy
    alarming: bool  # the diagnosis is one to be alarmed about
    min_confidence: float = 0.0  # for an alarm
    agreement: float | None = None  # share of windows with the same class
    familiar: bool | None = None
    unfamiliar_alarm: bool = True
    model: str | None = None  # what to do with the model, by its own decision; None: no model
    supported: bool = True  # whether another witness than the model could look
    shown: str = ""  # what shows the fault, in words
    contradiction: str = ""  # the witness that says otherwise, in words
    strikes: bool = False  # something strikes at no fault line
    quality: tuple[str, ...] = ()  # what is wrong with the recording, or missing
    wrong_speed: bool = False  # the fault is by lines that fit best at the edge of the search for the speed
    family: float | None = None  # dB of lines of a bearing that nobody named, which are `shown`; None: not looked for
    zone: str | None = None  # of ISO 20816-3, A to D; `vibration` says it in words
    vibration: str = ""


def decide(evidence: ModelEvidence | RecordingEvidence) -> Decision:
    """What to do, and why."""
    return _decide_model(evidence) if isinstance(evidence, ModelEvidence) else _decide_recording(evidence)


def _decide_model(evidence: ModelEvidence) -> Decision:
    expected, labels, physics = evidence.expected, evidence.labels, evidence.physics
    if expected is not None and not math.isfinite(expected.value):
        expected = None
    refusals = _refusals(evidence, expected)
    good, safe = expected is not None and expected.value >= GOOD, expected is not None and expected.low >= SAFE
    if labels is None:
        sure = good and safe and evidence.shift != ONE_BEARING
        action, reasons = REFUSE if refusals else USE if sure else CHECK, refusals
    else:
        rate = labels.rate
        cleared = rate.low >= SAFE and labels.classes > 1
        confirmed = rate.value == 1 and good and (labels.recordings >= ENOUGH or safe)
        if rate.high < SAFE or (refusals and not cleared):
            action = REFUSE
        else:
            action = USE if rate.low >= SAFE or confirmed else CHECK
        reasons = [f"{labels.right} of {labels.recordings} labelled recordings are diagnosed correctly"]
        reasons += refusals if action == REFUSE else []
        if not confirmed or labels.recordings >= ENOUGH:  # fewer, all right, say no more than was known before
            expected = rate
    if action == CHECK and (evidence.estimated or labels):
        names = ", ".join(evidence.uncertain)
        reasons.append(f"label {'more' if labels else 'some'} recordings{f', such as {names}' * bool(names)}")
    elif action == CHECK:
        reasons.append("the accuracy to expect on the target is not known here; bearcat adapt estimates it")
    if action != REFUSE:
        if labels is None and evidence.shift is not None:
            reasons.append(TESTED[evidence.shift])
        if physics is not None and physics.contradicted:
            reasons.append(f"physics differs on {physics.contradicted} of {physics.compared} recordings")
        if not evidence.check_models:
            reasons.append("no check models could be fitted, so the estimate rests on confidence alone")
        if not evidence.calibrated and labels is None:
            reasons.append("confidence is not calibrated")
        if evidence.recordings and evidence.faulty == 0 and not (physics and physics.missed):
            _, high = binomial_interval(0, evidence.recordings)
            what = f"{evidence.recordings} recording{'s' * (evidence.recordings > 1)}"
            reasons.append(f"no fault was found in {what}; up to {100 * high:.0f} % of such may be faulty all the same")
    if action == REFUSE and expected is not None and expected.value >= SAFE:
        expected = None  # what speaks against the model speaks against the estimate too
    interval = None if expected is None else (expected.low, expected.high)
    return Decision(action, None if expected is None else expected.value, interval, tuple(reasons))


def _refusals(evidence: ModelEvidence, expected: Estimate | None) -> list[str]:
    """Why a model is not to be used; empty where nothing speaks against it."""
    if not evidence.finite:
        return ["training broke down: the loss became NaN or infinite"]
    source, physics, chance = evidence.source, evidence.physics, 1 / max(evidence.classes, 1)
    found = []
    if source is not None and evidence.classes > 1:
        beyond = source.low > chance or evidence.source_windows < FEWEST_WINDOWS
        if not (source.value >= chance + LEARNT * (1 - chance) and beyond):
            found.append(
                f"it learnt nothing of use: {100 * source.value:.0f} % of held-out source windows are right, chance is"
                f" {100 * chance:.0f} %; check labels, channel and rate of the source, or train for longer"
            )
    if evidence.one_class is not None:
        found.append(f"every target window is called '{evidence.one_class}'")
    if physics is not None and physics.outvotes:
        share = f"{len(physics.missed)} of {physics.compared} recordings"
        found.append(f"physics names another fault on {share}; diagnose these with bearcat diagnose")
    if expected is None and evidence.estimated:
        found.append("its confidences are not numbers")
    elif expected is not None and not (expected.value if evidence.median is None else evidence.median) >= POOR:
        found.append("the expected accuracy is too low")
    return found


def _decide_recording(evidence: RecordingEvidence) -> Decision:
    """Fail safe: a recording is `ok` only where it is healthy with confidence and nothing speaks against it."""
    strange = evidence.familiar is False and evidence.model is not None
    refused = evidence.model == REFUSE
    faulty = evidence.state not in (HEALTHY, CANNOT_TELL, NO_SIGNAL)
    reasons = [evidence.vibration] * (evidence.zone == DANGER)
    if strange:
        reasons.append("unlike anything the model was adapted to")
    if evidence.shown:
        reasons.append(evidence.shown)
    if evidence.contradiction:
        reasons.append(evidence.contradiction)
    if refused:
        reasons.append("the model is not to be used")
    if evidence.strikes and not faulty:
        reasons.append("something strikes at no fault line")
    reasons += [evidence.vibration] * (evidence.zone == CONCERN)
    reasons += evidence.quality
    if evidence.state == CANNOT_TELL and not reasons:
        reasons.append("the evidence is not enough")
    elif evidence.state == HEALTHY and not evidence.fault <= SAFE_FAULT:
        reasons.append(f"healthy with a confidence of {100 * (1 - evidence.fault):.0f} % only")
    elif faulty and not evidence.confidence >= max(SURE, evidence.min_confidence):
        reasons.append(f"confidence is {100 * evidence.confidence:.0f} % only")
    if not faulty and evidence.agreement is not None and not evidence.agreement >= UNITED:
        reasons.append(f"windows disagree ({100 * evidence.agreement:.0f} % agree)")
    believed = evidence.alarming and evidence.confidence >= evidence.min_confidence
    believed = believed and (evidence.supported or not refused) and not evidence.wrong_speed
    unexplained = evidence.family is not None and evidence.family >= FAMILY
    if (strange and evidence.unfamiliar_alarm) or believed or unexplained or evidence.zone == DANGER:
        action = ALARM
    else:
        action = OK if evidence.state == HEALTHY and not reasons and not strange else CHECK
    return Decision(action, evidence.confidence, None, tuple(dict.fromkeys(reasons))[:MOST_REASONS])


def choose_model(
    recipe: str,
    adapted: ModelEvidence,
    unadapted: ModelEvidence | None,
    supported: bool | None = None,
    agreement: tuple[float | None, float | None] = (None, None),
) -> tuple[bool, str]:
    """Whether the adapted model is saved, and why: it is, unless it broke down or check models agree less with it than
    with the unadapted one (None where there is but one model). A recipe that decides itself whether to adapt
    (`supported`) is believed: on public and simulated recordings it never lost to the unadapted network.
    """
    if unadapted is None:
        return bool(supported), f"{recipe} {'adapted itself' if supported else 'did not adapt'}"
    broken, plain_broken = (not each.finite or each.one_class is not None for each in (adapted, unadapted))
    if broken and not plain_broken:
        return False, f"{recipe} {'names one class only' if adapted.finite else 'broke down'}"
    if supported:
        return True, "the target's recordings support adapting"
    mine, alone = agreement
    if mine is None or alone is None or plain_broken:
        return True, "nothing speaks for the unadapted model"
    shares = f"check models agree with the adapted model on {100 * mine:.0f} % of windows, with the unadapted on"
    return mine >= alone - SLACK, f"{shares} {100 * alone:.0f} %"


def choose_candidate(scores: Mapping[str, float], usual: str) -> tuple[str, str]:
    """The name of the candidate to recommend, and why: the one with the highest score, unless the usual one is within
    SLACK of it. Candidates that broke down have no score.
    """
    best = max(scores, key=lambda name: scores[name], default=usual)
    if usual in scores and scores[best] <= scores[usual] + SLACK:
        others = f"no other of {len(scores)} candidates agrees more with check models and physics"
        return usual, others if len(scores) > 1 else "nothing speaks for another model"
    compared = f" ({100 * scores[best]:.0f} % against {100 * scores[usual]:.0f} %)" if usual in scores else ""
    return best, f"of {len(scores)} candidates it agrees most with check models and physics{compared}"
