"""Tables as Markdown, LaTeX (booktabs) and CSV: what a table says is decided elsewhere, here only how it is written.

>>> table = Table("tally", "A tally", "One run.", ("Method", "Score"), ((Entry("DANN"), Entry("81.2", 81.23)),))
>>> print(markdown(table))
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bearcat.errors import InputError

NOTHING = "–"


@dataclass(frozen=True)
class Entry:
    """One cell: what is read, and the number behind it (percent where the text is)."""

    text: str
    value: float | None = None
    bold: bool = False
    spread: float | None = None  # the standard deviation behind "±"


@dataclass(frozen=True)
class Table:
    """`name` is the file's; `note` says what is shown, over how many runs, and what bold means.

    Files have the columns in the order of the header, which is the paper's. A page, of which a screen shows the left
    part, has those called `forward` right after the columns of words.
    """

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    forward: tuple[str, ...] = ()


def for_screen(table: Table) -> Table:
    """The same table with its forward columns after those of words."""
    words = next((place for place, number in enumerate(_numeric(table)) if number), len(table.header))
    places = range(len(table.header))
    moved = [place for place in places if place >= words and table.header[place] in table.forward]
    order = [*places[:words], *moved, *(place for place in places[words:] if place not in moved)]
    return replace(
        table,
        header=tuple(table.header[place] for place in order),
        rows=tuple(tuple(row[place] for place in order) for row in table.rows),
    )


def markdown(table: Table) -> str:
    """A title, a table in GitHub's form and its note."""

    def told(entry: Entry) -> str:
        text = _escaped(entry.text)
        return f"**{text}**" if entry.bold and text else text

    lines = [list(map(_escaped, table.header)), ["---:" if one else "---" for one in _numeric(table)]]
    lines += [list(map(told, row)) for row in table.rows]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_escaped(table.title)}**\n\n{drawn}\n\n{_escaped(table.note)}\n"


def latex(table: Table) -> str:
    """A floating table with booktabs' rules, shrunk to the page where it is wider."""

    def told(entry: Entry) -> str:
        text = _latex_text(entry.text)
        return rf"\textbf{{{text}}}" if entry.bold and text else text

    def line(parts: Iterable[str]) -> str:
        joined = " & ".join(parts)
        # After the \\ of the line before, a star or a bracket would be taken for its argument.
        return ("{}" if joined[:1] in ("*", "[") else "") + joined + r" \\"

    return "\n".join(
        [
            r"% \usepackage{booktabs, graphicx, amssymb}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex_text(table.title)}. {_latex_text(table.note)}}}",
            rf"\label{{tab:{table.name}}}",
            r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{''.join('r' if one else 'l' for one in _numeric(table))}}}",
            r"\toprule",
            line(map(_latex_text, table.header)),
            r"\midrule",
            *(line(map(told, row)) for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def csv_text(table: Table) -> str:
    """Every number in full precision, empty where there is none; a column "… sd" beside means that have one."""
    with_sd = [any(row[column].spread is not None for row in table.rows) for column in range(len(table.header))]
    numeric = _numeric(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = []
    for name, spread in zip(table.header, with_sd, strict=True):
        header += [name, f"{name} sd"] if spread else [name]
    writer.writerow(header)
    for row in table.rows:
        line: list[str] = []
        for entry, number, spread in zip(row, numeric, with_sd, strict=True):
            line.append((repr(entry.value) if entry.value is not None else "") if number else entry.text)
            if spread:
                line.append(repr(entry.spread) if entry.spread is not None else "")
        writer.writerow(line)
    return out.getvalue()


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """NAME.md, NAME.tex and NAME.csv of every table; a reader finds the old file or the new one, never a half."""
    written = []
    for table in tables:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", table.name):
            raise InputError(f"table name '{table.name}' is no file's name; use a-z, 0-9 and hyphens")
        for ending, make in (("md", markdown), ("tex", latex), ("csv", csv_text)):
            path = folder / f"{table.name}.{ending}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _write(path, make(table))
            except OSError as error:
                raise InputError(f"{path}: cannot be written ({error.strerror}); choose another folder") from error
            written.append(path)
    return written


def _write(path: Path, text: str) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _numeric(table: Table) -> list[bool]:
    """Which columns hold numbers."""
    return [any(row[column].value is not None for row in table.rows) for column in range(len(table.header))]


_MARKDOWN = str.maketrans({**{sign: f"\\{sign}" for sign in "\\`*_|<>[]"}, "\n": " ", "\r": " "})
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "η": "eta", "θ": "theta", "κ": "kappa",
    "λ": "lambda", "μ": "mu", "ν": "nu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ψ": "psi",
    "ω": "omega", "Δ": "Delta", "Λ": "Lambda", "Σ": "Sigma", "Φ": "Phi", "Ω": "Omega",
}  # fmt: skip
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", "|": r"\textbar{}", "<": "$<$", ">": "$>$", '"': "''", "\n": " ", "\r": " ",
        "→": r"$\rightarrow$", "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "…": r"\dots{}",
        "“": "``", "”": "''", "‘": "`", "’": "'",
        "✓": r"$\checkmark$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$",
        **{sign: f"$\\{name}$" for sign, name in GREEK.items()},
    }
)  # fmt: skip


def _escaped(text: str) -> str:
    return text.translate(_MARKDOWN)


def _latex_text(text: str) -> str:
    return text.translate(_LATEX)
