"""The encoder's convolution blocks on a CPU, by our own C code (native.c), compiled where it runs.

Torch's layers write and read every activation several times, each time into fresh memory, which the system clears
first; on two cores that took as long as the convolutions. Here a window stays in a core's cache from one convolution to
the next, and memory is used again. It needs a C compiler with OpenMP (`cc`, or what the variable CC names). Without
one device.fast_path uses the plain layers. The library is kept in the user's cache folder under a name that depends on
source, compiler and processor.

>>> pooled = stacked.convolved("native", Memory(), windows, sizes, convolutions, norms, batch_statistics=True)
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bearcat.errors import InputError
from bearcat.fast.stacked import StackedNorm
from bearcat.storage import cache_folder, write_atomically

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
C_NAMES = {torch.float32: "float", torch.float64: "double"}
GROUP, MOST, PARTS, INPUTS, TAPS = 8, 128, 4, 64, 3  # as in native.c; the last two are of the last layer
ADDRESS, LONG = ctypes.c_void_p, ctypes.c_long
FUNCTIONS = {  # of native.c, with the types of what they are given
    "forward": [ADDRESS], "begin_backward": [ADDRESS], "backward": [ADDRESS], "multiply": [ADDRESS] * 3 + [LONG] * 5,
    "rectified_dropout": [ADDRESS] * 3 + [LONG] * 4 + [ctypes.c_double, LONG],
}  # fmt: skip


class KernelPlan(ctypes.Structure):
    """`struct plan` of native.c, field by field."""

    _fields_ = tuple((name, kind) for names, kind in (
        ("runs windows domains channels length threads batch_statistics scratch_size", LONG),
        ("momentum epsilon", ctypes.c_double), ("input", ADDRESS), ("weight", ADDRESS * 4),
        ("turned", ADDRESS * 3), ("bias gamma beta running_mean running_var", ADDRESS * 4),
        ("y", ADDRESS * 3), ("scale shift mean deviation", ADDRESS * 4),
        ("sums pooled best place last_mean scratch gradient", ADDRESS), ("change", ADDRESS * 3),
        ("coefficient of_weight of_gamma of_beta", ADDRESS * 4),
        ("centre rows offset composed within lags", ADDRESS),
    ) for name in names.split())  # fmt: skip


class Memory:
    """Arrays used again by later calls; a copy of a network begins with none."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()

    def take(self, size: int, like: Tensor) -> Tensor:
        """An uninitialised array of at least `size` numbers."""
        for number, array in enumerate(self.free):
            if array.numel() >= size and array.dtype == like.dtype:
                return self.free.pop(number)
        self.free.clear()  # sizes have changed
        try:
            block = mmap.mmap(-1, size * like.element_size())
        except OSError as error:
            raise MemoryError(f"{size * like.element_size()} bytes cannot be had") from error
        with suppress(AttributeError, OSError):  # an eighth less time for a pass forward and back, where there are some
            block.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(block, dtype=like.dtype)

    def give(self, used: Tensor) -> None:
        """Returns an array for later use."""
        self.free.append(used)


@dataclass(eq=False)
class Call:
    """The plan of a call and everything it points to."""

    plan: KernelPlan
    parts: dict[str, list[Tensor]]
    block: Tensor
    memory: Memory


def forward(
    windows: Tensor, domains: int, weights: Sequence[Tensor], biases: Sequence[Tensor], norms: Sequence[StackedNorm],
    batch_statistics: bool, keep: bool, memory: Memory,
) -> tuple[Tensor, Call | None]:  # fmt: skip
    """As fast.stacked.convolved says; with `keep`, also what `backward` needs."""
    runs, number, channels, length = windows.shape
    kinds = {windows.dtype, *(parameter.dtype for parameter in (*weights, *biases))}
    if kinds - set(C_NAMES) or len(kinds) > 1 or (runs, channels) != (len(weights[0]), weights[0].shape[2]):
        raise ValueError(f"windows {tuple(windows.shape)} of {windows.dtype} are not what the encoder was made for")
    first = length - 14
    pairs = (first - 2) // 2
    times, outputs = (first, first - 2, pairs - 2, pairs - 4), [weight.shape[1] for weight in weights]
    sizes = [weight.shape[2] * weight.shape[3] for weight in weights]
    needed = _aligned((length + 28) * (2 * channels + MOST))  # what a layer sees, its gradient, what it makes
    threads, groups = torch.get_num_threads(), domains * -(-number // domains // GROUP)
    each_domain = [runs * domains * channels_out for channels_out in outputs]
    whole = [runs * number * time * channels_out for time, channels_out in zip(times, outputs, strict=True)]
    lengths: dict[str, list[int]] = {
        "y": whole[:3], "change": whole[:3], "scale": each_domain, "shift": each_domain, "mean": each_domain,
        "deviation": each_domain, "coefficient": [2 * size for size in each_domain],
        "of_weight": [runs * groups * size * channels_out for size, channels_out in zip(sizes, outputs, strict=True)],
        "sums": [runs * number * 2 * MOST], "best": [runs * number * MOST * PARTS],
        "last_mean": [runs * number * INPUTS], "lags": [runs * groups * INPUTS * TAPS * INPUTS],
        "scratch": [threads * needed],
    }  # fmt: skip
    aligned = [_aligned(count) for part in lengths.values() for count in part]
    block = memory.take(sum(aligned), windows)
    pieces = iter(block[: sum(aligned)].split_with_sizes(aligned))
    parts = {name: [next(pieces)[:count] for count in part] for name, part in lengths.items()}
    pooled = windows.new_empty(runs, number, MOST * PARTS)
    parts |= {
        "input": [windows.contiguous()],
        "weight": [weight.detach().permute(0, 3, 2, 1).contiguous() for weight in weights],
        "turned": [weight.detach().flip(3).permute(0, 3, 1, 2).contiguous() for weight in weights[:3]],
        "bias": [bias.contiguous() for bias in biases],
        "gamma": [norm.weight.contiguous() for norm in norms],
        "beta": [norm.bias.contiguous() for norm in norms],
        "running_mean": [norm.running_mean for norm in norms],
        "running_var": [norm.running_var for norm in norms],
        "pooled": [pooled.detach()],  # keeping the result itself would make a reference cycle
        "place": [torch.empty(runs, number, MOST * PARTS, dtype=torch.int32)],
    }
    plan = KernelPlan(
        runs=runs, windows=number, domains=domains, channels=channels, length=length, threads=threads,
        batch_statistics=batch_statistics, scratch_size=needed, momentum=StackedNorm.momentum,
        epsilon=StackedNorm.epsilon,
    )  # fmt: skip
    _point(plan, parts)
    _library(windows.dtype).forward(ctypes.byref(plan))
    if keep:
        return pooled, Call(plan, parts, block, memory)
    memory.give(block)
    return pooled, None


def backward(gradient: Tensor, call: Call) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the four weights, and of gamma and beta of the four norms, alternating."""
    parts = call.parts
    of_gamma, of_beta = ([torch.empty_like(gamma) for gamma in parts["gamma"]] for _ in range(2))
    _point(call.plan, {"gradient": [gradient], "of_gamma": of_gamma, "of_beta": of_beta})
    library = _library(gradient.dtype)
    library.begin_backward(ctypes.byref(call.plan))
    of_last_weight = _last_layer(call)
    library.backward(ctypes.byref(call.plan))
    of_weights = []
    for weight, groups in zip(parts["weight"][:3], parts["of_weight"][:3], strict=True):  # (run, tap, input, output)
        summed = groups.view(len(weight), -1, *weight.shape[1:]).sum(dim=1)
        of_weights.append(summed.permute(0, 3, 2, 1).contiguous())
    of_weights.append(of_last_weight())
    call.memory.give(call.block)
    return of_weights, [gradient for pair in zip(of_gamma, of_beta, strict=True) for gradient in pair]


def _last_layer(call: Call) -> Callable[[], Tensor]:
    """Gives the C code the linear map from z to its gradient; what is returned makes the last weight's afterwards.

    Apart from maxima, dy = scale·dz + offset + slope·(convolution of z), z the layer's input minus its mean over the
    domain. Normalisation removes that mean anyway, and subtracting it first avoids cancellation of large numbers.
    """
    parts, runs, domains = call.parts, call.plan.runs, call.plan.domains
    time, batch = parts["y"][2].numel() // (runs * call.plan.windows * INPUTS), call.plan.windows // domains
    centre = parts["last_mean"][0].view(runs, domains, batch, INPUTS).sum(dim=2) / batch
    y = parts["y"][2].view(runs, domains, -1, time, INPUTS)
    scale, shift = (parts[name][2].view(runs, domains, 1, 1, INPUTS) for name in ("scale", "shift"))
    ends = (y[:, :, :, [0, 1, -2, -1]] * scale + shift).relu() - centre[:, :, None, None]
    first, second, last_but_one, last = ends.sum(dim=2).unbind(dim=2)
    missed = torch.cat([last_but_one + last, first + last, first + second], dim=-1)

    flat = parts["weight"][3].view(runs, 1, TAPS * INPUTS, MOST)  # as it was in the forward pass
    constant, slope = parts["coefficient"][3].view(runs, domains, 2, 1, MOST).unbind(dim=2)
    # z has a mean of 0, but taps miss two of its rows, so that of its convolution is not quite 0.
    mean = _product(missed[:, :, None], flat) / -(batch * (time - TAPS + 1))
    offset = constant - slope * mean
    composed = _product(flat * slope, flat.mT).view(runs, domains, -1, TAPS, INPUTS).movedim(3, 2).contiguous()
    within = composed.new_zeros(runs, domains, (2 * TAPS - 1) * INPUTS, INPUTS)
    for tap in range(TAPS):
        start = (TAPS - 1 - tap) * INPUTS
        within[:, :, start : start + TAPS * INPUTS] += composed[:, :, tap]
    given = {
        "centre": [centre], "rows": [flat.mT.contiguous()], "offset": [_product(offset, flat.mT)],
        "composed": [composed], "within": [within],
    }  # fmt: skip
    parts |= given  # so that they live as long as the call
    _point(call.plan, given)

    def shifted(lag: Tensor, at_ends: Tensor, row: int, other: int) -> Tensor:
        """The same product one row later: without the first rows, with those after the last."""
        return lag - at_ends[:, :, row, :, other] + at_ends[:, :, row + 2, :, other + 2]

    def of_weight() -> Tensor:
        """The sum of the part at the maxima and the part of the products of z with itself."""
        lags = parts["lags"][0].view(runs, domains, -1, INPUTS, TAPS, INPUTS).sum(dim=2)
        lag_0, lag_1, lag_2 = lags.unbind(dim=3)
        at_ends = _product(ends.flatten(3).mT, ends.flatten(3)).view(runs, domains, 4, INPUTS, 4, INPUTS)
        lag_0_later = shifted(lag_0, at_ends, 0, 0)
        lag_1_later = shifted(lag_1, at_ends, 0, 1)
        products = [
            [lag_0, lag_1, lag_2],
            [lag_1.mT, lag_0_later, lag_1_later],
            [lag_2.mT, lag_1_later.mT, shifted(lag_0_later, at_ends, 1, 1)],
        ]
        lagged = torch.cat([torch.cat(row, dim=3) for row in products], dim=2)  # (run, domain, tap × input, the same)
        spread = _product(lagged, flat) * slope - missed[..., None] * offset
        at_maxima = parts["of_weight"][3].view(runs, -1, MOST, TAPS * INPUTS).sum(dim=1)
        whole: Tensor = at_maxima + spread.sum(dim=1).mT
        return whole.view(runs, MOST, TAPS, INPUTS).transpose(2, 3).contiguous()

    return of_weight


def _product(left: Tensor, right: Tensor) -> Tensor:
    """(run, domain, …, inner) · (run, domain, inner, …), the same to the last digit in any stack, by any threads."""
    left, right = left.contiguous(), right.expand(*left.shape[:2], -1, -1).contiguous()
    result = left.new_empty(*left.shape[:3], right.shape[3])
    sizes = (left.shape[0] * left.shape[1], *left.shape[2:], right.shape[3], torch.get_num_threads())
    _library(left.dtype).multiply(left.data_ptr(), right.data_ptr(), result.data_ptr(), *sizes)
    return result


def _point(plan: KernelPlan, parts: dict[str, list[Tensor]]) -> None:
    """Writes the tensors' addresses into the plan."""
    kinds = {name: kind for name, kind, *_ in plan._fields_}
    for name, tensors in parts.items():
        addresses = [tensor.data_ptr() for tensor in tensors]
        setattr(plan, name, addresses[0] if kinds[name] is ADDRESS else kinds[name](*addresses))


def _aligned(size: int) -> int:
    """The next multiple of 64 numbers."""
    return -(-size // 64) * 64


def rectified_dropout(values: Tensor, out: Tensor, now: Tensor, layer: int, limit: int, scale: float) -> None:
    """ReLU and dropout of (run, batch, feature) in one go (fast.stacked.RectifiedDropout)."""
    sizes, addresses = (len(values), values[0].numel()), (tensor.data_ptr() for tensor in (values, out, now))
    _library(values.dtype).rectified_dropout(*addresses, *sizes, layer, limit, scale, torch.get_num_threads())


@cache
def _library(dtype: torch.dtype) -> Any:
    """The compiled code for numbers of this kind."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    try:
        known = _called([*compiler, "-march=native", "-dM", "-E", "-"])  # the macros of this processor
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(
            f"the path 'native' needs a C compiler, and '{compiler[0]}' is none; install one or leave the path out"
        ) from error
    real = C_NAMES[dtype]
    words = [SOURCE.read_bytes(), known, real.encode(), " ".join(FLAGS).encode()]
    kept = cache_folder().absolute() / f"native-{hashlib.sha256(b'|'.join(words)).hexdigest()[:24]}.so"
    with suppress(OSError, ValueError):  # there is none, or it is not ours
        return _loaded(kept)
    with tempfile.TemporaryDirectory() as folder:
        part, made = Path(folder) / "native.o", Path(folder) / "native.so"
        _called([*compiler, *FLAGS, f"-DREAL={real}", "-c", str(SOURCE), "-o", str(part)])
        _called([*compiler, "-shared", str(part), "-o", str(made)])  # so that it shares torch's OpenMP, and its threads
        with suppress(OSError):  # where the cache is full or read-only every process compiles for itself
            write_atomically(kept, made.read_bytes())
            kept.chmod(0o600)
        made.chmod(0o600)
        return _loaded(made)


def _loaded(path: Path) -> Any:
    """The library; ValueError unless it is a file of this user's that nobody else can write."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ValueError(f"{path} may be somebody else's")
    library = ctypes.CDLL(str(path))
    for name, types in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, types
    return library


def _called(command: list[str]) -> bytes:
    return subprocess.run(command, input=b"", capture_output=True, check=True).stdout  # noqa: S603
