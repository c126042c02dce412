"""Options and commands of earlier versions that are gone, and what to use instead: one sentence and exit status 2."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bearcat.errors import InputError

REMOVED = {  # by option, or by command and option where other commands have it
    "recipes": "use `bearcat methods`",
    "--figures": "every figure is written as png, svg and pdf; make EPS of these with pdftops -eps",
    "--pdf": "open the page in a browser and print it",
    "bearings": "bearcat.data.BEARINGS has the table, and docs/bearings.md says what is in it",
    "predict --batch": "windows are handed to the model 256 at once, which no answer depends on",
    "mcp --max-bytes": "`bearcat mcp` limits a file by its size (docs/security.md)",
    "mcp --timeout": "`bearcat mcp` limits a file by its size (docs/security.md)",
    "serve --token": "set BEARCAT_TOKEN instead, which other users of the machine cannot see",
    "--track": "curves.csv in the folder of a run has the numbers of every epoch",
    "--balance": "write --recipe-set balance=true",
    "--no-balance": "write --recipe-set balance=false",
    "--precision": "write --recipe-set precision=float32",
    "--channels": "write --set channels=together, or channels=apart",
    "--target-keep": 'write a grid with target = { keep = ["healthy"] } and train it by bearcat bench run',
    "--target-share": "write a grid with target = { share = { rest = 0.05 } } and train it by bearcat bench run",
    "--why": "failure.json in the folder of a failed run, which bench status names, has the traceback",
    "--webhook": "write --notify json://host/path, or jsons:// for https",
    "--mail": "write --notify 'mailto://user:password@host?to=me@example.com'",
    "--mqtt": "write --notify mqtt://host/topic for events, and let a bridge write recordings into the folder",
    "--metrics": "bearcat watch export and --format json have the numbers",
    "--executor": "write --jobs 2, for processes of this machine",
    "--address": "write --jobs 2, for processes of this machine",
    "show --input": "bearcat.data.prepare gives the values that a network reads, to draw with matplotlib",
}


def refuse_removed(command: str | None, words: Iterable[str], known: Collection[str]) -> None:
    """Raises InputError for the first word that is a removed option or command; `known` are those of this command."""
    for word in words:
        option = word.partition("=")[0]
        instead = REMOVED.get(option) or REMOVED.get(f"{command} {option}")
        if instead is not None and option not in known:
            raise InputError(f"{option}: was removed; {instead}")
