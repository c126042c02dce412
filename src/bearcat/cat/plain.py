"""Any torch module as an encoder: one that takes windows (batch, channel, point) and knows nothing of runs.

`PlainModules` holds the weights and buffers of R such modules with the run as first axis, as the layers of
models.stacked do, so that optimisers, teachers, checkpoints and model folders need not know the difference. A pass
calls the module once for each run, with that run's weights. What such modules draw (initial weights, dropout) comes
from torch's global generator, which is seeded by the run for the while and put back as it was.

>>> encoder = PlainModules(resnet, 1, partial(Encoder.build, 1, 1, 1024, 0.5), (1, 1024), "resnet")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from bearcat.errors import InputError
from bearcat.fast.stacked import Randomness
from bearcat.plugins import error_sentence

TRIED = 2  # windows of the pass that finds out how many features there are


def is_stacked(module: nn.Module) -> bool:
    """Whether a module is made for runs: it says its `features`, and is called as models.networks.Network does it."""
    try:
        inspect.signature(module.forward).bind(*range(5))
    except TypeError:
        return False
    return isinstance(getattr(module, "features", None), int)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Torch's global generators start from this seed, and are put back at the end."""
    on_gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield


class PlainModules(nn.Module):
    """R copies of a module: windows (run, batch, channel, point) → features (run, batch, feature)."""

    def __init__(
        self, module: nn.Module, runs: int, make: Callable[[], nn.Module], shape: tuple[int, int], encoder: str
    ) -> None:
        """`make` makes another one like it, `shape` is (channel, point), and errors name the encoder."""
        super().__init__()
        self.runs, self.features = runs, count_features(module, shape, encoder)
        self._make = make, shape, encoder
        stacked: dict[Tensor, Tensor] = {}  # by what it was made of: modules may share weights
        for part in module.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                many = tensor.detach()[None].repeat(runs, *(1 for _ in tensor.shape))
                many = nn.Parameter(many, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else many
                setattr(part, name, stacked.setdefault(tensor, many))
        self.module = module

    @torch.no_grad()
    def initialise(self, run: int, seed: int) -> None:
        """The weights of a run as the module's own constructor draws them."""
        make, shape, encoder = self._make
        with seeded(seed):
            fresh = make()
            count_features(fresh, shape, encoder)  # lazy modules have weights from now on
        own = _tensors(self.module)
        for name, tensor in _tensors(fresh).items():
            own[name][run].copy_(tensor)

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, present: Tensor | None = None,
        domains: int = 1,
    ) -> Tensor:  # fmt: skip
        """As ConvolutionalEncoder: normalisation follows `batch_statistics`, everything else that knows training from
        evaluation (dropout) whether there is `randomness`.
        """
        self.module.train(randomness is not None)
        for part in self.module.modules():
            if isinstance(part, _NormBase):
                part.train(batch_statistics)
        found = []
        for run in range(self.runs):
            drawn = nullcontext() if randomness is None else seeded(int(randomness.now[run]), windows.device)
            with drawn:
                if domains == 1 and present is None:  # `chunk` would fix the number of windows in an exported graph
                    found.append(self._of_run(run, windows[run]))
                    continue
                masks = [None] * domains if present is None else present[run].chunk(domains)
                parts = zip(windows[run].chunk(domains), masks, strict=True)
                found.append(torch.cat([self._of_present(run, part, mask) for part, mask in parts]))
        return torch.stack(found)

    def _of_present(self, run: int, windows: Tensor, present: Tensor | None) -> Tensor:
        """Features of one run's windows, zeros where there is none."""
        if present is None:
            return self._of_run(run, windows)
        features = windows.new_zeros(len(windows), self.features)
        return features.index_put((present,), self._of_run(run, windows[present])) if present.any() else features

    def _of_run(self, run: int, windows: Tensor) -> Tensor:
        before = {name: tensor[run] for name, tensor in _tensors(self.module).items()}
        after = dict(before)
        features: Tensor = functional_call(self.module, after, (windows,))
        for name, tensor in after.items():
            if tensor is not before[name]:  # a buffer that was assigned, and not changed in place
                before[name].copy_(tensor.detach())
        return features


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


@torch.no_grad()
def count_features(module: nn.Module, shape: tuple[int, int], encoder: str) -> int:
    """How many features a module makes of windows of this shape (channel, point); InputError where it makes none."""
    given = f"windows of the shape (batch, {shape[0]}, {shape[1]})"
    try:
        found = module.eval()(torch.zeros(TRIED, *shape))
    except Exception as error:
        raise InputError(
            f"the encoder '{encoder}': its module cannot take {given}: {error_sentence(error)}; a plain module takes"
            " windows alone, one for stacks of runs is written as docs/add-an-encoder.md shows"
        ) from error
    if not isinstance(found, Tensor):
        raise InputError(f"the encoder '{encoder}': its module returned {type(found).__name__}; return one tensor")
    if found.ndim != 2 or len(found) != TRIED or found.shape[1] == 0 or not found.is_floating_point():
        axes = ", ".join(["batch", *map(str, found.shape[1:])]) if len(found.shape) and len(found) == TRIED else "…"
        got = f"({axes})" if axes != "…" else f"{tuple(found.shape)} for a batch of {TRIED}"
        raise InputError(
            f"the encoder '{encoder}': its module made {got} of {given}; return features as numbers with a decimal"
            " point, (batch, feature): pool or flatten the other axes"
        )
    return found.shape[1]
