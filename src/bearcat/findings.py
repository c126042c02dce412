"""What was noticed of a recording or of a model: a kind, a severity, and the numbers behind it; and each kind in words.

The decision is the highest severity. The sentences at the end are for people; nothing in the program reads them again.

>>> highest([Finding("clipped", "check", {"share": 0.02}), Finding("no baseline", "remark")])
'check'
>>> sentence(Finding("mains hum", "check", {"hertz": 50.0}))
'nearly all of the signal is mains hum (50 Hz and multiples); check cable and grounding'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

# Of a model `ok` and `remark` mean "use", `check` the same as of a recording, `alarm` "do not use".
Severity = Literal["ok", "remark", "check", "alarm"]
SEVERITIES: tuple[str, ...] = get_args(Severity)
MOST_REASONS = 2  # of a recording


@dataclass(frozen=True)
class Finding:
    """One thing that was noticed. `values` are plain: numbers, names, and lists of them."""

    kind: str  # one of SENTENCES; of a file of another version perhaps another
    severity: Severity
    values: Mapping[str, Any] = field(default_factory=dict)

    def but(self, severity: Severity) -> Finding:
        """The same with another severity."""
        return replace(self, severity=severity)


def highest(findings: Iterable[Finding]) -> str:
    """The highest severity; `ok` where nothing was noticed."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")


def unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Without repetitions of the same kind and values, the first of which stays."""
    different: list[Finding] = []
    for finding in findings:
        if all((finding.kind, finding.values) != (other.kind, other.values) for other in different):
            different.append(finding)
    return tuple(different)


def most_severe(findings: Iterable[Finding]) -> list[Finding]:
    """The reasons of a decision that asks for a person: at most MOST_REASONS of those that make it what it is."""
    findings = list(findings)
    worst = highest(findings)
    return [finding for finding in findings if finding.severity == worst and worst in ("check", "alarm")][:MOST_REASONS]


# Thresholds of findings that several modules apply; those of one module stand there.

# A diagnosis (docs/trust.md, fitted with its coefficients by benchmarks/fusion.py).
SURE = 0.6  # probability of a fault from which on it is named, which is an alarm

# Lines, in dB (docs/diagnose.md).
GROWN = 6.0  # above the baseline, from which on lines are said to grow
LOUDER = 3.0  # by which a neighbour must be louder to own a line: sensors and their mounting differ by less
SHOWN_LINE = 3.0  # above what reference lines reach, from which on a neighbour shows a line

# Impulsiveness: the kurtosis of an envelope. Noise has 2, healthy machines up to 2.9 (simulated) and 3.4 (HIT-SM).
IMPULSIVE = 4.0
CLIPPED, CLIPPED_MUCH = 1e-4, 0.01  # share of samples at the limits that asks for a check, and that is beyond use


# All wording of findings: a text, in which values stand by name, or a function of the values, for each kind.

Values = Mapping[str, Any]
RUNNING = "check sensor and cable, and whether the machine runs"
LOOK = "look at the machine, then acknowledge"
# What the accuracy to expect has been tested on, and what not, by the kind of past runs.
TESTED = {
    "condition": "tested on other loads and speeds, not on other bearings",
    "specimen": "tested on other bearings and machines",
    "machine": "tested on other machines",
    "one bearing": "the source has one bearing of a damaged class, so what another one costs is not tested; add a"
    " second",
    "unknown": "which bearings these are is not known, so they may be others; name each recording's specimen",
}


def sentence(finding: Finding) -> str:
    """The finding in words: a part of a sentence, which begins in lower case and ends without a full stop."""
    words = SENTENCES.get(finding.kind)
    if words is None:
        return finding.kind
    return words.format(**finding.values) if isinstance(words, str) else words(finding.values)


def sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(sentence, findings)))


def reasons(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Why a recording was decided so."""
    return sentences(most_severe(findings))


def capitalised(text: str) -> str:
    """The text as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}{'.' * bool(text)}"


def line_words(values: Values) -> str:
    """A line of the envelope spectrum: `2 × BPFO 53.8 Hz, 24 dB`."""
    name = values["line"] if values["multiple"] == 1 else f"{values['multiple']} × {values['line']}"
    return f"{name} {values['hertz']:.1f} Hz, {values['level']:.0f} dB"


def percent(share: float | None, digits: str = ".1f") -> str:
    """A share as people read it; nothing where it is not known."""
    return "" if share is None or not math.isfinite(share) else f"{100 * share:{digits}} %"


def _fault_line(values: Values) -> str:
    change = f", {values['change']:.0f} dB above the {values['by']}" if "change" in values else ""
    return f"{line_words(values)} ({values['clarity']}{change})"


def _unknown_bearing(values: Values) -> str:
    shaft = values["shaft_multiple"]
    parts = [] if shaft is None else [f"{shaft} × shaft, at a speed that is a little off"]
    parts += [f"{part} of {', '.join(names)}" for part, names in values["bearings"].items() if names]
    strikes = "strikes {order:.2f} times a turn ({hertz:.1f} Hz, {level:.0f} dB above other orders)".format(**values)
    return f"{strikes}; explained by {' or '.join(parts) or 'no bearing of the table'}"


def _wrong_speed(values: Values) -> str:
    used = values.get("corrected", values["stated"])
    line = "the shaft line is at {rpm:.0f} rpm ({level:.0f} dB), not at the stated {stated:.0f} rpm".format(**values)
    return f"{line}; {used:.0f} rpm is used"


def _usual_lines(values: Values) -> str:
    levels = ", ".join(f"{fault} {level:.0f} dB" for fault, level in values["levels"].items())
    lines = f"{values['of']} already show {f'lines: {levels}' if levels else 'faint lines'}"
    return f"{lines}; without these recordings: {values['without']}" if "without" in values else lines


def _baseline_change(values: Values) -> str:
    low, high = values["band"] or (None, None)
    what = values["title"] if low is None else f"RMS in {low:.3g}–{high:.3g} kHz"
    usual = "what is usual" if values["learnt"] else "its first recordings"
    return f"{what} {values['decibels']:.0f} dB above {usual}"


Words = Mapping[str, str | Callable[[Values], str]]
# No signal.
_SILENT: Words = {
    "constant": "the sensor gives no signal: all samples are {value:g}; check sensor and cable",
    "few values": "the sensor gives no signal: {values} different values only; " + RUNNING,
    "sensor noise": "the sensor gives no signal: {rms:.2g} {unit} is noise of the sensor; " + RUNNING,
    "standing still": lambda values: (
        f"the machine stands still: {values['below'] or math.inf:.0f} dB below its other {values['recordings']}"
        " recordings; check whether it runs"
    ),
}
# What is derived from the witnesses whenever a recording is decided.
_DERIVED: Words = {
    "fault line": _fault_line,
    "model class": lambda values: f"the model says {values['label']} ({percent(values['probability'], '.0f')})",
    "lines of unknown bearing": _unknown_bearing,
    "no lines of unknown bearing": (
        "no lines of an unknown bearing stand out (strongest at {order:.2f} × shaft, {level:.0f} dB above other"
        " orders); name the bearing to be sure"
    ),
    "zone": "{velocity:.2f} mm/s ({low:g}–{high:g} Hz) is zone {zone} of ISO 20816-3 (group {group}, {mounting})",
    "no zone": "no zone of ISO 20816-3: {missing}",
    "unfamiliar": "unlike anything the model was adapted to",
    "physics contradicts": lambda values: (
        f"physics finds {values['state']} ({line_words(values)})" if "line" in values else "physics finds no fault"
    ),
    "model contradicts": "the model says {state}",
    "refused model": "the model is not to be used",
    "impulsive without line": "something strikes at no fault line",
    "not enough evidence": "the evidence is not enough",
    "windows disagree": lambda values: f"windows disagree ({percent(values['agreement'], '.0f')} agree)",
    # What physics reads.
    "value outside range": (
        "{value:g} {unit} is outside the {low:g} to {high:g} {unit} of the recordings this was made from"
    ),
    "speed at edge": "the lines fit best at the edge of the search, {rpm:.0f} rpm; check the speed",
    "estimated geometry": "the geometry of {bearing} is an estimate and may be a ball off; compare its data sheet",
    "lines of baseline": _usual_lines,
}
# What is noticed once, while a recording is read and measured.
_OBSERVED: Words = {
    "unreadable": "{problem}",
    "not diagnosed": "{problem}",
    "dead axis": lambda values: f"{values['axis']}: {sentence(Finding(values['cause'], 'check', values))}",
    "axis apart": "{axis} cannot be read together with {first}",
    "clipped": lambda values: f"{percent(values['share'], '.2g')} of the samples are clipped; record with less gain",
    "dropouts": lambda values: f"{percent(values['share'], '.2g')} of the samples are dropouts; check the cable",
    "gaps": "{samples} of {of} samples are NaN or infinite and were interpolated; check logger and cable",
    "no vibration": "the signal is unlike a vibration ({like}); if it is none, choose another channel",
    "band limited": (
        "nothing is above {hertz:.0f} Hz: filtered, or brought from a lower rate to {rate:g} Hz; check the rate"
    ),
    "mains hum": "nearly all of the signal is mains hum ({hertz:g} Hz and multiples); check cable and grounding",
    "cross-talk": "{fault} lines are cross-talk: {decibels:.0f} dB louder at {owner}",
    "speed not found": "the speed is not known and was not found in the signal; give it (--rpm)",
    "varying speed": lambda values: f"the speed varies by ± {percent(values['share'], '.0f')} within the recording",
    "wrong speed": _wrong_speed,
    "multiple of speed": (
        "no line at the stated {stated:.0f} rpm, and one of {level:.0f} dB at {multiple:.2g} × it; {stated:.0f} rpm is"
        " used; check whether it is right"
    ),
    "speed channel differs": "the speed channel says {channel:.0f} rpm, and {rpm:.0f} rpm is used; check both",
    "impossible speed": "its own speed of {rpm:g} rpm is impossible, and is ignored",
    "other speed": "it says that it turns at {own:g} rpm, and {given:g} rpm counts",
    "own speed counts": (
        "its own {own:g} rpm counts, and not the given {given:g} rpm; leave the speed out, or correct it in a manifest"
    ),
    "statements differ": "its own {about}, {stated}, counts, and not the given {given}",
    "no baseline": "no healthy recording of this point at this speed was named, so there is no baseline",
    "no lines read": "no physics check: {problem}",
    "measured speed": "nobody says its speed; the model is given the measured {rpm:.0f} rpm",
    "usual speed": "taken to be at {rpm:g} rpm, the speed the model was adapted to; give another as rpm",
    "rate assumed": "does not say its rate, and is taken to be at {rate:g} Hz",
    "resampled": "resampled from {rate:g} Hz to the model's {to:g} Hz",
}
_OF_MODEL: Words = {
    "training broke down": "training broke down: the loss became NaN or infinite",
    "nothing learnt": lambda values: (
        f"it learnt nothing of use: {percent(values['right'], '.0f')} of held-out source windows are right, chance is"
        f" {percent(values['chance'], '.0f')}; check labels, channel and rate of the source, or train for longer"
    ),
    "one class": "every target window is called '{label}'",
    "outvoted": (
        "physics names another fault on {missed} of {compared} recordings; diagnose these with bearcat diagnose"
    ),
    "no confidence": "its confidences are not numbers",
    "low accuracy": "the expected accuracy is too low",
    "labelled": "{right} of {recordings} labelled recordings are diagnosed correctly",
    "label recordings": lambda values: (
        f"label recordings{', such as ' * bool(values['recordings'])}{', '.join(values['recordings'])}"
    ),
    "tested on": lambda values: TESTED[values["shift"]],
    "no check models": "no check models could be fitted, so the estimate rests on confidence alone",
    "not calibrated": "confidence is not calibrated",
}
# Of a point of a machine over time.
_WATCHED: Words = {
    "baseline change": _baseline_change,
    "unexplained change": "something has changed since {since}",
    "no fault shown": "no clear line and no impulses yet",
    "alarm open": "the alarm of {time} is open",
    "alarm over": "the alarm of {time} is over; acknowledge it",
    "alarm acknowledged": "the alarm of {time} is acknowledged, and its cause is still there",
    "levels of neighbour": "cross-talk from {owner}: its levels rose more",
    "all points louder": "other points are louder too: check load, speed and foundation",
    "quieter": "{decibels:.0f} dB below what is usual: check sensor, mounting and load",
    "not comparable": "nothing was measured that can be compared with its baseline",
    "too few turns": "{turns:.1f} turns of the shaft so far, and {wanted} are needed",
    "baseline incomplete": (
        "baseline: {recordings} of {wanted} recordings, {days:.1f} of {of_days:g} days; judged as diagnose does until"
        " it is complete"
    ),
    "baseline restarted": "what is usual is learnt anew",
    "baseline with lines": lambda values: f"{_usual_lines({**values, 'of': 'its baseline'})}; {LOOK}",
    "doubted baseline": lambda values: (
        "most recordings of its baseline were to be checked:"
        f" {sentence(Finding(values['doubt'], 'check', values['values']))}; {LOOK}"
    ),
}
SENTENCES: Words = {**_SILENT, **_DERIVED, **_OBSERVED, **_OF_MODEL, **_WATCHED}
SILENT, DERIVED = frozenset(_SILENT), frozenset(_DERIVED)


def count(number: int, what: str, several: str | None = None) -> str:
    """ "1 run", "2 runs"."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
