"""The C code of the CPU's path against the plain layers: values, gradients, statistics; odd sizes, one run, padding."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

from bearcat.cat.networks import SHORTEST, Network, build_network, initialise
from bearcat.errors import InputError
from bearcat.fast import native
from bearcat.fast.device import fast_path
from bearcat.fast.stacked import Randomness, dropped, rectified_dropout, use_path

pytestmark = pytest.mark.skipif(fast_path(torch.device("cpu")) != "native", reason="needs a C compiler with OpenMP")
CPU = torch.device("cpu")
# Allowed distance of values, gradients and statistics. In float32 a value near a maximum may lose to its neighbour.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The distance as a share of the expected one's norm, (run, …) → the largest over runs. NaN is infinitely far."""
    found, expected = found.detach().double().flatten(1), expected.detach().double().flatten(1)
    share = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-12)
    return float(share.nan_to_num(float("inf")).max())


def made(
    runs: int, channels: int, length: int, dtype: torch.dtype = torch.float32, path: str = "native",
    precision: str = "float32", device: torch.device = CPU,
) -> tuple[Network, Network]:  # fmt: skip
    """The same networks, one plain and one on this path."""
    torch.manual_seed(length)
    plain = build_network("cnn", runs, channels, length, classes=5, dropout=0.0).to(dtype)
    initialise(plain, list(range(3, 3 + runs)), 0)
    with torch.no_grad():  # any sign of a scale, and channels that are almost off
        for norm in plain.encoder.norms:
            norm.weight.uniform_(-1.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
    fast = copy.deepcopy(plain)
    use_path([fast], path, precision)
    return plain.to(device), fast.to(device)


def assert_alike(plain: Network, fast: Network, windows: torch.Tensor, parts: tuple[int, ...], *near: float) -> None:
    """Features, statistics and gradients of both; `near` are the allowed distances, the last that of gradients."""
    goal, features = torch.randn(*windows.shape[:2], 256, device=windows.device), []
    for network in (plain, fast):
        features.append(network.encoder(windows.to(network.head.weight.dtype), True, None, parts))
        (features[-1] * goal.to(features[-1].dtype)).sum().backward()
    assert far(features[1], features[0]) < near[0]
    for (name, found), expected in zip(fast.encoder.named_parameters(), plain.encoder.parameters(), strict=True):
        if name.startswith("convolutions") and name.endswith("bias"):
            assert not found.grad.any()  # normalisation takes it away; torch leaves rounding there
        else:
            assert far(found.grad, expected.grad) < near[-1], name
    for (name, found), expected in zip(fast.named_buffers(), plain.buffers(), strict=True):
        assert far(found, expected) < near[0], name
    with torch.no_grad():  # evaluation: by the running statistics
        assert far(fast(windows)[0], plain(windows.to(plain.head.weight.dtype))[0]) < near[0]


def assert_same_dropout(path: str, probability: float, device: torch.device) -> None:
    draws = Randomness(torch.tensor([11, 2**31 + 5, 33], device=device))
    for layer in range(4):
        draws.next()
        values = torch.randn(3, 5, 200, device=device, requires_grad=True)
        found = rectified_dropout(values, probability, draws, layer, path)
        expected = dropped(values.relu(), probability, draws, layer)
        torch.testing.assert_close(found, expected)
        goal = torch.randn_like(found)
        ours, theirs = (torch.autograd.grad((result * goal).sum(), values)[0] for result in (found, expected))
        torch.testing.assert_close(ours, theirs)


CASES = [  # runs, sizes of parts with statistics of their own, channels, length
    pytest.param(1, (4,), 1, 128, id="one run"),
    pytest.param(3, (6, 6), 1, 101, id="odd length"),
    pytest.param(2, (3,), 2, SHORTEST, id="two channels, shortest"),
    pytest.param(1, (19,), 3, SHORTEST + 1, id="three channels, several groups of windows"),
    pytest.param(2, (7, 2), 1, 90, id="a smaller target"),
    pytest.param(2, (2, 6), 1, 90, id="a smaller source"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("runs", "parts", "channels", "length"), CASES)
def test_native_blocks_are_the_plain_ones_forward_and_backward(runs, parts, channels, length, dtype):
    networks = made(runs, channels, length, dtype)
    for norm in (norm for network in networks for norm in network.encoder.norms):
        norm.weight.data[:, 3] = 0  # a channel that is off
    windows = torch.randn(runs, sum(parts), channels, length, dtype=dtype)
    assert_alike(*networks, windows, parts, TOLERANCE[dtype])


def test_the_result_does_not_depend_on_neighbours_threads_or_what_was_there_before():
    _, fast = made(3, 1, 200)
    alone, second = made(1, 1, 200)[1], {name: value[1:2].clone() for name, value in fast.state_dict().items()}
    windows = torch.randn(3, 20, 1, 200)

    def gradients(student: Network, given: torch.Tensor) -> list[torch.Tensor]:
        logits, _ = student(given, True, None, (12, 8))
        return list(torch.autograd.grad(logits.square().sum(), student.encoder.convolutions.parameters()))

    together = gradients(fast, windows)
    gradients(alone, windows[:1])  # memory that another batch has used
    alone.load_state_dict(second)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 2)
        found = gradients(alone, windows[1:2])
    assert all(torch.equal(result, of_all[1:2]) for result, of_all in zip(found, together, strict=True))


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_native_dropout_zeroes_the_units_the_plain_one_zeroes(probability):
    assert_same_dropout("native", probability, CPU)


def test_windows_that_do_not_fit_never_reach_the_c_code():
    _, student = made(1, 1, 100)
    for windows in (torch.zeros(3, 4, 1, 100), torch.zeros(1, 4, 2, 100), torch.zeros(1, 4, 1, 100).double()):
        with pytest.raises((ValueError, RuntimeError)):
            student(windows, True)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Libraries are looked for anew, and compiled in a fifth of the time: they need not be fast."""
    monkeypatch.setattr(native, "FLAGS", ("-O0", *native.FLAGS[1:]))
    native._library.cache_clear()
    fast_path.cache_clear()
    yield
    native._library.cache_clear()
    fast_path.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_code_that_computes_something_else_is_not_used(part, monkeypatch):
    right = getattr(native, part)

    def wrong(*given):
        first, second = right(*given)
        return (1.01 * first, second) if part == "forward" else ([0 * gradient for gradient in first], second)

    assert fast_path(CPU) == "native"
    fast_path.cache_clear()
    monkeypatch.setattr(native, part, wrong)
    assert fast_path(CPU) == "plain"


@pytest.mark.usefixtures("fresh")
def test_a_library_that_others_could_have_written_is_not_loaded_but_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path))
    native._library(torch.float32)
    (library,) = tmp_path.glob("*.so")
    library.unlink()  # a file that is loaded must not change under its user
    library.write_bytes(b"of somebody else")
    library.chmod(0o666)
    with pytest.raises(ValueError, match="somebody else"):
        native._loaded(library)
    native._library.cache_clear()
    native._library(torch.float32)
    assert library.read_bytes() != b"of somebody else"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("program", [None, "exit 1", "exit 0"])
def test_without_a_compiler_the_plain_layers_do_it(program, tmp_path, monkeypatch):
    """One that is not there, one that fails, one that makes nothing."""
    if program is not None:
        (tmp_path / "cc").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path))
    assert fast_path(CPU) == "plain"
    if program != "exit 0":
        with pytest.raises(InputError, match="needs a C compiler"):
            native._library(torch.float32)
