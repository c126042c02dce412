"""What a device can do, and how steps run on it: as they are on a CPU, as recorded CUDA graphs on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from bearcat.errors import InputError, suggest
from bearcat.fast import stacked
from bearcat.fast.stacked import Randomness

PRECISIONS = ("float32", "tf32", "bfloat16")


@cache
def fast_path(device: torch.device) -> str:
    """ "triton" or "native" where the device and the installed packages allow it, otherwise "plain"."""
    capable = device.type == "cpu" or (torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton"))
    path = "native" if device.type == "cpu" else "triton"
    try:
        return path if capable and _agrees(path, device) else "plain"
    except Exception:  # whatever it is, there is the plain path, and a run's record says so
        return "plain"


def _agrees(path: str, device: torch.device) -> bool:
    """Whether this path's dropout, and on a CPU a small encoder forward and back, compute what the plain one does."""
    from bearcat.cat.networks import SHORTEST, ConvolutionalEncoder, rectified_dropout

    draws = Randomness(torch.zeros(1, dtype=torch.int64, device=device))
    draws.next()
    values = torch.ones(1, 1, 64, device=device)
    if not torch.equal(rectified_dropout(values, 0.5, draws, 0, path), stacked.dropped(values, 0.5, draws, 0)):
        return False
    if device.type != "cpu":
        return True
    chance = torch.Generator().manual_seed(0)
    plain = ConvolutionalEncoder(2, 1, probability=0.0)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=chance))
    other = copy.deepcopy(plain)
    other.path = path
    found: list[list[Tensor]] = []
    windows = torch.randn(2, 10, 1, SHORTEST + 20, generator=chance)
    for encoder in (plain, other):
        features = encoder(windows, True, None)
        weights = [*encoder.norms.parameters(), *(layer.weight for layer, _ in encoder._layers())]
        found.append([features, *torch.autograd.grad(features.square().sum(), weights)])
    return all(torch.dist(expected, got) <= 1e-3 * expected.norm() for expected, got in zip(*found, strict=True))


def chosen_device(name: str) -> torch.device:
    """The device of this name; auto is a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device '{name}'; choose from auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch sees no CUDA device; use the device 'cpu'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_precision(wanted: str | None, encoder_path: str, device: torch.device) -> str:
    """What is wanted, or more where the device has nothing less; without a wish the fastest (docs/speed.md)."""
    if wanted is not None and wanted not in PRECISIONS:
        raise InputError(f"setting 'precision' is '{wanted}'{suggest(wanted, PRECISIONS)}")
    if wanted == "bfloat16" and encoder_path != "triton":
        raise InputError("precision 'bfloat16' needs the encoder 'cnn' on a GPU with Triton; leave it out")
    if device.type == "cpu":
        return "float32"
    return wanted or ("bfloat16" if encoder_path == "triton" else "tf32")


@contextmanager
def torch_settings(precision: str, device: torch.device, small: bool = False) -> Iterator[None]:
    """Sets how torch computes, for a while: on a GPU with products of float32 as they are, or rounded to TF32 first
    ("bfloat16" too: outside the convolutions there is little to gain); on a CPU with one thread for small networks (a
    second gains little there, and waiting for a busy core costs a lot).
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "float32"
    elif small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.set_num_threads(before[2])


class Recorder:
    """Runs steps. On a GPU the third step of a kind is recorded as a CUDA graph, and replayed from then on.

    A step is some thousand small kernels; starting them one by one took longer than running them (41 ms for one run on
    an H200). Steps of a kind must do the same things to the same memory, and may ask the device for nothing. The first
    two are real steps too: they make what is made once (moments, handles, compiled kernels).
    """

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.recording = record and device.type == "cuda"
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.calls: dict[Hashable, int] = {}
        if self.recording:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def run(self, step: Callable[[], None], kind: Hashable) -> None:
        """One step of this kind."""
        if not self.recording:
            step()
            return
        if kind not in self.graphs and self.calls.setdefault(kind, 0) < 2:
            self.calls[kind] += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if kind not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what the first steps used, the graph wants
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                step()
            self.graphs[kind] = graph
        self.graphs[kind].replay()
