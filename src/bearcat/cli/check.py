"""Labels of some target recordings, after a run: `check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", show_default=False)],
    labels: Annotated[
        Path, typer.Option(help="A csv with the columns recording and label, of recordings of the target.")
    ],
) -> None:
    """Compare a run with labels of some recordings, and update what it expects and advises."""
    from bearcat.runs.check import check_run, read_labels

    entry = check_run(run, read_labels(labels))
    print(f"Verdict: {entry['verdict']}")
    print(f"Written to {run}: record.json, report.html")
