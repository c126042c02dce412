"""What ingredients compute, as pure functions of tensors: losses, thresholds of pseudo-labels, views of windows.

The first axis is the run; a loss is one number for each, (run,) (docs/method.md). `present` (run, batch) says which
places of a padded batch hold a window; None means all. Where both domains stand in one batch, the source's `size`
windows come first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bearcat.fast.stacked import Randomness


def supervised(logits: Tensor, labels: Tensor, present: Tensor | None = None) -> Tensor:
    """Mean cross-entropy: logits (run, batch, class), labels (run, batch)."""
    return masked_mean(cross_entropy(logits, labels), present)


def of_selected(losses: Tensor, selected: Tensor, average: str, present: Tensor | None = None) -> Tensor:
    """The mean loss (run, batch) of the selected windows: over the batch size, as the authors do, or their number."""
    if average == "batch":
        return masked_mean(torch.where(selected, losses, 0), present)
    selected = selected if present is None else selected & present
    return torch.where(selected, losses, 0).sum(dim=1) / selected.sum(dim=1).clamp(min=1)


def class_confusion(logits: Tensor, temperature: float, present: Tensor | None = None) -> Tensor:
    """Minimum class confusion (Jin et al. 2020): how much mass pairs of classes share in the batch's predictions.

    A row of the matrix of shared mass Σ weight·p·p', divided by its sum, is a mean of the windows' predictions in which
    a window counts by what it gives the row's class: a softmax over windows. All but its diagonal is confusion. Written
    as a quotient it is 0/0 where a sure network gives a class nothing that float32 can hold in all windows of a batch.
    """
    logarithms = functional.log_softmax(logits / temperature, dim=-1)
    probabilities = logarithms.exp()
    with torch.no_grad():  # sure windows count more
        weight = 1 + torch.exp((probabilities * logarithms).sum(dim=-1))
        weight = weight if present is None else torch.where(present, weight, 0)
    share = functional.softmax(logarithms + weight.log()[..., None], dim=1)  # (run, batch, class), 1 over a batch
    rows = (share * probabilities).sum(dim=1)  # (run, class): what is no confusion
    return 1 - rows.mean(dim=1)


def domain(
    source_logits: Tensor, target_logits: Tensor, present: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross-entropy of the domain classifier, source 1, target 0: mean over all windows, or "sum of means"."""
    parts = functional.softplus(-source_logits), functional.softplus(target_logits)
    if reduction == "mean":
        return masked_mean(torch.cat(parts, dim=1), present)
    size = source_logits.shape[1]
    masks = (None, None) if present is None else (present[:, :size], present[:, size:])
    return masked_mean(parts[0], masks[0]) + masked_mean(parts[1], masks[1])


def masked_mean(values: Tensor, present: Tensor | None) -> Tensor:
    """Of the windows that are there: (run, batch) → (run,)."""
    if present is None:
        return values.mean(dim=1)
    return torch.where(present, values, 0).sum(dim=1) / present.sum(dim=1)


def reverse_gradient(values: Tensor, coefficient: Tensor) -> Tensor:
    """The values as they are; on the way back their gradient times −coefficient (run,)."""
    same = values.view_as(values)
    if same.requires_grad:
        same.register_hook(lambda gradient: -coefficient[:, None, None] * gradient)  # type: ignore[no-untyped-call]
    return same


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each window: logits (run, batch, class), labels (run, batch) → (run, batch)."""
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)


def weights(values: Tensor, present: Tensor | None) -> Tensor:
    """Equal weights of the windows that are there, of sum 1: (run, batch, …) → (run, batch)."""
    here = values.new_ones(values.shape[:2]) if present is None else present.to(values.dtype)
    return here / here.sum(dim=1, keepdim=True)


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Of all pairs: (run, n, feature), (run, m, feature) → (run, n, m)."""
    middle = torch.cat([first, second], dim=1).mean(dim=1, keepdim=True).detach()  # small numbers keep their digits
    first, second = first - middle, second - middle
    squares = first.square().sum(dim=-1)[:, :, None] + second.square().sum(dim=-1)[:, None]
    return (squares - 2 * first @ second.mT).clamp(min=0)


def gaussian_kernels(
    values: Tensor, present: Tensor | None, factors: Sequence[float], bandwidth: float | None = None
) -> Tensor:
    """Σ exp(−‖x − y‖² / (factor · bandwidth)), (run, batch, batch); the bandwidth is the mean of ‖x − y‖² if None."""
    squared = squared_distances(values, values)
    if bandwidth is None:
        here = weights(values, present)
        count = 1 / here.amax(dim=1)
        factor = count / (count - 1).clamp(min=1)  # of different windows
        pairs = here[:, :, None] * here[:, None] * factor[:, None, None]
        width = (pairs * squared.detach()).sum(dim=(1, 2))[:, None, None].clamp(min=1e-12)
    else:
        width = values.new_full((1, 1, 1), bandwidth)
    return torch.stack([torch.exp(-squared / (factor * width)) for factor in factors]).sum(dim=0)


def mean_discrepancy(kernel: Tensor, size: int, present: Tensor | None) -> Tensor:
    """Maximum mean discrepancy, squared: the mean of the kernel in both domains less twice that across."""
    masks = (None, None) if present is None else (present[:, :size], present[:, size:])
    signed = torch.cat([weights(kernel[:, :size], masks[0]), -weights(kernel[:, size:], masks[1])], dim=1)
    return (signed[:, None] @ kernel @ signed[..., None])[:, 0, 0]


def covariance(features: Tensor, present: Tensor | None) -> Tensor:
    """Unbiased: (run, batch, feature) → (run, feature, feature)."""
    weight = weights(features, present)
    count = 1 / weight.amax(dim=1)
    weight = weight[..., None]
    centred = features - (weight * features).sum(dim=1, keepdim=True)
    return (weight * centred).mT @ centred * (count / (count - 1).clamp(min=1))[:, None, None]


def transport_plan(cost: Tensor, source: Tensor, target: Tensor, smoothing: float, rounds: int) -> Tensor:
    """The plan (run, n, m) that moves weights `source` (run, n) to `target` (run, m) at least cost plus entropy, which
    counts `smoothing` times the mean cost: Sinkhorn's iterations on logarithms.
    """
    mean = (source[:, None] @ cost @ target[..., None]).clamp(min=1e-12)
    kernel = -cost / (smoothing * mean)
    rows, columns = source.log(), target.log()
    left = torch.zeros_like(rows)
    for _ in range(rounds):
        right = columns - (kernel + left[..., None]).logsumexp(dim=1)
        left = rows - (kernel + right[:, None]).logsumexp(dim=2)
    return (kernel + left[..., None] + right[:, None]).exp()


def hardest_triplets(features: Tensor, labels: Tensor, counts: Tensor, margin: float) -> Tensor:
    """Batch-hard triplet loss (Hermans et al. 2017) of the windows that count (run, batch): the farthest window of the
    same label should be nearer than the nearest one of another, by the margin.
    """
    distance = (squared_distances(features, features) + 1e-12).sqrt()
    pairs = counts[:, :, None] & counts[:, None]
    same = labels[:, :, None] == labels[:, None]
    itself = torch.eye(labels.shape[1], dtype=torch.bool, device=labels.device)
    alike, different = pairs & same & ~itself, pairs & ~same
    farthest = distance.masked_fill(~alike, 0).amax(dim=2)
    nearest = distance.masked_fill(~different, torch.inf).amin(dim=2)
    anchors = alike.any(dim=2) & different.any(dim=2)
    losses = torch.where(anchors, (farthest - nearest + margin).clamp(min=0), 0)
    return losses.sum(dim=1) / anchors.sum(dim=1).clamp(min=1)


def gradient_penalty(values: Tensor, critic_of: Tensor, present: Tensor | None) -> Tensor:
    """The mean of (‖∇‖ − 1)², ∇ the gradient of the critic's answers (run, batch) at values (run, batch, feature)."""
    (gradient,) = torch.autograd.grad(critic_of.sum(), values, create_graph=True)
    return masked_mean(((gradient.square().sum(dim=-1) + 1e-12).sqrt() - 1).square(), present)


def confident_counts(probabilities: Tensor, tau: float, present: Tensor | None = None) -> Tensor:
    """Predictions at least `tau` sure, per class: (run, window, class) → (run, class)."""
    confidence, label = probabilities.max(dim=-1)
    sure = confidence >= tau
    sure = (sure if present is None else sure & present).to(torch.float32)
    counts = torch.zeros(probabilities.shape[0], probabilities.shape[2], device=probabilities.device)
    return counts.scatter_add_(1, label, sure)


def per_class(counts: Tensor, tau: float) -> Tensor:
    """τ·β/(2−β) with β = count / largest count: (run, class). A class of count 0 gets threshold 0, as published."""
    largest = counts.max(dim=1, keepdim=True).values
    share = counts / largest.clamp(min=1)
    return tau * share / (2 - share)


def select(probabilities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and whether each is sure enough: (run, batch, class), (run, class) → (run, batch) int64 and bool."""
    confidence, label = probabilities.max(dim=-1)
    return label, confidence >= thresholds.gather(1, label)


def best_of_each_class(scores: Tensor, labels: Tensor, share: float, classes: int, present: Tensor) -> Tensor:
    """The labels (run, window) of those of the highest scores in each class, a share rounded up; −1 elsewhere."""
    found = torch.full_like(labels, -1)
    for label in range(classes):
        member = (labels == label) & present
        rank = scores.masked_fill(~member, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        wanted = (member.sum(dim=1, keepdim=True) * share).ceil()
        found = torch.where(member & (rank < wanted), label, found)
    return found


# Changes of windows (run, batch, channel, point), each with a draw for every window of every run: `draws` gives numbers
# for (layer, count), and each function has a layer of its own, so that they are independent.
def _drawn(draws: Randomness, layer: int, windows: Tensor) -> Tensor:
    """A number between 0 and 1 for each window, (run, batch, 1, 1)."""
    return draws.uniform(layer, windows.shape[1]).to(windows.dtype)[..., None, None]


def resampled(windows: Tensor, draws: Randomness, resample: float, shift: float) -> Tensor:
    """Read from another start and at another speed, by linear interpolation on the window as a circle."""
    length = windows.shape[-1]
    start = torch.floor(_drawn(draws, 0, windows) * shift * length)
    speed = 1 + resample * (2 * _drawn(draws, 1, windows) - 1)
    place = (start + speed * torch.arange(length, device=windows.device, dtype=windows.dtype)) % length
    before = place.floor()
    part = place - before
    index = before.long().clamp(max=length - 1).expand_as(windows)
    return (1 - part) * windows.gather(3, index) + part * windows.gather(3, (index + 1) % length)


def band_stopped(windows: Tensor, draws: Randomness, share: float) -> Tensor:
    """Without the lines of a band of this share of the spectrum."""
    lines = torch.fft.rfft(windows)
    inside = _interval(_drawn(draws, 2, windows), lines.shape[-1], share)
    stopped: Tensor = torch.fft.irfft(lines * ~inside, n=windows.shape[-1])
    return stopped


def scaled(windows: Tensor, draws: Randomness, share: float) -> Tensor:
    """Louder or quieter."""
    return windows * (1 + share * (2 * _drawn(draws, 3, windows) - 1))


def noisy(windows: Tensor, draws: Randomness, snr: float) -> Tensor:
    """With white Gaussian noise, so many dB below the window's own power (Box and Muller 1958)."""
    count = windows[0].numel()
    first, second = (draws.uniform(layer, count).view(windows.shape) for layer in (4, 5))
    normal = (-2 * (1 - first).log()).sqrt() * torch.cos(2 * math.pi * second)
    level = windows.square().mean(dim=(2, 3), keepdim=True).sqrt() * 10 ** (-snr / 20)
    return windows + level * normal.to(windows.dtype)


def masked(windows: Tensor, draws: Randomness, share: float) -> Tensor:
    """With an interval of this share of the window set to 0."""
    return windows * ~_interval(_drawn(draws, 6, windows), windows.shape[-1], share)


def _interval(drawn: Tensor, length: int, share: float) -> Tensor:
    """Whether a point lies in an interval of round(share · length) points, whose start is drawn, bool."""
    width = round(share * length)
    start = torch.floor(drawn * (length - width + 1))
    place = torch.arange(length, device=drawn.device)
    return (place >= start) & (place < start + width)
