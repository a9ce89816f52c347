"""Triton's tier: when it is taken, and that it gives the bits of the others.

Without a GPU its kernels run in Triton's interpreter, and what Triton compiles is read.
"""

import math
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.unit.communication.compression.test_kernels import KINDS, make_values
from tests.unit.communication.compression.tiers import differing, make_halves, make_ties, results_of
from trainflow.communication.compression import kernels as tiers
from trainflow.communication.compression.block_format import FP8, INT4, INT8
from trainflow.communication.compression.eager import EagerKernels
from trainflow.communication.compression.native import NativeKernels

ROOT = Path(__file__).parents[4]
CASES = Path(__file__).with_name("interpreted_triton.py")
MODULE = "trainflow.communication.compression.triton_blockwise"
CPU, GPU = torch.device("cpu"), torch.device("cuda")

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs triton, which is had on Linux only"
)
KERNELS = ("_encode", "_encode_with_feedback", "_decode", "_decode_add", "_reduce_encode")
each_format = pytest.mark.parametrize("block_format", [INT8, INT4, FP8], ids=str)


@pytest.fixture
def blockwise() -> ModuleType:
    return import_module(MODULE)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch):
    """What is said of slow tiers, in a process in which nothing has been yet."""
    said: list[str] = []
    monkeypatch.setattr(tiers, "_slow_for", [])
    monkeypatch.setattr(tiers.logger, "warning", lambda text, *parts: said.append(text % parts))
    tiers._warn_slow.cache_clear()
    yield said
    tiers._warn_slow.cache_clear()


class NoGpu:
    """As much of a driver as Triton needs to compile for an H100 where there is none."""

    def get_current_device(self) -> int:
        return 99  # its own, so that no test of a real one gets what was compiled here

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self):
        return import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)


class CompileOnly:
    """Stands for a kernel, and compiles it where it would be launched."""

    def __init__(self, kernel, assembly: list[tuple[str, str]]):
        self._kernel = kernel
        self._assembly = assembly

    def __getitem__(self, grid):
        return lambda *arguments, **options: self._compile(*arguments, grid=grid, **options)

    def _compile(self, *arguments, **options) -> None:
        compiled = self._kernel.warmup(*arguments, **options)
        self._assembly.append((self._kernel.__name__, compiled.asm["ptx"]))


@needs_triton
@pytest.mark.slow
def test_in_triton_s_interpreter_all_bits_are_those_of_the_other_tiers():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_without_triton_a_gpu_gets_plain_torch_and_one_warning(monkeypatch, warned):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.delattr(import_module(MODULE.rpartition(".")[0]), "triton_blockwise", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    for _ in range(2):
        assert isinstance(tiers.choose_kernels(INT8, GPU), EagerKernels)
    (warning,) = warned
    assert "install triton" in warning
    assert tiers.is_slow()


@needs_triton
def test_with_triton_a_gpu_gets_its_kernels(blockwise, monkeypatch, warned):
    made = blockwise.TritonKernels(INT8)
    monkeypatch.setattr(blockwise, "working_kernels", lambda block_format, device: made)
    assert tiers.choose_kernels(INT8, GPU) is made
    assert warned == []
    assert not tiers.is_slow()


@needs_triton
@pytest.mark.parametrize(
    "trouble",
    [RuntimeError("Failed to find C compiler"), subprocess.CalledProcessError(1, ["gcc"])],
    ids=["no compiler", "no headers"],
)
def test_triton_that_cannot_compile_is_not_taken(blockwise, monkeypatch, warned, trouble):
    def fail(*_):
        raise trouble

    monkeypatch.setattr(blockwise.TritonKernels, "encode", fail)
    start = blockwise.working_kernels
    monkeypatch.setattr(
        blockwise, "working_kernels", lambda block_format, _: start(block_format, CPU)
    )
    assert isinstance(tiers.choose_kernels(INT8, GPU), EagerKernels)
    (warning,) = warned
    assert str(trouble) in warning
    assert "install gcc python3-dev" in warning


@needs_triton
@pytest.mark.slow
@each_format
def test_no_product_is_compiled_into_a_sum_and_no_quotient_is_approximate(
    blockwise, block_format, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(import_module("triton.runtime").driver, "_active", NoGpu())
    assembly: list[tuple[str, str]] = []
    for name in KERNELS:
        monkeypatch.setattr(blockwise, name, CompileOnly(getattr(blockwise, name), assembly))
    results_of(blockwise.TritonKernels(block_format), block_format, *torch.zeros(2, 1000))
    assert {name for name, _ in assembly} == set(KERNELS)
    for name, text in assembly:
        floats = set(re.findall(r"^\s+([a-z][\w.]*\.f32)\s", text, re.MULTILINE))
        assert "mul.f32" in floats or "mul.rn.f32" in floats
        assert ("div.rn.f32" in floats) == ("encode" in name)
        wrong = ("fma", "mad", "div.full", "div.approx", "ftz")
        assert not [each for each in floats if any(word in each for word in wrong)]


@pytest.mark.gpu
@each_format
@pytest.mark.parametrize("size", [1, 129, 4096, 300_001])
def test_on_a_gpu_all_bits_are_those_of_the_other_tiers(block_format, size):
    kernels = tiers.choose_kernels(block_format, GPU)
    assert kernels.tier == "triton"
    residual = make_values("normal", size) * 0.01
    samples = [make_values(kind, size) for kind in KINDS]
    samples += [make_ties(block_format, size), make_halves(block_format, size)]
    samples += [make_values("normal", size).index_fill(0, torch.tensor([size // 2]), math.inf)]
    for values in samples:
        expected = results_of(NativeKernels(block_format), block_format, values, residual)
        got = results_of(kernels, block_format, values.to(GPU), residual.to(GPU))
        assert differing(got, expected) == []
