"""Mutated recordings, runs, labels and results: `python -m tests.fuzz --what adapt|check|report`.

Each returns how many broke a promise of docs/security.md; what broke it is printed, and its files are kept in tests/found.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile

from bearcat.record import CURVES, PREDICTIONS, RECORD
from bearcat.storage import digest
from tests.commands import start
from tests.fuzz import (
    MOST_RESIDENT,
    NUMBERS,
    OPTIONS,
    OWN,
    PATHS,
    SHARED,
    TEXTS,
    Values,
    chosen,
    family,
    keep_found,
    mutated,
    mutations,
)

MARKUP = "<script>document.title='taken'</script>"
CELLS = (
    None, 0, -1, 2, 2**62, 0.5, -1e300, 1e300, float("inf"), 1e12, b"", b"\xff\0\x1b", bytes(999), "", "nonsense", "ok",
    MARKUP, "\"'><img src=x onerror=alert(1)>", "a\x1b[2J\u202e\0b", "=1+1", "x" * 10_000, "[" * 10_000, '["a", 3]', "{}",
    "9" * 5000, "1e999", "../..", '{"false_alarms": -1, "baseline": 1e9, "period": NaN}',
)  # fmt: skip


def raw(text: str) -> bool:
    """Whether a text has characters that a terminal or a browser would act upon."""
    return re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text.replace("\r\n", "\n")) is not None


TRAINED = ("--recipe", "DANN", "--epochs", "1", "--window", "256", "--device", "cpu")
TOGETHER = 7  # mutated recordings beside thirty good ones, which decide for all
NUMBER_WORDS = ("0", "-1", "1", "2", "1e300", "9" * 400, "x", "")
TASK = ("--source", "a", "--target", "b")
RUN_OPTIONS: dict[str, Values] = {
    "adapt": {name: SHARED[name] for name in ("--rate", "--rpm", "--bearing", "--channel")} | {
        "--data": TEXTS, "--root": TEXTS, "--source": ("a", "0", "b", "a,b", *TEXTS), "--target": ("b", "1", "9", *TEXTS),
        "--input": ("time", "frequency", "physics", "orders:last=1e300", "envelope-orders", "time:", *TEXTS),
        "--recipe": ("CAT", "dense-MCC", *TEXTS), "--beside": ("DANN", "CAT", *TEXTS), "--epochs": ("1", "2", "0", "-1", "x"),
        "--seed": NUMBER_WORDS, "--split": ("window", "block", "recording", "specimen", "machine", *TEXTS),
        "--device": ("cpu", "cuda", *TEXTS), "--specimen": PATHS, "--machine": PATHS,
        "--window": ("256", "1000", "2", "16777216", *NUMBER_WORDS), "--stride": ("64", *NUMBER_WORDS),
        "--reference": ("healthy", "1.wav", *TEXTS), "--set": ("channels=apart", "rpm=0", *TEXTS),
        "--recipe-set": ("schedule.batch=16", "labels.tau=9", "schedule.batch=1e300", *TEXTS),
        "--fail-on": ("alarm", "check", *TEXTS),
    },
    "check": {"--labels": TEXTS},
    "report": {name: OPTIONS["diagnose"][name] for name in OPTIONS["diagnose"] if name != "--format"} | OWN
    | {"--model": ("general", *TEXTS), "--machine": TEXTS},
}  # fmt: skip


class Attack:
    """Calls commands in one folder until the time is over, and counts what they break."""

    def __init__(self, command: str, count: int, seed: int, seconds: float, folder: Path) -> None:
        self.command, self.count, self.seed, self.folder = command, count, seed, folder
        self.end, self.chance = time.monotonic() + seconds, random.Random(seed)
        self.statuses, self.broken, self.highest, self.read = Counter[str](), 0, 0, 0

    def rounds(self) -> Iterator[tuple[int, Path]]:
        """The number of a round, and an empty folder for it."""
        for number in itertools.count(1):
            if self.read >= self.count or time.monotonic() > self.end:
                return
            root = self.folder / str(number)
            root.mkdir()
            yield number, root
            shutil.rmtree(root)

    def options(self) -> list[str]:
        pairs = chosen(self.chance, RUN_OPTIONS[self.command]).items()
        return [word for pair in pairs for word in pair if word is not None]

    def call(self, *words: object, pictures: bool = False) -> tuple[int | None, str, str | None]:
        """Exit status, all that was printed, and what it has broken."""
        output, errors = self.folder / "out.txt", self.folder / "err.txt"
        process = start(self.command, *words, output=output, errors=errors, folder=self.folder, pictures=pictures)
        begun = time.monotonic()
        while process.is_alive() and time.monotonic() < begun + 300:
            self.highest = max(self.highest, *family(process.pid), 0)
            process.join(0.05)
        status, said = process.exitcode, errors.read_text(errors="replace") + output.read_text(errors="replace")
        if status is None:
            process.kill()
        for path in (output, errors):
            path.unlink()
        self.statuses[str(status)] += 1
        allowed = (0, 1, 2, 3) if "--fail-on" in words else (0, 2)
        problem = None if status in allowed else f"exit status {status}"
        if "Traceback" in said or raw(said.replace("\r", "")):
            problem = "a traceback, or a control character"
        return status, said, problem

    def keep(self, number: int, files: dict[str, bytes], problem: str, said: str) -> None:
        self.broken += 1
        for name, content in files.items():
            keep_found(f"{self.command}/{self.seed}-{number}-{name}", content, problem)
        print(problem, said[max(said.find("Traceback") - 300, 0) :][:4000], sep="\n", flush=True)

    def result(self) -> int:
        left = sorted(path.name for path in self.folder.iterdir() if path.name not in ("run", "results"))
        counts = {"command": self.command, "statuses": self.statuses, "mutated": self.read, "broken": self.broken}
        print(json.dumps(counts | {"left behind": left, "highest MiB": self.highest >> 20}), flush=True)
        return self.broken + len(left) + (self.highest > MOST_RESIDENT)


def attack_adapt(count: int, seed: int, seconds: float) -> int:
    """Adapts with some mutated files among good ones: it is trained, and each is used or named; odd options are refused."""
    source = mutations(seed, 16_384)
    with tempfile.TemporaryDirectory() as place:
        attack = Attack("adapt", count, seed, seconds, Path(place))
        for number, root in attack.rounds():
            names = [(f"a/{label}", 8) for label in ("healthy", "inner")] + [("b", 14)]
            good = [f"{below}/{each}.wav" for below, most in names for each in range(most)]
            for each, name in enumerate(good):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                samples = np.random.default_rng([number, each]).standard_normal(4096)
                wavfile.write(root / name, 12_000, samples.astype(np.float32))
            files = dict[str, bytes]()
            for name, content in itertools.islice(source, TOGETHER):
                files[f"{len(files)}-{name}"] = content
                below = attack.chance.choice(("a/healthy", "a/inner", "b", "b"))
                (root / below / f"{len(files) - 1}-{name}").write_bytes(content)
            listed = number % 4 == 3
            if listed:
                rows = [["path", "domain", "label", "rate", "start", "stop", "rpm"]]
                for path in sorted(root.rglob("*.*")):
                    odd = [attack.chance.choice(NUMBERS) for _ in range(4)] if path.name in files else [""] * 4
                    below = path.relative_to(root)
                    rows.append([str(below), below.parts[0], below.parts[1] if len(below.parts) > 2 else "", *odd])
                content = "\n".join(map(",".join, rows)).encode()
                content = mutated(content, attack.chance, [content]) if attack.chance.random() < 0.5 else content
                (root / "manifest.csv").write_bytes(content)
            words = attack.options() if number % 3 == 0 else []
            out = root.with_name("made")
            status, said, problem = attack.call("--data", root, *TASK, *TRAINED, "--out", out, *words)
            attack.read += len(files)
            if not words and not listed and problem is None:
                trained = (out / RECORD).exists()
                record = json.loads((out / RECORD).read_text()) if trained else {}
                known = {*record.get("problems", ()), *(each["recording"] for each in record.get("recordings", ()))}
                target = {path.relative_to(root).as_posix() for path in (root / "b").iterdir()}
                lost = [name for name in target if not any(each.startswith(name) for each in known)]
                if not trained or lost:
                    problem = f"not trained ({status})" if not trained else f"lost: {lost}"
                elif (status == 2) != bool(record["problems"]):
                    problem = f"exit status {status} of {len(record['problems'])} problems"
            if problem:
                attack.keep(number, files, f"{words}: {problem}", said)
            shutil.rmtree(out, ignore_errors=True)
        return attack.result()


def made_run(folder: Path) -> Path:
    """A finished adaptation of three classes, small."""
    small = ("--set", "seconds=1", "--set", "severities=4", "--set", "faults=inner,outer")
    attack = Attack("adapt", 0, 0, 0, folder)
    status, said, _ = attack.call("--data", "simulated", *small, *TRAINED, "--out", folder / "run")
    assert status == 0, said
    return folder / "run"


def changed_values(value: Any, chance: random.Random) -> Any:
    """Plain values of which one leaf, or one branch, is another value."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = value.copy()
        copy[key] = changed_values(value[key], chance)
        return copy
    odd = [cell for cell in CELLS if not isinstance(cell, bytes)]
    return chance.choice([*odd, [], {}, [value], {"a": value}, True, [[]] * 5, *map(float, NUMBERS[:9])])


def mutated_run(run: Path, place: Path, chance: random.Random) -> tuple[str, bytes]:
    """A copy of a run in which one file is another: its record with other values, sealed again, or any with other bytes."""
    shutil.copytree(run, place)
    if chance.random() < 0.6:
        record = json.loads((run / RECORD).read_text())
        record.pop("checksums")
        for _ in range(chance.choice((1, 1, 2, 6))):
            record = changed_values(record, chance)
        plain = json.dumps(record, sort_keys=True).encode()
        sums = {name: digest((place / name).read_bytes()) for name in (PREDICTIONS, CURVES)}
        content = json.dumps(record | {"checksums": {RECORD: digest(plain)} | sums}).encode() if isinstance(record, dict) else plain  # fmt: skip
        (place / RECORD).write_bytes(content)
        return RECORD, content
    file = chance.choice(sorted(path for path in place.rglob("*") if path.is_file()))
    content = mutated(file.read_bytes(), chance, [file.read_bytes()])
    file.write_bytes(content)
    if file.name in (PREDICTIONS, CURVES) and chance.random() < 0.7:  # sealed again
        record = json.loads((place / RECORD).read_text())
        record["checksums"][file.name] = digest(content)
        (place / RECORD).write_text(json.dumps(record))
    return file.relative_to(place).as_posix(), content


def attack_check(count: int, seed: int, seconds: float) -> int:
    """Checks so many mutated runs, or with mutated labels: a whole new record, or a sentence and the old one."""
    with tempfile.TemporaryDirectory() as place:
        run = made_run(Path(place))
        labels = {each["recording"]: each["nearest"] for each in json.loads((run / RECORD).read_text())["recordings"]}
        table = "\n".join(["recording,label", *(f"{name},{label}" for name, label in labels.items())]).encode()
        attack = Attack("check", count, seed, seconds, Path(place))
        for number, root in attack.rounds():
            content, name = table, "labels.csv"
            if number % 4:
                name, changed = mutated_run(run, root / "run", attack.chance)
            else:
                shutil.copytree(run, root / "run")
                content = changed = mutated(table, attack.chance, [table])
            (root / "labels.csv").write_bytes(content)
            before, there = (root / "run" / RECORD).read_bytes(), {path.name for path in (root / "run").iterdir()}
            words = attack.options() if number % 10 == 0 else ["--labels", root / "labels.csv"]
            status, said, problem = attack.call(root / "run", *words)
            attack.read += 1
            if status == 2 and (root / "run" / RECORD).read_bytes() != before:
                problem = problem or "refused, but written"
            left = {path.name for path in (root / "run").iterdir()} - there
            problem = problem or (f"left behind: {left}" if left else None)
            if problem:
                attack.keep(number, {name.replace("/", "-"): changed}, f"{name}: {problem}", said)
        return attack.result()


def attack_report(count: int, seed: int, seconds: float) -> int:
    """Writes the page of so many mutated runs, results and recordings: a page without their markup, or a sentence."""
    source = mutations(seed, 16_384)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = made_run(folder)
        (folder / "results").mkdir()
        recorded = folder / "results" / "1.wav"
        wavfile.write(recorded, 12_000, np.random.default_rng(0).standard_normal(12_000).astype(np.float32))
        results = dict[str, bytes]()
        for form in ("json", "csv"):
            output = folder / "results" / f"results.{form}"
            process = start("diagnose", recorded, "--rpm", 1500, "--bearing", "6205", "--format", form, output=output)
            process.join(120)
            results[form] = output.read_bytes()
        attack = Attack("report", count, seed, seconds, folder)
        for number, root in attack.rounds():
            kind, page, files = number % 4, root / "page.html", dict[str, bytes]()
            words, asked = ["--out", page], root / "files"
            if kind == 0:
                asked = root / "run"
                name, content = mutated_run(run, asked, attack.chance)
                files[name.replace("/", "-")] = content
            elif kind == 3:
                asked.mkdir()
                for name, content in itertools.islice(source, TOGETHER):
                    files[f"{len(files)}-{name}"] = content
                    (asked / f"{len(files) - 1}-{name}").write_bytes(content)
                words += attack.options() if number % 8 == 3 else ["--rpm", "1500", "--bearing", "6205"]
            else:
                form = ("json", "csv")[kind - 1]
                content = mutated(results[form], attack.chance, [results[form]])
                if form == "json" and attack.chance.random() < 0.6:
                    content = json.dumps(changed_values(json.loads(results["json"]), attack.chance)).encode()
                asked = root / f"results.{form}"
                asked.write_bytes(content)
                files[asked.name] = content
            status, said, problem = attack.call(asked, *words, pictures=True)
            attack.read += len(files)
            text = page.read_text(errors="replace") if page.exists() else ""
            if (status == 0) != bool(text) or MARKUP in text or "<img src=x" in text:
                problem = problem or f"exit status {status}, a page of {len(text)} characters, or markup in it"
            lost = [name for name in files if name not in text + said] if kind == 3 and status == 0 else []
            problem = problem or (f"lost: {lost}" if lost else None)
            if problem:
                attack.keep(number, files, f"{words[2:]}: {problem}", said)
        return attack.result()


PARTS = {"adapt": attack_adapt, "check": attack_check, "report": attack_report}
