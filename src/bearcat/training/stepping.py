"""How a step moves the weights, and `Recorder`, which runs it: as it is on a CPU, as a CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@torch.no_grad()
def put_back(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Undoes a perturbation of the weights."""
    torch._foreach_copy_(list(parameters), list(before))


def parameters_of(optimisers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """All they move, in order."""
    groups = (group for optimiser in optimisers for group in optimiser.param_groups)
    return [parameter for group in groups for parameter in group["params"]]


def descend(optimisers: Sequence[torch.optim.Optimizer], gradients: Sequence[Tensor]) -> None:
    """A step of each optimiser along these gradients of its parameters."""
    for parameter, gradient in zip(parameters_of(optimisers), gradients, strict=True):
        parameter.grad = gradient.contiguous()  # fused Adam wants the parameter's own strides
    for optimiser in optimisers:
        optimiser.step()


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate from here on; in place where it lies on a GPU, so that recorded steps see it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def matrix_products(precision: str, device: torch.device) -> Iterator[None]:
    """Torch's own products on a GPU: of float32 as they are, or rounded to TF32 first. As before, afterwards.

    "bfloat16" means TF32 here: outside the convolutions there is little to gain.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def few_threads(small: bool, device: torch.device) -> Iterator[None]:
    """One thread for small networks on a CPU: a second gains little there, and waiting for a busy core costs a lot."""
    before = torch.get_num_threads()
    if small and device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
