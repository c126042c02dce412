"""Tables as Markdown, LaTeX (booktabs) and CSV. Other modules decide what a table says.

>>> row = (TableEntry("DANN"), TableEntry("81.2", 81.23))
>>> print(markdown(Table("scores", "Scores", "One run.", ("Method", "Score"), (row,))))
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bearcat.errors import InputError
from bearcat.storage import write_atomically

NOTHING = "–"


@dataclass(frozen=True)
class TableEntry:
    """One place in a table: the text, and the number behind it (percent where the text is)."""

    text: str
    value: float | None = None
    bold: bool = False
    spread: float | None = None  # the standard deviation behind "±"


def number_entry(value: float | None, form: str = "{:.3f}", bold: bool = False) -> TableEntry:
    """A number in this form, with a true minus and no sign before zero; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return TableEntry(NOTHING)
    text = form.format(value)
    text = text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")
    return TableEntry(text, value, bold)


def percent_entry(fraction: float | None, form: str = "{:.1f}", bold: bool = False) -> TableEntry:
    return number_entry(None if fraction is None else 100 * fraction, form, bold)


@dataclass(frozen=True)
class Table:
    """`name` is the file's; `note` says what is shown, over how many runs, and what bold means."""

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]


def markdown(table: Table) -> str:
    """A title, a table in GitHub's form and its note."""
    title, note = (text.translate(_MARKDOWN) for text in (table.title, table.note))
    lines = [[name.translate(_MARKDOWN) for name in table.header]]
    lines.append(["---:" if number else "---" for number in _numeric(table)])
    for row in table.rows:
        texts = [(entry.text.translate(_MARKDOWN), entry.bold) for entry in row]
        lines.append([f"**{text}**" if bold and text else text for text, bold in texts])
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{title}**\n\n{drawn}\n\n{note}\n"


def latex(table: Table) -> str:
    """A floating table with booktabs' rules, shrunk to the page where it is wider."""

    def entry_text(entry: TableEntry) -> str:
        text = entry.text.translate(_LATEX)
        return rf"\textbf{{{text}}}" if entry.bold and text else text

    def line(parts: Iterable[str]) -> str:
        joined = " & ".join(parts)
        # After the \\ of the line before, a star or a bracket would be taken for its argument.
        return ("{}" if joined[:1] in ("*", "[") else "") + joined + r" \\"

    columns = "".join("r" if number else "l" for number in _numeric(table))
    lines = [
        r"% \usepackage{booktabs, graphicx, amssymb}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{table.title.translate(_LATEX)}. {table.note.translate(_LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        line(name.translate(_LATEX) for name in table.header),
        r"\midrule",
        *(line(map(entry_text, row)) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """Every number in full precision, empty where there is none; a column "… sd" beside means that have one."""

    def number(value: float | None) -> str:
        return "" if value is None else repr(value)

    columns: list[list[str]] = []
    for place, (name, numeric) in enumerate(zip(table.header, _numeric(table), strict=True)):
        entries = [row[place] for row in table.rows]
        columns.append([name, *(number(entry.value) if numeric else entry.text for entry in entries)])
        if any(entry.spread is not None for entry in entries):
            columns.append([f"{name} sd", *(number(entry.spread) for entry in entries)])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*columns, strict=True))
    return out.getvalue()


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """NAME.md, NAME.tex and NAME.csv of every table."""
    written = []
    for table in tables:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", table.name):
            raise InputError(f"'{table.name}' cannot name a table's file; use a-z, 0-9 and hyphens")
        for suffix, text in (("md", markdown(table)), ("tex", latex(table)), ("csv", csv_text(table))):
            written.append(folder / f"{table.name}.{suffix}")
            write_atomically(written[-1], text.encode())
    return written


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
