"""Our own kernels: the numbers of torch in fp64, for all shapes; compiled once, checked before they are loaded."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from tests.support.tiny_models import tiny_model
from ultimate_embedder.config import cache_folder
from ultimate_embedder.models import load_encoder, resolve_model
from ultimate_embedder.models.fused import Kernels, native, read_checked
from ultimate_embedder.models.fused.attention import attend
from ultimate_embedder.models.fused.native import Native
from ultimate_embedder.models.fused.products import NativeProduct, Product, make_product
from ultimate_embedder.models.fused.settings import NATIVE

ROWS = (1, 2, 5, 6, 7, 12, 13, 31, 264, 265, 300)


@pytest.fixture(scope="module")
def kernels() -> Native:
    found = native.native()
    if found is None:
        pytest.skip("there are no kernels of our own for this machine")
    return found


@pytest.fixture
def fresh(kernels: Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and nothing that this process has compiled before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native._compiled.cache_clear()
    yield cache_folder() / "native"
    native._compiled.cache_clear()


@pytest.fixture(scope="module")
def usual_cache(kernels: Native) -> Path:
    """Where this process has its kernels from."""
    return cache_folder() / "native"


@pytest.fixture
def compiled(usual_cache: Path, fresh: Path) -> Path:
    """A cache of its own with what was compiled before, which takes seconds."""
    shutil.copytree(usual_cache, fresh)
    return fresh


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


@pytest.mark.parametrize(("outer", "inner"), [(384, 384), (64, 1000), (1536, 40), (32, 1)])
def test_products_are_those_of_torch(kernels: Native, outer: int, inner: int) -> None:
    weight, bias = numbers(outer, inner) / math.sqrt(inner), numbers(outer)
    product = make_product(NATIVE, weight, bias)
    assert isinstance(product, NativeProduct)
    assert torch.equal(product.plain_weight, weight)
    for rows in ROWS:
        inputs, residual = numbers(rows, inner), numbers(rows, outer)
        expected = F.linear(inputs.double(), weight.double(), bias.double())
        assert (product(inputs) - expected).abs().max() < 5e-5
        assert (product.gelu(inputs) - F.gelu(expected)).abs().max() < 5e-5
        assert (product.added_to(residual.clone(), inputs) - expected - residual).abs().max() < 5e-5
        assert torch.equal(product(inputs.t().contiguous().t()), product(inputs))  # however it lies in memory
        panels = product.in_panels(inputs)
        assert panels.shape == (outer // kernels.panel_outputs, rows, kernels.panel_outputs)
        assert torch.equal(panels.transpose(0, 1).flatten(1), product(inputs))


def test_gelu_is_that_of_torch_for_numbers_of_every_size(kernels: Native) -> None:
    values = torch.cat([torch.linspace(-12, 12, 4096), torch.tensor([0.0, -0.0, 1e-30, 1e4, -1e4, 3e38, -3e38])])
    panel = kernels.panel_outputs
    product = NativeProduct(torch.ones(panel, 1), torch.zeros(panel))
    found = product.gelu(values[:, None])[:, 0]
    assert torch.isfinite(found).all()
    assert (found - F.gelu(values.double())).abs().div(values.abs().clamp(min=1)).max() < 1e-6
    assert torch.isnan(product.gelu(torch.tensor([[float("nan")]]))).all()  # seen by those who check vectors


@pytest.mark.parametrize("size", [32, 64, 384, 1024])
def test_layer_norms_are_those_of_torch(kernels: Native, size: int) -> None:
    weight, bias = numbers(size), numbers(size + 1)[1:]
    for rows in ROWS:
        inputs = numbers(rows, size) * 3 + 100  # far from 0: the mean must be subtracted before numbers are squared
        inputs[-1] = 7  # no variance
        expected = F.layer_norm(inputs.double(), (size,), weight.double(), bias.double(), 1e-12)
        found = kernels.normalize(inputs, weight, bias, 1e-12)
        assert found is inputs
        assert (found - expected).abs().max() < 2e-4


def test_outputs_that_are_no_multiple_of_a_panel_are_left_to_torch(kernels: Native) -> None:
    assert type(make_product(NATIVE, numbers(30, 8), numbers(30))) is Product


@pytest.mark.parametrize("first_only", [False, True])
def test_attention_is_that_of_torch(kernels: Native, first_only: bool) -> None:
    for heads, dim in itertools.product((1, 3), (32, 64, 40)):  # the last is left to torch
        groups = tuple(itertools.product((1, 3), (1, 2, 5, 6, 13, 16, 17, 33, 130)))
        joined = numbers(sum(rows * length for rows, length in groups), 3 * heads * dim) * 3
        expected = attend(joined.double(), groups, heads, None, first_only=first_only)
        found = attend(joined, groups, heads, None, kernels, first_only=first_only)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 5e-5  # of numbers up to 12
        if joined.shape[1] % kernels.panel_outputs == 0:
            panels = joined.view(len(joined), -1, kernels.panel_outputs).transpose(0, 1)
            for own in (kernels, None):  # None: torch computes what lies in panels, as it does for very long texts
                assert (attend(panels, groups, heads, None, own, first_only=first_only) - expected).abs().max() < 5e-5


def test_attention_holds_numbers_that_are_far_apart_and_long_texts(kernels: Native) -> None:
    joined = numbers(700, 3 * 32)
    joined[:, :64] *= 300  # one key has all the weight
    for groups in (((1, 700),), ((7, 100),)):
        found, expected = (attend(joined, groups, 1, None, each) for each in (kernels, None))
        assert torch.isfinite(found).all()
        assert (found - expected).abs().max() < 1e-4
    assert not kernels.can_attend(8192, 32)
    assert attend(numbers(1100, 96), ((1, 1100),), 1, None, kernels).shape == (1100, 32)


def test_a_library_that_was_changed_is_compiled_again(fresh: Path) -> None:
    assert native.native() is not None
    (library,), (record,) = fresh.glob("*.so"), fresh.glob("*.json")
    whole = record.read_text()

    def replace() -> None:
        library.unlink()  # this process has it open: written over, it would crash
        library.write_bytes(b"not a library")

    for damage in (replace, library.unlink, lambda: record.write_text("{}")):
        damage()
        native._compiled.cache_clear()
        found = native.native()
        assert found is not None
        assert found.panel_outputs in (16, 32)
        assert record.read_text() == whole
    assert len(list(fresh.iterdir())) == 2


def test_a_model_that_they_compute_wrong_is_computed_by_torch(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def multiply_wrong(
        self: Native, inputs: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        return numbers(len(inputs), len(bias))

    monkeypatch.setattr("ultimate_embedder.models.encoder.find_fastest_kernels", lambda: Kernels(NATIVE, NATIVE))
    monkeypatch.setattr(Native, "multiply", multiply_wrong)
    model = resolve_model(str(tiny_model("bert")))
    assert load_encoder(model, "float32", "cpu", may_fuse=True).fused
    known = read_checked(model.digest)
    assert known is not None
    assert known.kernels == Kernels()


def test_what_is_compiled_is_not_compiled_again(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.native() is not None
    monkeypatch.setattr(native, "_compiler", None)  # fails if it is called
    native._compiled.cache_clear()
    assert native.native() is not None


@pytest.mark.parametrize(
    "reason",
    ["no compiler", "a compiler that fails", "no folder", "another processor", "instructions that kill", "off"],
)
def test_without_them_torch_computes(
    reason: str, compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    monkeypatch.setattr("ultimate_embedder.models.encoder.find_fastest_kernels", lambda: Kernels(NATIVE, NATIVE))
    assert load_encoder(resolve_model(str(folder)), "float32", "cpu", may_fuse=True).fused
    shutil.rmtree(compiled)
    native._compiled.cache_clear()
    (tmp_path / "bin").mkdir()
    if reason == "no compiler":
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    elif reason == "a compiler that fails":
        compiler = tmp_path / "bin" / "g++"
        compiler.write_text("#!/bin/sh\nexit 1\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    elif reason == "no folder":
        compiled.write_text("a file in its place")
    elif reason == "another processor":
        monkeypatch.setattr(native, "processor_flags", lambda: frozenset({"sse4_2"}))
    elif reason == "instructions that kill":
        monkeypatch.setattr(native, "TRIAL", "import os; os.kill(os.getpid(), 4)")
    else:
        monkeypatch.setenv("ULTIMATE_EMBEDDER_COMPILE", "off")
    assert native.native() is None
    assert read_checked(resolve_model(str(folder)).digest) is None  # compared again, with other kernels
