"""The C code of the CPU's path against the plain layers: values, gradients, statistics; odd sizes, one run, padding."""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from bearcat.errors import InputError
from bearcat.models import native
from bearcat.models.networks import SHORTEST, Network, build_network, fast_path, initialise, rectified_dropout, use_path
from bearcat.models.stacked import Randomness, dropped
from tests.reference import affine

pytestmark = pytest.mark.skipif(fast_path(torch.device("cpu")) != "native", reason="needs a C compiler with OpenMP")
# Allowed distance of values, gradients and statistics. In float32 a value near a maximum may lose to its neighbour.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The distance as a share of the expected one's norm, (run, …) → the largest over runs. NaN is infinitely far."""
    found, expected = found.detach().double().flatten(1), expected.detach().double().flatten(1)
    share = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-12)
    return float(share.nan_to_num(float("inf")).max())


def made(runs: int, channels: int, length: int, dtype: torch.dtype) -> tuple[Network, Network]:
    """The same networks, one plain and one native."""
    torch.manual_seed(length)
    plain = build_network("cnn", runs, channels, length, classes=5, dropout=0.0).to(dtype)
    initialise(plain, list(range(3, 3 + runs)), 0)
    with torch.no_grad():  # any sign of a scale, and channels that are off or almost
        for norm in plain.encoder.norms:
            norm.weight.uniform_(-1.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
            norm.weight[:, 3] = 0
    fast = copy.deepcopy(plain)
    use_path([fast], "native", "float32")
    return plain, fast


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("runs", "domains", "batch", "channels", "length", "mask"),
    [
        # `mask`: the places that hold a window, (run, domain × batch)
        pytest.param(1, 1, 4, 1, 128, None, id="one run"),
        pytest.param(3, 2, 6, 1, 101, None, id="odd length"),
        pytest.param(2, 1, 3, 2, SHORTEST, None, id="two channels, shortest"),
        pytest.param(1, 1, 19, 3, SHORTEST + 1, None, id="three channels, several groups of windows"),
        pytest.param(2, 2, 5, 1, 90, [[1, 1, 1, 1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 1, 1, 1, 1, 1]], id="padded"),
        pytest.param(2, 1, 6, 1, 90, [[1, 1, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1]], id="padded in the middle"),
    ],
)
def test_native_blocks_are_the_plain_ones_forward_and_backward(runs, domains, batch, channels, length, mask, dtype):
    plain, fast = made(runs, channels, length, dtype)
    windows = torch.randn(runs, domains * batch, channels, length, dtype=dtype)
    present = None if mask is None else torch.tensor(mask, dtype=torch.bool)
    weight = torch.randn(runs, domains * batch, 5, dtype=dtype)
    if present is not None:
        weight = weight * present[..., None]
        windows[~present] = 1e3  # nobody looks there
    results = {}
    for name, student in (("plain", plain), ("native", fast)):
        logits, _ = student(windows, True, None, present, domains)
        (logits * weight).sum().backward()
        results[name] = logits * (weight != 0)
    near = TOLERANCE[dtype]
    assert far(results["native"], results["plain"]) < near
    for (name, found), expected in zip(fast.named_parameters(), plain.parameters(), strict=True):
        if "convolutions" in name and name.endswith("bias"):
            assert not found.grad.any()  # normalisation takes it away; torch leaves rounding there
        else:
            assert far(found.grad, expected.grad) < near, name
    for (name, found), expected in zip(fast.named_buffers(), plain.buffers(), strict=True):
        assert far(found, expected) < near, name
    with torch.no_grad():
        found, expected = fast(windows)[0], plain(windows)[0]
    assert far(found, expected) < near


@pytest.mark.parametrize(("windows", "length", "away"), [(5, 14, 0.0), (3, 17, 100.0), (1, 6, 0.0)])
def test_outside_the_maxima_the_last_blocks_gradient_is_affine_in_what_it_saw(windows, length, away):
    """The derivation native.c follows, against torch's own way back through convolution, norm, ReLU and pooling."""
    chance = torch.Generator().manual_seed(length)
    x, weight, gamma, beta, gradient = (
        torch.randn(*size, generator=chance, dtype=torch.float64)
        for size in ((windows, length, 6), (3, 6, 9), (9,), (9,), (windows, 9, 4))
    )
    x += away
    x.requires_grad_()
    weight.requires_grad_()
    y = functional.conv1d(x.mT, weight.permute(2, 1, 0))
    normal = functional.batch_norm(y, None, None, gamma, beta, training=True, eps=affine.EPSILON)
    (functional.adaptive_max_pool1d(normal.relu(), 4) * gradient).sum().backward()
    of_weight, of_x = affine.gradients(*(tensor.detach().numpy() for tensor in (x, weight, gamma, beta, gradient)))
    for found, expected in ((of_weight, weight.grad), (of_x, x.grad)):
        assert np.abs(found - expected.numpy()).max() <= 1e-10 * np.abs(found).max()


@pytest.mark.parametrize(
    ("gamma", "beta", "times"),
    [
        pytest.param(1.0, 0.0, 3, id="an everyday layer"),
        pytest.param(0.05, 4.0, 0.1, id="a mean of eighty deviations"),
        pytest.param(1.0, -2.5, 1, id="seldom anything"),
    ],
)
def test_the_last_weights_gradient_is_rounded_off_about_as_little_as_torchs(gamma, beta, times):
    """`gamma` and `beta` of what the last layer sees; its error in float32 is at most `times` that of torch's layers."""
    torch.manual_seed(1)
    exact = build_network("cnn", 1, 1, 300, classes=5, dropout=0.0).double()
    initialise(exact, [1], 0)
    with torch.no_grad():
        exact.encoder.norms[2].weight.fill_(gamma)
        exact.encoder.norms[2].bias.fill_(beta)
    windows, away = torch.randn(1, 24, 1, 300, dtype=torch.float64), {}
    expected = None
    for name, path, dtype in (
        ("exact", "plain", torch.float64),
        ("torch", "plain", torch.float32),
        ("native", "native", torch.float32),
    ):
        student = copy.deepcopy(exact).to(dtype)
        use_path([student], path, "float32")
        features = student.encoder(windows.to(dtype), True, None, None, 2)
        (found,) = torch.autograd.grad(features.sum(), student.encoder.convolutions[3].weight)
        expected = found if expected is None else expected
        away[name] = far(found, expected)
    assert away["native"] < times * away["torch"], away


def test_the_result_does_not_depend_on_neighbours_threads_or_what_was_there_before():
    _, fast = made(3, 1, 200, torch.float32)
    alone = build_network("cnn", 1, 1, 200, classes=5, dropout=0.0)
    alone.load_state_dict({name: value[1:2].clone() for name, value in fast.state_dict().items()})
    use_path([alone], "native", "float32")
    windows = torch.randn(3, 20, 1, 200)

    def gradients(student: Network, given: torch.Tensor) -> list[torch.Tensor]:
        logits, _ = student(given, True, None, None, 2)
        return list(torch.autograd.grad(logits.square().sum(), student.encoder.convolutions.parameters()))

    together = gradients(fast, windows)
    gradients(alone, windows[:1])  # memory that another batch has used
    alone.load_state_dict({name: value[1:2].clone() for name, value in fast.state_dict().items()})
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = gradients(alone, windows[1:2])
    finally:
        torch.set_num_threads(before)
    for result, all_of_them in zip(found, together, strict=True):
        assert torch.equal(result, all_of_them[1:2])


def test_two_passes_may_wait_for_their_way_back_at_once():
    _, fast = made(1, 1, 128, torch.float64)
    _, other = made(1, 1, 128, torch.float64)
    first, second = torch.randn(2, 1, 6, 1, 128, dtype=torch.float64)
    weights = list(fast.encoder.convolutions.parameters())
    both = fast(first, True)[0].square().sum() + fast(second, True)[0].square().sum()
    found = torch.autograd.grad(both, weights)
    expected = [torch.zeros_like(weight) for weight in weights]
    for part in (first, second):
        loss = other(part, True)[0].square().sum()
        for total, gradient in zip(
            expected, torch.autograd.grad(loss, other.encoder.convolutions.parameters()), strict=True
        ):
            total += gradient
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_native_dropout_zeroes_the_units_the_plain_one_zeroes(probability):
    draws = Randomness(torch.tensor([5, 2**31 + 7]))
    draws.next()
    values = torch.randn(2, 7, 300)
    first, second = values.clone().requires_grad_(), values.clone().requires_grad_()
    found = rectified_dropout(first, probability, draws, 2, "native")
    expected = dropped(second.relu(), probability, draws, 2)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_what_is_no_number_stays_none():
    _, fast = made(2, 1, 100, torch.float32)
    windows = torch.randn(2, 4, 1, 100)
    windows[1, 2, 0, 50] = torch.nan
    logits, _ = fast(windows, True)
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()


def test_code_that_computes_something_else_is_not_used(monkeypatch):
    right = native.forward
    fast_path.cache_clear()

    def wrong(*given):
        pooled, kept = right(*given)
        return 1.01 * pooled, kept

    monkeypatch.setattr(native, "forward", wrong)
    assert fast_path(torch.device("cpu")) == "plain"
    monkeypatch.undo()
    fast_path.cache_clear()
    assert fast_path(torch.device("cpu")) == "native"


def test_code_whose_gradients_are_wrong_is_not_used(monkeypatch):
    right = native.backward
    fast_path.cache_clear()

    def wrong(*given):
        of_weights, of_norms = right(*given)
        return [0 * gradient for gradient in of_weights], of_norms

    monkeypatch.setattr(native, "backward", wrong)
    assert fast_path(torch.device("cpu")) == "plain"
    monkeypatch.undo()
    fast_path.cache_clear()


@pytest.mark.parametrize(
    ("windows", "domains"),
    [
        (torch.zeros(3, 4, 1, 100), 1), (torch.zeros(1, 4, 2, 100), 1), (torch.zeros(1, 5, 1, 100), 2),
        (torch.zeros(1, 4, 1, 100, dtype=torch.float64), 1), (torch.zeros(1, 4, 1, 100, dtype=torch.float16), 1),
    ],
    ids=["runs", "channels", "domains", "double", "half"],
)  # fmt: skip
def test_windows_that_do_not_fit_never_reach_the_c_code(windows, domains):
    student = build_network("cnn", 1, 1, 100, 3)
    use_path([student], "native", "float32")
    with pytest.raises((ValueError, RuntimeError)):
        student(windows, True, None, None, domains)


def test_with_running_statistics_gradients_go_the_plain_way():
    plain, fast = (build_network("cnn", 1, 1, 100, 3) for _ in range(2))
    initialise(plain, [1], 0)
    fast.load_state_dict(plain.state_dict())
    use_path([fast], "native", "float32")
    windows = torch.randn(1, 4, 1, 100, generator=torch.Generator().manual_seed(0))
    for student in (plain, fast):
        student(windows, False)[0].sum().backward()
    for first, second in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)


def test_too_little_memory_is_a_memory_error_so_that_stacks_are_halved():
    with pytest.raises(MemoryError, match="bytes cannot be had"):
        native.Memory().take(2**55, torch.zeros(1))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that need not be fast, compiled in a fifth of the time."""
    monkeypatch.setattr(native, "FLAGS", ("-O0", *native.FLAGS[1:]))


@pytest.mark.usefixtures("hasty")
def test_a_damaged_or_foreign_library_is_not_loaded_but_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path / "cache"))

    def compiled() -> Path:
        native._library.cache_clear()
        native._library(torch.float32)
        (library,) = (tmp_path / "cache").glob("*.so")
        return library

    def put(content: bytes) -> None:
        library.unlink()  # a file that is loaded must not change under its user
        library.write_bytes(content)

    try:
        library = compiled()
        whole = library.read_bytes()
        put(whole[: len(whole) // 2])
        assert compiled().read_bytes()[: len(whole) // 2] == whole[: len(whole) // 2]
        native._loaded(library)
        library.parent.chmod(0o777)
        put(b"of somebody else")
        native._library.cache_clear()
        native._library(torch.float32)  # compiled for itself, elsewhere
        assert library.read_bytes() == b"of somebody else"
    finally:
        monkeypatch.undo()
        native._library.cache_clear()


@pytest.mark.usefixtures("hasty")
def test_a_library_that_others_could_replace_is_not_kept_and_a_link_is_not_followed(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    (shared / "cache").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("BEARCAT_CACHE", str(shared / "cache"))
    try:
        shared.chmod(0o777)  # the folder above, not the cache itself
        native._library.cache_clear()
        native._library(torch.float32)
        assert not list((shared / "cache").glob("*.so"))
        shared.chmod(0o1777)  # as /tmp: nobody can move what belongs to another
        native._library.cache_clear()
        native._library(torch.float32)
        (library,) = (shared / "cache").glob("*.so")
        moved = library.rename(library.with_name("elsewhere"))
        library.symlink_to(moved)
        with pytest.raises(OSError, match="symbolic"):
            native._loaded(library)
    finally:
        monkeypatch.undo()
        native._library.cache_clear()


@pytest.mark.usefixtures("hasty")
def test_the_file_that_was_compared_is_the_one_that_is_loaded(tmp_path, monkeypatch):
    """Whoever swaps it in between swaps nothing."""
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path / "cache"))
    digest = hashlib.file_digest

    def compare_then_swap(stream, name):
        found = digest(stream, name)
        library.unlink()
        library.write_bytes(b"of somebody else")
        return found

    try:
        native._library.cache_clear()
        native._library(torch.float32)
        (library,) = (tmp_path / "cache").glob("*.so")
        monkeypatch.setattr(native.hashlib, "file_digest", compare_then_swap)
        assert native._loaded(library).multiply
        assert library.read_bytes() == b"of somebody else"
    finally:
        monkeypatch.undo()
        native._library.cache_clear()


@pytest.mark.parametrize("program", [None, "exit 1", "exit 0"])
def test_without_a_compiler_the_plain_layers_do_it(program, tmp_path, monkeypatch):
    """One that is not there, one that fails, one that makes nothing."""
    if program is not None:
        (tmp_path / "cc").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path))
    for known in (native._library, fast_path):
        known.cache_clear()
    try:
        assert fast_path(torch.device("cpu")) == "plain"
        if program != "exit 0":
            with pytest.raises(InputError, match="needs a C compiler"):
                native._library(torch.float32)
    finally:
        monkeypatch.undo()
        for known in (native._library, fast_path):
            known.cache_clear()
    assert fast_path(torch.device("cpu")) == "native"


@pytest.mark.usefixtures("hasty")
def test_a_full_cache_changes_no_digit(tmp_path, monkeypatch):
    """The compiler fails there, and elsewhere it works; where there is no room at all, that is said."""
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path / "cache"))
    compiled = native._compiled

    def full(compiler, real, folder):
        if folder.is_relative_to(tmp_path):
            raise subprocess.CalledProcessError(1, compiler, stderr=b"No space left on device")
        return compiled(compiler, real, folder)

    try:
        monkeypatch.setattr(native, "_compiled", full)
        native._library.cache_clear()
        assert native._library(torch.float32).forward
        assert not list((tmp_path / "cache").glob("*.so"))
        monkeypatch.setattr(native, "LEAST_FREE", 2**62)
        native._library.cache_clear()
        with pytest.raises(OSError, match="space"):
            fast_path.__wrapped__(torch.device("cpu"))
    finally:
        monkeypatch.undo()
        native._library.cache_clear()


def test_a_group_that_others_are_in_is_not_ours_alone(monkeypatch):
    for members, alone in ((["somebody"], False), ([], True)):
        monkeypatch.setattr("grp.getgrgid", lambda _, members=members: SimpleNamespace(gr_mem=members))
        monkeypatch.setattr("pwd.getpwnam", lambda _: SimpleNamespace(pw_uid=12_345))
        monkeypatch.setattr("pwd.getpwall", list)
        native._is_own_group.cache_clear()
        assert native._is_own_group(os.getuid()) is alone
    native._is_own_group.cache_clear()
    assert not native._is_own_group(os.getuid() + 1)
    native._is_own_group.cache_clear()
