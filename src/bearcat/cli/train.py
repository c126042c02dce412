"""Training: `adapt`, `check`, `export`, `methods`, and grids of runs with `bench run`, `status` and `report`."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from bearcat import cli
from bearcat.cli import Names, Root, print_lines, print_note, print_table, takes
from bearcat.errors import InputError, naming_place
from bearcat.settings import AdaptRequest, find_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bearcat.adaptation import Library, RunSpec
    from bearcat.adaptation.run import Adaptation
    from bearcat.bench import RunStore
    from bearcat.cat.recipes import Recipe


@takes(AdaptRequest)
def adapt(
    request: AdaptRequest,
    out: Annotated[Path, Option(metavar="FOLDER", help="The folder for the results.")] = Path("bearcat-out"),
) -> None:
    """Adapt a model to unlabelled recordings; say how far to trust it.

    It learns from labelled recordings of another machine or condition. Without any option: a small, easy task between
    two simulated operating conditions, in a minute or two.
    """
    from bearcat.adaptation import make_plan
    from bearcat.adaptation.run import adapt as run
    from bearcat.cat.state import training_progress

    plan = make_plan(request, cli.reading_bar())
    if plan.spec.chosen:  # each can be given as an option instead
        chosen = "; ".join(f"{choice.setting} {choice.value}" for choice in plan.spec.chosen)
        print_note(f"chosen from the recordings: {chosen}")
    for problem in plan.library.part(plan.spec).left_out:
        print_note(problem.sentence, "problem")
    for warning in plan.spec.warnings:
        print_note(warning, "warning")
    adaptation = run(plan, out, training_progress)
    _print_adaptation(adaptation, plan.spec.warnings)
    if adaptation.problems:
        raise Exit(2)


def _print_adaptation(adaptation: Adaptation, printed: Sequence[str]) -> None:
    """Scores of a method that was requested, and the answer: decisions, recordings, recommendation; then scores of all
    runs, and where results are.
    """
    from bearcat.findings import percent

    diagnoses, record, out = adaptation.recordings, adaptation.record, adaptation.folder
    scores = list[str]()
    for name, run in adaptation.runs.items():
        target = run.scores.target
        known = target and f"target accuracy {percent(target.accuracy)}, ECE {percent(target.ece)}"
        scores.append(f"{name}: {known or 'no target labels'}")
    if record.requested_scores is not None:
        print_lines(scores[0])
    print_lines(diagnoses.summary)
    cli.print_recordings(diagnoses.worst_first)
    print_lines(adaptation.decision.sentence, *record.sentences, "", record.settings.task.replace("→", " → "), *scores)
    runs = reversed(list(adaptation.runs.items()))  # a warning of several is printed once, of the first
    for warning, name in {warning: name for name, run in runs for warning in run.warnings}.items():
        if warning not in printed:
            print_note(f"{name}: {warning}", "warning")
    print(f"Results are in {out}: record.json, predictions.csv, curves.csv, model/")
    if (out / "report.html").exists():
        print(f"All of it on one page: {out / 'report.html'}")


def check(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run.")],
    labels: Annotated[Path, Option(metavar="FILE", help="A csv with the columns recording and label.")],
) -> None:
    """Compare a run with labels of some target recordings. Updates expected accuracy, recommendation, calibration."""
    from bearcat.adaptation.evaluation import check_run, read_labels

    print_lines(check_run(run, read_labels(labels)).decision.sentence)
    print(f"Written to {run}: record.json, report.html")


def export(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model's folder.")],
    onnx: Annotated[Path, Option("--onnx", metavar="FILE", help="The file to write; its name ends in .onnx.")],
) -> None:
    """Write a model as one ONNX file (docs/deploy.md)."""
    from bearcat.deploy.model import export_onnx, load_model

    opened = load_model(model)
    cli.print_decision(opened)
    written = export_onnx(opened, onnx)
    print(f"{written}: {written.stat().st_size / 1e6:.1f} MB; use it with: bearcat predict {written} FILES")


def methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="A method, to see its settings.")] = None,
) -> None:
    """List the methods, or the parts and settings of one (docs/method.md)."""
    from bearcat.cat.recipes import RECIPES, find_recipe

    if name is not None:
        name = find_recipe(name)
        recipe = RECIPES[name]
        print_lines(f"{name}, input {recipe.input}")
        for part in recipe.ingredients:
            first, _, _ = str(part.__doc__).partition("\n\n")
            print_lines(f"{part.name}: {' '.join(first.split())}")
        print_table(list(settings_of(recipe)))
        return
    rows = [
        {
            "method": method,
            "input": recipe.input,
            "parts": ", ".join(part.name for part in recipe.ingredients),
            "calibrator": ", ".join(filter(None, (texts["calibration"], texts["final"]))),
        }
        for method, recipe in RECIPES.items()
        for texts in [recipe.texts()]
    ]
    print_table(rows)


def settings_of(recipe: Recipe) -> Iterator[dict[str, str]]:
    """Every setting of a method as `--method-set` takes it: name, value and what it may be."""
    from bearcat.cat.networks import ENCODERS
    from bearcat.cat.recipes import CALIBRATORS

    texts, calibrators = recipe.texts(), ", ".join([*CALIBRATORS, "none"])
    tables = {"encoder": ", ".join(ENCODERS), "calibration": calibrators, "final": calibrators}
    tables["precision"] = "float32, tf32, bfloat16, none"
    kinds = {bool: "true, false", int: "a whole number", float: "a number", tuple: "values with commas between them"}
    owners: list[tuple[str, Any]] = [("", recipe), *((f"{part.name}.", part) for part in recipe.ingredients)]
    owners += [(f"{name}.", value) for _, owner in owners for name, value in vars(owner).items() if is_dataclass(value)]
    for prefix, owner in owners:
        for setting in fields(owner):
            value = texts[setting.name] if prefix + setting.name in texts else getattr(owner, setting.name)
            if is_dataclass(value) or setting.name in ("ingredients", "input", "epochs"):  # which options set
                continue
            known = ", ".join(setting.metadata.get("known", ())) or tables.get(prefix + setting.name, "")
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            text = text.lower() if value is None or isinstance(value, bool) else text
            accepted = known or kinds.get(type(value), "")
            yield {"--method-set": prefix + setting.name, "value": text, "accepted": accepted}


bench = cli.group("Run, resume and report grids of runs (docs/benchmark.md).")

GridFile = Annotated[Path, Argument(metavar="GRID", help="A grid's TOML file, such as grids/smoke.toml.")]
StoreFolder = Annotated[Path, Option("--store", metavar="FOLDER", help="The folder that keeps the runs.")]
Ray = Annotated[str | None, Option(metavar="HOST:PORT|local", help="Train on this Ray cluster instead of in stacks.")]
Device = Annotated[str, Option(metavar="auto|cpu|cuda", help="Where training runs.")]
Metric = Annotated[Names, Option(metavar="NAME", help="accuracy, ece, ece15, balanced, …; repeat for more.")]


@bench.command("run")
def bench_run(
    grid: GridFile,
    store: StoreFolder = Path("bench-store"),
    root: Root = None,
    ray: Ray = None,
    device: Device = "auto",
    retry_failed: Annotated[bool, Option("--retry-failed", help="Train runs that failed again.")] = False,
) -> None:
    """Train the runs of a grid that have no result yet. After an interruption, the same command goes on.

    Exit status 2: some runs failed.
    """
    from bearcat.bench import Execution, execute, in_stacks, on_ray
    from bearcat.cat.state import training_progress
    from bearcat.fast.device import chosen_device

    opened, specs, library = _opened(grid, store, root, create=True)
    if ray is None:
        executor = partial(in_stacks, device=chosen_device(device))
    else:
        executor = partial(on_ray, address=ray, device=device)
    execution = Execution(opened, specs, library, print_note, training_progress)
    execute(execution, executor, retry_failed)
    kinds = _print_states(specs, opened)
    print(f"{len(execution.trained)} trained by this process")
    if kinds["failed"]:
        raise InputError(f"{kinds['failed']} runs failed; --retry-failed tries them again")


@bench.command("status")
def bench_status(grid: GridFile, store: StoreFolder = Path("bench-store"), root: Root = None) -> None:
    """Count the runs of a grid that are done, failed or missing."""
    opened, specs, _ = _opened(grid, store, root, create=False)
    _print_states(specs, opened)


@bench.command("report")
def bench_report(
    grid: GridFile,
    store: StoreFolder = Path("bench-store"),
    root: Root = None,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="For its files.  [default: bench-report/GRID]")] = None,
    metric: Metric = None,
) -> None:
    """Write tables, statistics and figures of finished runs."""
    from bearcat.bench import results
    from bearcat.bench.grid import read_grid
    from bearcat.bench.report import write_bench_report
    from bearcat.bench.stats import METRICS, USUAL

    metrics = [find_name(name, METRICS, "metric") for name in metric or USUAL]
    opened, specs, _ = _opened(grid, store, root, create=False)
    finished, missing = results(specs, opened)
    if not finished:
        raise InputError(f"{store}: holds no finished run of {grid}; start with bearcat bench run {grid}")
    folder = out or Path("bench-report") / grid.stem
    page = write_bench_report(read_grid(grid)[0].title, finished, missing, folder, metrics)
    print(f"{len(finished)} runs, {len(missing)} without a result: {page}")


def _opened(path: Path, folder: Path, root: Path | None, create: bool) -> tuple[RunStore, list[RunSpec], Library]:
    """The store, the grid's runs with their identities, and their data."""
    from bearcat.adaptation import Library
    from bearcat.bench import open_store
    from bearcat.bench.grid import plan, read_grid

    grids, library = read_grid(path), Library()
    with naming_place(path):
        specs = plan(grids, root, library)
    return open_store(folder, create), [library.identified(spec) for spec in specs], library


def _print_states(specs: Sequence[RunSpec], store: RunStore) -> Counter[str]:
    """Counts of the runs in each state, and those that failed."""
    from bearcat.bench import FAILURE

    states = [(spec, store.state(spec.identity)) for spec in specs]
    counts = Counter(state.kind for _, state in states)
    print(f"{len(specs)} cells: {', '.join(f'{number} {kind}' for kind, number in sorted(counts.items()))}")
    for spec, state in states:
        if state.kind in ("failed", "damaged"):
            where = f" ({store.folder(spec.identity) / FAILURE} has the traceback)" if state.kind == "failed" else ""
            print_note(f"{spec.cell}: {state.detail}{where}", state.kind)
    return counts
