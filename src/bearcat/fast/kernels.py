"""Triton kernels for the encoder's convolution blocks: forward and backward, for R runs at once.

Activations are (run, window, time, channel). With the channel last, the rows t, t+1, t+2 a convolution needs lie side
by side in memory, so a convolution is a few small matrix products per tile of time, and nothing is unrolled or copied.
One program does one window of one run (or some windows, for the weights' gradient) and loops over time.

Only the convolutions' raw outputs y are stored. Normalisation and ReLU are y ↦ max(scale·y + shift, 0) with numbers per
(run, domain, channel), applied wherever y is read, and so is the maximum of pairs. Statistics are summed where y is
made. A run has as many windows of each domain, and its domains have statistics of their own.

Sums are per window and added up in a fixed order afterwards: no atomics, the same result every time.
"""

# The names below belong to Triton's own language, which has no types.
# mypy: ignore-errors
# ruff: noqa: N803, SIM102

from __future__ import annotations

import triton
import triton.language as tl

# Compiled once, not anew for sizes that happen to be multiples of 16: the machine code is the same.
SIZES = ("windows", "batch", "domains", "each", "channels", "time", "time_in", "time_out", "size", "salt", "least")
kernel = triton.jit(do_not_specialize=SIZES)


@triton.jit
def _activation(y, places, inside, scale, shift, CHANNELS: tl.constexpr, POOL: tl.constexpr):
    """max(scale·y + shift, 0) of rows of y, or of the larger of two rows. places (time,) counts after pooling."""
    channel = tl.arange(0, CHANNELS)
    if POOL:
        at = (2 * places)[:, None] * CHANNELS + channel[None, :]
        even = tl.load(y + at, mask=inside[:, None], other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        at += CHANNELS
        odd = tl.load(y + at, mask=inside[:, None], other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        value = tl.maximum(even, odd)
    else:
        at = places[:, None] * CHANNELS + channel[None, :]
        value = tl.load(y + at, mask=inside[:, None], other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    return tl.where(inside[:, None], tl.maximum(value, 0.0), 0.0)


@kernel
def convolve_first(
    x, weight, y, partial, windows, channels, time_in, time_out,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x (run, window, channel, time) float32, weight (run, channel, WIDTH, OUTPUTS) padded with zeros → y."""
    window, run = tl.program_id(0), tl.program_id(1)
    whole = (run * windows + window).to(tl.int64)
    output, tap = tl.arange(0, OUTPUTS), tl.arange(0, WIDTH)
    total, squares = tl.zeros([OUTPUTS], tl.float32), tl.zeros([OUTPUTS], tl.float32)
    for start in range(0, time_out, BLOCK):
        time = start + tl.arange(0, BLOCK)
        inside = time < time_out
        sums = tl.zeros([BLOCK, OUTPUTS], tl.float32)
        for channel in range(channels):
            at = time[:, None] + tap[None, :]
            value = tl.load(x + (whole * channels + channel) * time_in + at, mask=at < time_in, other=0.0)
            factor = tl.load(weight + ((run * channels + channel) * WIDTH + tap)[:, None] * OUTPUTS + output[None, :])
            sums = tl.dot(value.to(factor.dtype), factor, sums, input_precision=PRECISION)
        sums = tl.where(inside[:, None], sums, 0.0)
        at = time[:, None] * OUTPUTS + output[None, :]
        tl.store(y + whole * time_out * OUTPUTS + at, sums.to(y.dtype.element_ty), mask=inside[:, None])
        total += tl.sum(sums, axis=0)
        squares += tl.sum(sums * sums, axis=0)
    tl.store(partial + whole * 2 * OUTPUTS + output, total)
    tl.store(partial + whole * 2 * OUTPUTS + OUTPUTS + output, squares)


@kernel
def convolve(
    x, scale, shift, weight, y, partial, windows, batch, domains, time_in, time_out,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, POOL: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """x, raw output before (run, window, time_in, INPUTS), weight (run, 3, INPUTS, OUTPUTS) → BLOCK_N of y; sums."""
    window, run = tl.program_id(0), tl.program_id(1)
    whole = (run * windows + window).to(tl.int64)
    group = run * domains + window // batch
    output, channel = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, INPUTS)
    scales, shifts = tl.load(scale + group * INPUTS + channel), tl.load(shift + group * INPUTS + channel)
    total, squares = tl.zeros([BLOCK_N], tl.float32), tl.zeros([BLOCK_N], tl.float32)
    factors = weight + run * 3 * INPUTS * OUTPUTS + channel[:, None] * OUTPUTS + output[None, :]
    taps = tl.load(factors), tl.load(factors + INPUTS * OUTPUTS), tl.load(factors + 2 * INPUTS * OUTPUTS)
    before = x + whole * time_in * INPUTS
    for start in range(0, time_out, BLOCK):
        time = start + tl.arange(0, BLOCK)
        inside = time < time_out
        sums = tl.zeros([BLOCK, BLOCK_N], tl.float32)
        for tap in tl.static_range(3):
            value = _activation(before, time + tap, inside, scales, shifts, INPUTS, POOL)
            sums = tl.dot(value.to(taps[tap].dtype), taps[tap], sums, input_precision=PRECISION)
        at = time[:, None] * OUTPUTS + output[None, :]
        tl.store(y + whole * time_out * OUTPUTS + at, sums.to(y.dtype.element_ty), mask=inside[:, None])
        total += tl.sum(sums, axis=0)
        squares += tl.sum(sums * sums, axis=0)
    tl.store(partial + whole * 2 * OUTPUTS + output, total)
    tl.store(partial + whole * 2 * OUTPUTS + OUTPUTS + output, squares)


@kernel
def statistics(
    partial, gamma, beta, bias, running_mean, running_var, scale, shift, mean_out, deviation_out, windows, batch,
    time, momentum, epsilon, DOMAINS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of a layer → scale and shift of its normalisation (run, domain, channel), and its running statistics.

    y is stored without the convolution's bias, which normalisation takes away again; the running mean has it.
    """
    run = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    at = run * CHANNELS + channel
    average, variance = tl.load(running_mean + at), tl.load(running_var + at)
    number = (batch * time).to(tl.float64)
    for domain in tl.static_range(DOMAINS):
        total, squares = tl.zeros([CHANNELS], tl.float64), tl.zeros([CHANNELS], tl.float64)
        for start in range(0, batch, BLOCK):
            window = start + tl.arange(0, BLOCK)
            inside = (window < batch)[:, None]
            row = (run * windows + domain * batch + window)[:, None] * 2 * CHANNELS + channel[None, :]
            total += tl.sum(tl.load(partial + row, mask=inside, other=0.0).to(tl.float64), axis=0)
            squares += tl.sum(tl.load(partial + row + CHANNELS, mask=inside, other=0.0).to(tl.float64), axis=0)
        mean = total / number
        spread = tl.maximum(squares / number - mean * mean, 0.0)
        deviation = (1.0 / tl.sqrt((spread + epsilon).to(tl.float32))).to(tl.float32)
        factor = tl.load(gamma + at) * deviation
        place = (run * DOMAINS + domain) * CHANNELS + channel
        tl.store(scale + place, factor)
        tl.store(shift + place, tl.load(beta + at) - mean.to(tl.float32) * factor)
        tl.store(mean_out + place, mean.to(tl.float32))
        tl.store(deviation_out + place, deviation)
        average += momentum * (mean.to(tl.float32) + tl.load(bias + at) - average)
        variance += momentum * ((spread * number / (number - 1)).to(tl.float32) - variance)
    tl.store(running_mean + at, average)
    tl.store(running_var + at, variance)


@kernel
def pool(
    y, scale, shift, pooled, place, raw, windows, batch, domains, time,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adaptive maximum over PARTS stretches of time: pooled (run, window, channel × PARTS), its place, and y there."""
    window, run = tl.program_id(0), tl.program_id(1)
    whole = (run * windows + window).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    group = run * domains + window // batch
    scales, shifts = tl.load(scale + group * CHANNELS + channel), tl.load(shift + group * CHANNELS + channel)
    rows = y + whole * time * CHANNELS
    for part in tl.static_range(PARTS):
        first = part * time // PARTS
        last = ((part + 1) * time + PARTS - 1) // PARTS
        best = tl.full([BLOCK, CHANNELS], -float("inf"), tl.float32)
        best_at = tl.zeros([BLOCK, CHANNELS], tl.int32)
        for start in range(first, last, BLOCK):
            times = (start + tl.arange(0, BLOCK))[:, None]
            value = tl.load(rows + times * CHANNELS + channel[None, :], mask=times < last, other=0.0)
            value = tl.where(times < last, value.to(tl.float32) * scales[None, :] + shifts[None, :], -float("inf"))
            better = value > best
            best_at = tl.where(better, times, best_at)
            best = tl.where(better, value, best)
        most = tl.max(best, axis=0)
        most_at = tl.min(tl.where(best == most[None, :], best_at, time), axis=0)  # the first of equals
        most_at = tl.where(most_at < time, most_at, 0)  # nothing is equal to NaN
        at = (whole * CHANNELS + channel) * PARTS + part
        found = tl.load(rows + most_at * CHANNELS + channel)
        tl.store(pooled + at, tl.maximum(most, 0.0))
        tl.store(place + at, most_at)
        tl.store(raw + at, found.to(tl.float32))


@kernel
def pool_backward_sums(
    gradient, pooled, raw, mean, deviation, partial, windows, batch, domains, CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Σ dz and Σ dz·ŷ over a window (dz: gradient before ReLU, ŷ: normalised y), from the few places pooling chose."""
    window, run = tl.program_id(0), tl.program_id(1)
    whole = (run * windows + window).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    group = (run * domains + window // batch) * CHANNELS + channel
    means, deviations = tl.load(mean + group), tl.load(deviation + group)
    first, second = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for part in tl.static_range(PARTS):
        at = (whole * CHANNELS + channel) * PARTS + part
        change = tl.where(tl.load(pooled + at) > 0, tl.load(gradient + at), 0.0)
        first += change
        second += change * (tl.load(raw + at) - means) * deviations
    tl.store(partial + whole * 2 * CHANNELS + channel, first)
    tl.store(partial + whole * 2 * CHANNELS + CHANNELS + channel, second)


@kernel
def statistics_backward(
    partial, scale, mean, deviation, coefficient, gamma_gradient, beta_gradient, windows, batch, time,
    DOMAINS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Σ dz, Σ dz·ŷ → gradients of gamma and beta, and dy = c₀·dz + c₁ + c₂·y: coefficient (run, domain, 3, channel)."""
    run = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    of_gamma, of_beta = tl.zeros([CHANNELS], tl.float64), tl.zeros([CHANNELS], tl.float64)
    number = (batch * time).to(tl.float64)
    for domain in tl.static_range(DOMAINS):
        first, second = tl.zeros([CHANNELS], tl.float64), tl.zeros([CHANNELS], tl.float64)
        for start in range(0, batch, BLOCK):
            window = start + tl.arange(0, BLOCK)
            inside = (window < batch)[:, None]
            row = (run * windows + domain * batch + window)[:, None] * 2 * CHANNELS + channel[None, :]
            first += tl.sum(tl.load(partial + row, mask=inside, other=0.0).to(tl.float64), axis=0)
            second += tl.sum(tl.load(partial + row + CHANNELS, mask=inside, other=0.0).to(tl.float64), axis=0)
        place = (run * DOMAINS + domain) * CHANNELS + channel
        factor, deviations = tl.load(scale + place), tl.load(deviation + place)
        slope = -factor * deviations * (second / number).to(tl.float32)
        place = (run * DOMAINS + domain) * 3 * CHANNELS + channel
        tl.store(coefficient + place, factor)
        level = -factor * (first / number).to(tl.float32)
        means = tl.load(mean + (run * DOMAINS + domain) * CHANNELS + channel)
        tl.store(coefficient + place + CHANNELS, level - slope * means)
        tl.store(coefficient + place + 2 * CHANNELS, slope)
        of_gamma += second
        of_beta += first
    tl.store(gamma_gradient + run * CHANNELS + channel, of_gamma.to(tl.float32))
    tl.store(beta_gradient + run * CHANNELS + channel, of_beta.to(tl.float32))


@kernel
def pool_backward(
    y, gradient, pooled, place, coefficient, windows, batch, domains, time,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Puts the last layer's dy into y's place."""
    window, run = tl.program_id(0), tl.program_id(1)
    whole = (run * windows + window).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    group = (run * domains + window // batch) * 3 * CHANNELS + channel
    factor, level = tl.load(coefficient + group), tl.load(coefficient + group + CHANNELS)
    slope = tl.load(coefficient + group + 2 * CHANNELS)
    rows = y + whole * time * CHANNELS
    earlier_at, earlier = tl.zeros([CHANNELS], tl.int32) - 1, tl.zeros([CHANNELS], tl.float32)
    for part in tl.static_range(PARTS):  # a part may begin with the row the one before ends with
        chosen = (whole * CHANNELS + channel) * PARTS + part
        given = tl.where(tl.load(pooled + chosen) > 0, tl.load(gradient + chosen) * factor, 0.0)
        given_at = tl.load(place + chosen)
        last = (part + 1) * time // PARTS
        for start in range(part * time // PARTS, last, BLOCK):
            times = (start + tl.arange(0, BLOCK))[:, None]
            at = rows + times * CHANNELS + channel[None, :]
            change = tl.load(at, mask=times < last, other=0.0).to(tl.float32) * slope[None, :] + level[None, :]
            change += tl.where(times == given_at[None, :], given[None, :], 0.0)
            change += tl.where(times == earlier_at[None, :], earlier[None, :], 0.0)
            tl.store(at, change.to(y.dtype.element_ty), mask=times < last)
        earlier_at, earlier = given_at, given


@triton.jit
def _change(
    dz, y, places, end, factor, level, slope, first, CHANNELS: tl.constexpr, BLOCK_N: tl.constexpr,
    READY: tl.constexpr,
):  # fmt: skip
    """dy of rows, BLOCK_N channels from `first` on: as it lies there, or made of dz and y; 0 outside 0 … end − 1."""
    inside = (places >= 0) & (places < end)
    channel = first + tl.arange(0, BLOCK_N)
    at = places[:, None] * CHANNELS + channel[None, :]
    change = tl.load(dz + at, mask=inside[:, None], other=0.0)
    if not READY:
        value = tl.load(y + at, mask=inside[:, None], other=0.0).to(tl.float32)
        change = change.to(tl.float32) * factor[None, :] + value * slope[None, :] + level[None, :]
        change = tl.where(inside[:, None], change, 0.0)
    return change


@kernel
def backward_input(
    dz, y, coefficient, weight, x, scale, shift, mean, deviation, dx, partial, windows, batch, domains, time_in,
    time_out, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, POOL: tl.constexpr, READY: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BLOCK_N channels of dz of the layer before, from this layer's; and sums. weight (run, 3, OUTPUTS, INPUTS)."""
    window, run = tl.program_id(0), tl.program_id(1)
    whole = (run * windows + window).to(tl.int64)
    group = run * domains + window // batch
    output, channel = tl.arange(0, OUTPUTS), tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    of_input = group * INPUTS + channel
    scales, shifts = tl.load(scale + of_input), tl.load(shift + of_input)
    means, deviations = tl.load(mean + of_input), tl.load(deviation + of_input)
    of_output = group * 3 * OUTPUTS + output
    factor, level = tl.load(coefficient + of_output), tl.load(coefficient + of_output + OUTPUTS)
    slope = tl.load(coefficient + of_output + 2 * OUTPUTS)
    length = time_out + 2
    first, second = tl.zeros([BLOCK_N], tl.float32), tl.zeros([BLOCK_N], tl.float32)
    factors = weight + run * 3 * INPUTS * OUTPUTS + output[:, None] * INPUTS + channel[None, :]
    taps = tl.load(factors), tl.load(factors + INPUTS * OUTPUTS), tl.load(factors + 2 * INPUTS * OUTPUTS)
    out, before = whole * time_out * OUTPUTS, whole * time_in * INPUTS
    for start in range(0, length, BLOCK):
        time = start + tl.arange(0, BLOCK)
        sums = tl.zeros([BLOCK, BLOCK_N], tl.float32)
        for tap in tl.static_range(3):
            change = _change(dz + out, y + out, time - tap, time_out, factor, level, slope, 0, OUTPUTS, OUTPUTS, READY)
            sums = tl.dot(change.to(taps[tap].dtype), taps[tap], sums, input_precision=PRECISION)
        inside = (time < length)[:, None]
        if POOL:
            at = before + (2 * time)[:, None] * INPUTS + channel[None, :]
            even = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            odd = tl.load(x + at + INPUTS, mask=inside, other=0.0).to(tl.float32)
            even_after, odd_after = even * scales[None, :] + shifts[None, :], odd * scales[None, :] + shifts[None, :]
            left = even_after >= odd_after
            to_even = tl.where(inside & left & (even_after > 0), sums, 0.0).to(dx.dtype.element_ty)
            to_odd = tl.where(inside & ~left & (odd_after > 0), sums, 0.0).to(dx.dtype.element_ty)
            tl.store(dx + at, to_even, mask=inside)
            tl.store(dx + at + INPUTS, to_odd, mask=inside)
            to_even, to_odd = to_even.to(tl.float32), to_odd.to(tl.float32)
            first += tl.sum(to_even + to_odd, axis=0)
            product = to_even * (even - means[None, :]) + to_odd * (odd - means[None, :])
            second += tl.sum(product * deviations[None, :], axis=0)
        else:
            at = before + time[:, None] * INPUTS + channel[None, :]
            value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            live = inside & (value * scales[None, :] + shifts[None, :] > 0)
            to_value = tl.where(live, sums, 0.0).to(dx.dtype.element_ty)
            tl.store(dx + at, to_value, mask=inside)
            to_value = to_value.to(tl.float32)
            first += tl.sum(to_value, axis=0)
            second += tl.sum(to_value * (value - means[None, :]) * deviations[None, :], axis=0)
    if POOL:
        if time_in > 2 * length:  # an odd row at the end was in no pair
            tl.store(dx + before + 2 * length * INPUTS + channel, tl.zeros([BLOCK_N], dx.dtype.element_ty))
    tl.store(partial + whole * 2 * INPUTS + channel, first)
    tl.store(partial + whole * 2 * INPUTS + INPUTS + channel, second)


@kernel
def backward_weight(
    x, scale, shift, dz, y, coefficient, partial, windows, batch, domains, each, time_in, time_out,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_N: tl.constexpr, POOL: tl.constexpr, READY: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of three taps' weights over `each` windows: partial (run, split, 3, INPUTS, OUTPUTS)."""
    split, run, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_N
    channel, output = tl.arange(0, INPUTS), column + tl.arange(0, BLOCK_N)
    tap_0 = tl.zeros([INPUTS, BLOCK_N], tl.float32)
    tap_1 = tl.zeros([INPUTS, BLOCK_N], tl.float32)
    tap_2 = tl.zeros([INPUTS, BLOCK_N], tl.float32)
    for window in range(split * each, tl.minimum((split + 1) * each, windows)):
        whole = (run * windows + window).to(tl.int64)
        group = run * domains + window // batch
        scales, shifts = tl.load(scale + group * INPUTS + channel), tl.load(shift + group * INPUTS + channel)
        of_output = group * 3 * OUTPUTS + output
        factor, level = tl.load(coefficient + of_output), tl.load(coefficient + of_output + OUTPUTS)
        slope = tl.load(coefficient + of_output + 2 * OUTPUTS)
        before, out = x + whole * time_in * INPUTS, whole * time_out * OUTPUTS
        for start in range(0, time_out, BLOCK):
            time = start + tl.arange(0, BLOCK)
            inside = time < time_out
            change = _change(dz + out, y + out, time, time_out, factor, level, slope, column, OUTPUTS, BLOCK_N, READY)
            change = change.to(y.dtype.element_ty)
            value = _activation(before, time, inside, scales, shifts, INPUTS, POOL).to(change.dtype)
            tap_0 = tl.dot(tl.trans(value), change, tap_0, input_precision=PRECISION)
            value = _activation(before, time + 1, inside, scales, shifts, INPUTS, POOL).to(change.dtype)
            tap_1 = tl.dot(tl.trans(value), change, tap_1, input_precision=PRECISION)
            value = _activation(before, time + 2, inside, scales, shifts, INPUTS, POOL).to(change.dtype)
            tap_2 = tl.dot(tl.trans(value), change, tap_2, input_precision=PRECISION)
    at = (run * tl.num_programs(0) + split) * 3 * INPUTS * OUTPUTS + channel[:, None] * OUTPUTS + output[None, :]
    tl.store(partial + at, tap_0)
    tl.store(partial + at + INPUTS * OUTPUTS, tap_1)
    tl.store(partial + at + 2 * INPUTS * OUTPUTS, tap_2)


@kernel
def backward_weight_first(
    x, dz, y, coefficient, partial, windows, batch, domains, each, channels, time_in, time_out,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same for the first layer: partial (run, split, channel, WIDTH, OUTPUTS)."""
    split, run, place = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output, tap = tl.arange(0, OUTPUTS), tl.arange(0, WIDTH)
    sums = tl.zeros([WIDTH, OUTPUTS], tl.float32)
    for window in range(split * each, tl.minimum((split + 1) * each, windows)):
        whole = (run * windows + window).to(tl.int64)
        of_output = (run * domains + window // batch) * 3 * OUTPUTS + output
        factor, level = tl.load(coefficient + of_output), tl.load(coefficient + of_output + OUTPUTS)
        slope = tl.load(coefficient + of_output + 2 * OUTPUTS)
        out, before = whole * time_out * OUTPUTS, x + (whole * channels + place) * time_in
        for start in range(0, time_out, BLOCK):
            time = start + tl.arange(0, BLOCK)
            change = _change(dz + out, y + out, time, time_out, factor, level, slope, 0, OUTPUTS, OUTPUTS, False)
            change = change.to(y.dtype.element_ty)
            at = time[None, :] + tap[:, None]
            value = tl.load(before + at, mask=at < time_in, other=0.0).to(change.dtype)
            sums = tl.dot(value, change, sums, input_precision=PRECISION)
    at = ((run * tl.num_programs(0) + split) * channels + place) * WIDTH * OUTPUTS
    tl.store(partial + at + tap[:, None] * OUTPUTS + output[None, :], sums)
