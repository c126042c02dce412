"""Any torch module as an encoder: one that takes windows (batch, channel, point) and knows nothing of runs.

`PlainModules` holds the weights and buffers of R such modules with the run as first axis, as the layers of
models.stacked do, so that optimisers, teachers, checkpoints and model folders need not know the difference. A pass
calls the module once for each run, with that run's weights. What such modules draw (initial weights, dropout) comes
from torch's global generator, which is seeded by the run for the while and put back as it was.

`Frozen` is for pretrained modules whose weights stay as they are; what is trained stands behind them. `ENCODERS` has
one of this kind, "silero": the convolutions of a detector of speech, whose weights come with the package silero-vad
(MIT). docs/foundation-encoder.md plugs in another.

>>> encoder = PlainModules(resnet, 1, partial(Encoder.build, 1, 1, 1024, 0.5), (1, 1024), "resnet")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from bearcat.errors import InputError
from bearcat.models.stacked import Randomness
from bearcat.plugins import error_sentence
from bearcat.storage import digest_file

TRIED = 2  # windows of the pass that finds out how many features there are
SILERO = Path("data", "silero_vad_16k.safetensors")  # in the package silero_vad
SILERO_SHA256 = "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1"  # of version 6.2.3
SILERO_FFT = 256  # samples of a frame


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


class Frozen(nn.Module):
    """A pretrained module, the same for every run: no gradient, always in evaluation mode.

    Its weights are buffers, of which every run has a copy: the model folder and the exported graph hold them. `weights`
    reads them when a training starts; without it the module has them already. `behind` is trained, if there is one.

    >>> backbone = torch.nn.Sequential(torch.nn.Conv1d(1, 8, 16), torch.nn.AdaptiveAvgPool1d(4), torch.nn.Flatten())
    >>> encoder = Frozen(backbone, runs=2, channels=1, points=64)
    >>> encoder(torch.zeros(2, 5, 1, 64), False, None).shape, len(list(encoder.parameters()))
    (torch.Size([2, 5, 32]), 0)
    """

    def __init__(
        self, module: nn.Module, runs: int, channels: int, points: int,
        weights: Callable[[], Mapping[str, Tensor]] | None = None, behind: Callable[[int], nn.Module] | None = None,
    ) -> None:  # fmt: skip
        """`behind` makes, of a number of features, a module as `Encoder.build` does."""
        super().__init__()
        found = count_features(module, (channels, points), type(module).__name__)
        buffers: dict[Tensor, Tensor] = {}  # by what they were made of: modules may share weights
        for part in module.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                many = buffers.setdefault(tensor, tensor.detach()[None].repeat(runs, *(1 for _ in tensor.shape)))
                delattr(part, name)
                part.register_buffer(name, many)
        self.module, self.weights = module, weights
        self.behind = None if behind is None else behind(found)
        self.features = found if self.behind is None else cast("int", self.behind.features)

    @torch.no_grad()
    def load(self) -> None:
        """Reads the pretrained weights; InputError where they do not fit."""
        given = {} if self.weights is None else dict(self.weights())
        for name, buffer in self.module.named_buffers() if given else ():
            if name not in given or given[name].shape != buffer.shape[1:]:
                what = f"'{name}' of the shape {tuple(buffer.shape[1:])}"
                raise InputError(f"the weights of {type(self.module).__name__} lack {what}; check the file")
            buffer.copy_(given[name].expand_as(buffer))

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.module.eval()
        return self

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, present: Tensor | None = None,
        domains: int = 1,
    ) -> Tensor:  # fmt: skip
        """Windows (run, batch, channel, point) → features (run, batch, feature)."""
        state = {name: buffer[0] for name, buffer in self.module.named_buffers()}
        features: Tensor = functional_call(self.module, state, (windows.flatten(0, 1),))
        features = features.reshape(*windows.shape[:2], features.shape[-1])
        if self.behind is None:
            return features
        trained: Tensor = self.behind(features, batch_statistics, randomness, present, domains)
        return trained


class SileroLayers(nn.Module):
    """A spectrogram and four convolutions, then mean and maximum over time: (batch, channel, point) → (batch, channel ·
    256). Windows have deviation 1 and are brought to `level`, about that of speech. Features reach tens of thousands,
    with which nothing behind them learns, so their logarithms are given.
    """

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level
        self.stft_conv = nn.Conv1d(1, SILERO_FFT + 2, SILERO_FFT, stride=SILERO_FFT // 2, bias=False)
        self.conv1 = nn.Conv1d(SILERO_FFT // 2 + 1, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)

    def forward(self, windows: Tensor) -> Tensor:
        values = functional.pad(self.level * windows.flatten(0, 1)[:, None], (0, SILERO_FFT // 4), mode="reflect")
        real, imaginary = self.stft_conv(values).chunk(2, dim=1)
        values = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            values = layer(values).relu()
        pooled = torch.cat([values.mean(dim=-1), values.amax(dim=-1)], dim=-1)
        return pooled.log1p().reshape(windows.shape[0], windows.shape[1] * pooled.shape[-1])


def silero_weights() -> Mapping[str, Tensor]:
    """Those in the installed package, which is not imported."""
    from safetensors.torch import load_file

    package = find_spec("silero_vad")
    if package is None or package.origin is None:
        raise InputError("the encoder 'silero' needs an extra; pip install 'bearcat[silero]'")
    path = Path(package.origin).parent / SILERO
    if not path.is_file() or digest_file(path) != SILERO_SHA256:
        raise InputError(f"{path.name} is not the file of silero-vad 6.2.3; pip install 'silero-vad==6.2.3'")
    return load_file(path)
