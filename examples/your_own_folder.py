"""Your own recordings: from files on disk to a recommendation, and to diagnoses of later files.

Pump A is known: four healthy recordings, one with a damaged inner and one with a damaged outer race. Pump B runs at a
lower load and has no labels. This script makes the folder from simulated signals; lay yours out the same way
(docs/own-data.md) and leave out `make_folder`.

    python examples/your_own_folder.py [FOLDER] [--epochs 60] [--only-make]
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from scipy.io import wavfile

import bearcat
from bearcat.data import Simulated

SOURCE, TARGET = "pump-A-1500rpm", "pump-B-1500rpm"


def make_folder(root: Path) -> None:
    """Recordings as loggers leave them: some wav, some csv with a column of times; labels only of pump A."""
    loads = {"N15_M07_F10": SOURCE, "N15_M07_F04": TARGET}
    pumps = Simulated(
        seconds=2.0, conditions=tuple(loads), measurements=4, severities=(4.0,), faults=("inner", "outer")
    )
    for number, entry in enumerate(pumps.catalogue().entries):
        fault, day = entry.label.split("-")[0], number % 4
        if loads[entry.domain] == TARGET:
            place = root / f"recordings/{TARGET}/file{number}" if day else root / f"new/{fault}{number}"
        elif fault == "healthy" or day == 0:
            place = root / f"recordings/{SOURCE}/{fault}/day{day}"
        else:
            continue
        recording = entry.read()
        place.parent.mkdir(parents=True, exist_ok=True)
        if number % 3:
            loud = recording.signal / np.abs(recording.signal).max()
            wavfile.write(place.with_suffix(".wav"), int(recording.rate), (32000 * loud).astype(np.int16))
        else:
            table = np.column_stack([np.arange(len(recording.signal)) / recording.rate, recording.signal])
            np.savetxt(place.with_suffix(".csv"), table, delimiter=",", header="time,acceleration", comments="")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, nargs="?", default=Path("my-pump"))
    options.add_argument("--epochs", type=int, help="the default is the recipe's own number")
    options.add_argument("--only-make", action="store_true", help="make the folder of recordings and stop")
    arguments = options.parse_args()
    recordings, out = arguments.folder / "recordings", arguments.folder / "out"
    if not recordings.exists():
        make_folder(arguments.folder)
    if arguments.only_make:
        return

    # Channel, rate, window, split and input are chosen from the recordings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are printed below
        adapted = bearcat.adapt(recordings / SOURCE, recordings / TARGET, out=out, epochs=arguments.epochs)
    for choice in adapted.record.chosen:
        print(f"{choice.setting}: {choice.value}")
    for warning in adapted.record.warnings:
        print(f"warning: {warning}")
    print(f"\n{adapted.decision.sentence}\n")

    for diagnosis in bearcat.diagnose(arguments.folder / "new", model=adapted):
        name = Path(diagnosis.recording).name
        print(f"{name}: {diagnosis.decision.action}, {diagnosis.state}, confidence {diagnosis.confidence:.0%}")
    print(f"\nEverything on one page: {out / 'report.html'}")


if __name__ == "__main__":
    main()
