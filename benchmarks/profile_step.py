"""Where a step's time goes, by kernel, against the least it could take on this machine.

    PYTHONPATH=src:. python benchmarks/profile_step.py                                    # one run on a CPU, 60 on a GPU
    PYTHONPATH=src:. python benchmarks/profile_step.py --path triton plain --precision bfloat16 --out profile

Two floors: of arithmetic, the multiplications a step must do at the speed of torch's own large matrix product, measured
here; and of traffic, every convolution's output and its gradient written once and read once per use, at the speed of a
large copy, measured here. Time by kernel is torch.profiler's, of a few warm steps; the step itself is timed without it.
`--out` writes the whole table of each path and precision to OUT-PATH-PRECISION.txt.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from workload import (
    CLASSES,
    Clock,
    Size,
    add_options,
    machine,
    on_gpu,
    quartiles,
    ready,
    sizes_of,
    the_device,
    time_steps,
)

from bearcat.training.state import torch_settings

ENCODER = ((1, 16, 15), (16, 32, 3), (32, 64, 3), (64, 128, 3))  # inputs, outputs, taps
DENSE = ((512, 256), (256, 256), (256, CLASSES))
DOMAIN = ((256, 1024), (1024, 1024), (1024, 1))


def times(length: int) -> list[int]:
    """Points each convolution leaves of a window."""
    pairs = (length - 16) // 2
    return [length - 14, length - 16, pairs - 2, pairs - 4]


def arithmetic(size: Size) -> float:
    """Floating-point operations of a step of CAT*: the teacher's pass, the climb's and the descent's there and back."""
    convolutions = [
        2.0 * time * inputs * outputs * taps
        for time, (inputs, outputs, taps) in zip(times(size.length), ENCODER, strict=True)
    ]
    forward = sum(convolutions) + sum(2.0 * inputs * outputs for inputs, outputs in DENSE)
    domain = sum(2.0 * inputs * outputs for inputs, outputs in DOMAIN)
    a_pass = 3 * forward - convolutions[0]  # the way back is two products, but nobody asks for the windows' gradient
    if size.path == "native":  # half of the last weight's gradient and a sixth of its inputs' are not needed there
        a_pass -= convolutions[-1] * (1 / 2 + 1 / 6)
    return size.runs * size.batch * (forward + 2 * 2 * a_pass + 2 * 3 * domain)


def traffic(size: Size) -> float:
    """Bytes of a step: on the way there an output is written and read; back, it and its gradient are read for the
    product's two sides at once, and the gradient was written before."""
    stored = 2 if size.precision == "bfloat16" else 4
    outputs = [time * outputs for time, (_, outputs, _) in zip(times(size.length), ENCODER, strict=True)]
    if size.path == "native":
        del outputs[-1]  # never stored
    return size.runs * size.batch * stored * sum(outputs) * (2.0 + 2 * 2 * 5)


def fastest(work: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the fastest call."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if on_gpu():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found[1:])


def speeds(precision: str) -> tuple[float, float]:
    """Operations a second of a large matrix product, and bytes a second of a large copy."""
    device = the_device()
    side, count = (8192, 2**28) if on_gpu() else (1024, 2**24)
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left = torch.randn(side, side, device=device, dtype=kind)
    with torch_settings(precision, device):
        product = fastest(lambda: left @ left)
    source = torch.zeros(count, device=device)
    target = torch.zeros_like(source)
    return 2 * side**3 / product, 2 * 4 * count / fastest(lambda: target.copy_(source))


def by_kernel(size: Size, steps: int) -> list[tuple[str, float, float]]:
    """Names, milliseconds a step and calls a step, longest first."""
    kind = torch.profiler.ProfilerActivity.CUDA if on_gpu() else torch.profiler.ProfilerActivity.CPU
    with ready(size) as step, torch.profiler.profile(activities=[kind], acc_events=True) as profile:
        for _ in range(steps):
            step()
        if on_gpu():
            torch.cuda.synchronize()
    rows = [
        (
            event.key,
            (event.self_device_time_total if on_gpu() else event.self_cpu_time_total) / 1e3 / steps,
            event.count / steps,
        )
        for event in profile.key_averages()
    ]
    return sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=120)
    parser.add_argument("--runs", type=int, nargs="+", default=[60 if on_gpu() else 1])
    parser.add_argument("--steps", type=int, default=20 if on_gpu() else 7)
    parser.add_argument("--rows", type=int, default=25, help="kernels to print")
    parser.add_argument("--out", help="begin of the names of files with the whole tables")
    chosen = parser.parse_args()
    clock, sizes = Clock(chosen.seconds), sizes_of(chosen)
    print(f"{machine()}, {chosen.recipe}", flush=True)
    for size in (replace(base, runs=runs) for base in sizes for runs in chosen.runs):
        if clock.left() < 0:
            print(f"{size.path}, {size.precision}, {size.runs} run(s): left out, time is up")
            continue
        operations, bandwidth = speeds(size.precision)
        floors = {"arithmetic": 1e3 * arithmetic(size) / operations, "traffic": 1e3 * traffic(size) / bandwidth}
        low, middle, high = quartiles(time_steps(size, chosen.steps, clock)[0])
        print(f"\n{size.path}, {size.precision}, {size.runs} run(s): {middle:.2f} ms a step ({low:.2f}–{high:.2f})")
        print(f"  {arithmetic(size) / 1e9:8.1f} GFLOP at {operations / 1e9:8.0f} GFLOP/s: at least {floors['arithmetic']:8.2f} ms, "
              f"the step is {middle / floors['arithmetic']:.1f} × that")  # fmt: skip
        print(f"  {traffic(size) / 1e9:8.2f} GB    at {bandwidth / 1e9:8.1f} GB/s:    at least {floors['traffic']:8.2f} ms, "
              f"the step is {middle / floors['traffic']:.1f} × that", flush=True)  # fmt: skip
        rows = by_kernel(size, 3)
        whole = sum(row[1] for row in rows)
        lines = [
            f"  {took:9.3f} ms {100 * took / whole:5.1f} % {calls:7.1f} calls  {name[:90]}"
            for name, took, calls in rows
        ]
        print("\n".join(lines[: chosen.rows]), flush=True)
        if chosen.out is not None:
            Path(f"{chosen.out}-{size.path}-{size.precision}-{size.runs}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
