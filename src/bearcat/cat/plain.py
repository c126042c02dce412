"""Any torch module as an encoder: one that takes windows (batch, channel, point) and knows nothing of runs.

`PlainModule` gives its weights and buffers a run axis of one, as the layers of fast/stacked.py have, so that
optimisers, teachers, checkpoints and model folders need not know the difference; such runs train alone. What such
modules draw (initial weights, dropout) comes from torch's global generator, which is seeded by the run for the while
and put back as it was.

>>> encoder = PlainModule(resnet, (1, 1024), "resnet")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from bearcat.errors import InputError
from bearcat.fast.stacked import Randomness
from bearcat.plugins import error_sentence

TRIED = 2  # windows of the pass that finds out how many features there are


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Torch's global generators start from this seed, and are put back at the end."""
    on_gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield


class PlainModule(nn.Module):
    """A module with a run axis of one: windows (1, batch, channel, point) → features (1, batch, feature)."""

    def __init__(self, module: nn.Module, shape: tuple[int, int], encoder: str) -> None:
        """`shape` is (channel, point), and errors name the encoder. Lazy modules get their weights here."""
        super().__init__()
        self.features = count_features(module, shape, encoder)
        stacked: dict[Tensor, Tensor] = {}  # by what it was made of: modules may share weights
        for part in module.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                other = tensor.detach()[None].clone()
                other = nn.Parameter(other, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other
                setattr(part, name, stacked.setdefault(tensor, other))
        self.module = module

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, parts: Sequence[int] = ()
    ) -> Tensor:
        """As ConvolutionalEncoder: normalisation follows `batch_statistics`, everything else that knows training from
        evaluation (dropout) whether there is `randomness`.
        """
        self.module.train(randomness is not None)
        for part in self.module.modules():
            if isinstance(part, _NormBase):
                part.train(batch_statistics)
        with nullcontext() if randomness is None else seeded(int(randomness.now[0]), windows.device):
            if len(parts) < 2:  # `split` would fix the number of windows in an exported graph
                return self._called(windows[0])[None]
            return torch.cat([self._called(piece) for piece in windows[0].split_with_sizes(list(parts))])[None]

    def _called(self, windows: Tensor) -> Tensor:
        before = {name: tensor[0] for name, tensor in _tensors(self.module).items()}
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
    subject = f"the encoder '{encoder}': its module"
    try:
        features = module.eval()(torch.zeros(TRIED, *shape))
    except Exception as error:
        cannot = f"cannot take windows of the shape (batch, {shape[0]}, {shape[1]}): {error_sentence(error)}"
        raise InputError(f"{subject} {cannot}; a plain module takes windows alone (docs/extend.md)") from error
    if not isinstance(features, Tensor):
        raise InputError(f"{subject} returned {type(features).__name__}; return one tensor")
    if features.ndim != 2 or len(features) != TRIED or features.shape[1] == 0 or not features.is_floating_point():
        got = f"{tuple(features.shape)} of {features.dtype} for a batch of {TRIED}"
        raise InputError(f"{subject} made {got}; return features as numbers with a decimal point, (batch, feature)")
    return features.shape[1]
