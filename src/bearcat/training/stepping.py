"""The moves of a training step: gradient reversal, the climb of SAM, the teacher that follows, the learning rate.

And `Recorder`, which runs a step: as it is on a CPU, as a recorded CUDA graph on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bearcat.methods.recipe import Schedule


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, coefficient: Tensor) -> Tensor:
        ctx.save_for_backward(coefficient)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (coefficient,) = ctx.saved_tensors
        return -coefficient * gradients[0], None


def reverse_gradient(values: Tensor, coefficient: Tensor) -> Tensor:
    """The values as they are; on the way back their gradient times −coefficient (run,)."""
    reversed_: Tensor = _Reversal.apply(values, coefficient[:, None, None])  # type: ignore[no-untyped-call]
    return reversed_


def reversal_coefficient(progress: float, slope: float) -> float:
    """2/(1+exp(−slope·p)) − 1: from 0 at p = 0 towards 1. (The paper's formula lacks the −1; docs/method.md.)"""
    return 2 / (1 + math.exp(-slope * progress)) - 1


def learning_rate(schedule: Schedule, epoch: int) -> float:
    """The rate in this epoch: it drops by the factor at each of the schedule's drops."""
    return schedule.rate * schedule.drop_factor ** sum(epoch >= drop for drop in schedule.drops)


def gradient_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm over all parameters of each run: (run,)."""
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return norm


@torch.no_grad()
def climb(parameters: Sequence[Tensor], gradients: Sequence[Tensor], radius: Tensor) -> list[Tensor]:
    """Moves every run's parameters to w + radius·g/‖g‖ and returns what they were."""
    before = [parameter.detach().clone() for parameter in parameters]
    scale = radius / (gradient_norm(gradients) + 1e-12)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter += gradient * scale.view(-1, *[1] * (gradient.dim() - 1))
    return before


@torch.no_grad()
def put_back(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Undoes a climb."""
    torch._foreach_copy_(list(parameters), list(before))


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float, statistics: bool) -> None:
    """teacher ← momentum·teacher + (1 − momentum)·student, for parameters and, if asked, normalisation statistics."""
    theirs: list[Tensor] = list(teacher.parameters())
    ours: list[Tensor] = list(student.parameters())
    if statistics:
        theirs += list(teacher.buffers())
        ours += list(student.buffers())
    torch._foreach_mul_(theirs, momentum)
    torch._foreach_add_(theirs, ours, alpha=1 - momentum)


def parameters_of(optimisers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """All they move, in order."""
    return [one for optimiser in optimisers for group in optimiser.param_groups for one in group["params"]]


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


class Recorder:
    """Runs steps. On a GPU the third step of a kind is recorded as a CUDA graph, and replayed from then on.

    A step is some thousand small kernels; starting them one by one took longer than running them (41 ms for one run on
    an H200). Steps of a kind must do the same things to the same memory, and may ask the device for nothing. The first
    two are real steps too: they make what is made once (moments, handles, compiled kernels).
    """

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.recording = record and device.type == "cuda"
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.seen: dict[Hashable, int] = {}
        if self.recording:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def run(self, step: Callable[[], None], kind: Hashable) -> None:
        """One step of this kind."""
        if not self.recording:
            step()
            return
        if kind not in self.graphs and self.seen.setdefault(kind, 0) < 2:
            self.seen[kind] += 1
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
