"""Our own kernels for products, attention and norms: `native.cpp`, compiled on first use where there is a compiler.

On an AMD EPYC with AVX2 a forward of MiniLM takes about a tenth less time than by MKL and torch's attention: GELU costs
little beside its product, few rows are as fast as many, and attention is not made of small products (the figures are in
docs/benchmarks.md). Where there is no compiler, or the processor is of another kind, torch computes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.config import cache_folder, may_compile
from ultimate_embedder.files import file_sha256
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.machine import processor_flags, processor_identity
from ultimate_embedder.state import Fields, UnfitError, read_state, write_state

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).with_name("native.cpp")
COMPILERS = ("g++", "c++", "clang++")
# no -ffast-math: with some compilers it makes the whole process treat tiny numbers as zeros
OPTIONS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-w")
COMPILING_S = 120.0
TRIAL = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).try_all()"
TRYING_S = 60.0
VNNI = "avx512_vnni"
INT8_LEVELS = 127  # of weights, on either side of 0
LONGEST_ATTENTION = 1024  # tokens: keys and values of more leave the second cache, and torch's kernel works in blocks

_compiling = OrderedLock("kernels", Rank.KERNELS)


class Native:
    """The compiled functions. They run without Python's lock, in the thread that calls them."""

    def __init__(self, library: Path) -> None:
        """Raises `OSError` if it cannot be loaded, from a file system where nothing may be executed, for example."""
        loaded = ctypes.CDLL(str(library))
        pointer, number = ctypes.c_void_p, ctypes.c_long
        self._multiply, self._attend, self._normalize = loaded.multiply_rows, loaded.attend, loaded.normalize_rows
        self._multiply.argtypes = (pointer, number, number, *[pointer] * 4, number, number, number)
        self._attend.argtypes = (pointer, *[number] * 7, pointer, number)
        self._normalize.argtypes = (pointer, number, number, pointer, pointer, ctypes.c_float)
        self._multiply.restype = self._attend.restype = self._normalize.restype = None
        self._multiply_int8 = loaded.multiply_rows_int8 if hasattr(loaded, "multiply_rows_int8") else None
        if self._multiply_int8 is not None:
            self._multiply_int8.argtypes = (pointer, number, number, number, *[pointer] * 6, number, number, number)
            self._multiply_int8.restype = None
        loaded.panel_outputs.restype = loaded.tile_outputs.restype = number
        self.panel_outputs = int(loaded.panel_outputs())
        """How many outputs are in a panel; what is not a multiple is left to torch."""
        self.tile_outputs = int(loaded.tile_outputs())
        """How many outputs are computed together, and have their weights together."""

    def __deepcopy__(self, memo: object) -> Native:
        """The same: there is nothing in it that changes."""
        return self

    def multiply(
        self,
        inputs: torch.Tensor,
        panels: torch.Tensor,
        bias: torch.Tensor,
        residual: torch.Tensor | None = None,
        *,
        gelu: bool = False,
        in_panels: bool = False,
    ) -> torch.Tensor:
        """Rows times packed weights, and the bias; or GELU of that; or that, added to `residual`, which is changed.

        In panels the result is panel x row x output of the panel, as `attend` reads it fastest.
        """
        inputs = inputs.contiguous()
        rows, inner = inputs.shape
        outputs = self._outputs(inputs, bias, residual, in_panels=in_panels)
        self._multiply(
            inputs.data_ptr(),
            rows,
            inner,
            panels.data_ptr(),
            bias.data_ptr(),
            None if residual is None else outputs.data_ptr(),
            outputs.data_ptr(),
            len(bias),
            int(gelu),
            int(in_panels),
        )
        return outputs

    @property
    def has_int8(self) -> bool:
        """Whether there are products in int8, which need AVX-512 VNNI."""
        return self._multiply_int8 is not None

    def multiply_int8(
        self,
        inputs: torch.Tensor,
        weights: Int8Weights,
        bias: torch.Tensor,
        residual: torch.Tensor | None = None,
        *,
        gelu: bool = False,
        in_panels: bool = False,
    ) -> torch.Tensor:
        """The same with weights in int8, to which inputs are rounded in groups of neighbours of a row."""
        if self._multiply_int8 is None:
            raise NotImplementedError("int8 needs AVX-512 VNNI")
        inputs = inputs.contiguous()
        rows, inner = inputs.shape
        outputs = self._outputs(inputs, bias, residual, in_panels=in_panels)
        self._multiply_int8(
            inputs.data_ptr(),
            rows,
            inner,
            weights.group,
            weights.levels.data_ptr(),
            weights.scales.data_ptr(),
            weights.sums.data_ptr(),
            bias.data_ptr(),
            None if residual is None else outputs.data_ptr(),
            outputs.data_ptr(),
            len(bias),
            int(gelu),
            int(in_panels),
        )
        return outputs

    def _outputs(
        self, inputs: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor | None, *, in_panels: bool
    ) -> torch.Tensor:
        """Where a product goes: into the residual, if there is one."""
        if residual is not None:
            return residual.contiguous()
        rows, outer = len(inputs), len(bias)
        shape = (outer // self.panel_outputs, rows, self.panel_outputs) if in_panels else (rows, outer)
        return inputs.new_empty(shape)

    def can_attend(self, length: int, dim: int) -> bool:
        """Whether it does attention of that many tokens with heads of this size."""
        return length <= LONGEST_ATTENTION and dim % self.panel_outputs == 0

    def attend(
        self, joined: torch.Tensor, start: int, shape: tuple[int, int, int], asked: int, attended: torch.Tensor
    ) -> None:
        """Attention within texts, into `attended`: `shape` has texts, tokens of each, heads; `asked` the first tokens.

        `joined` has queries, keys and values of all tokens, side by side or in panels; texts begin at token `start`.
        """
        texts, length, heads = shape
        in_panels = joined.dim() == 3
        tokens = joined.shape[1] if in_panels else joined.shape[0]
        dim = joined.numel() // tokens // 3 // heads
        place = joined.data_ptr(), tokens, start
        self._attend(*place, texts, length, heads, dim, asked, attended.data_ptr(), int(in_panels))

    def normalize(self, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Layer norm of rows, which are changed; their size is a multiple of `panel_outputs`."""
        values = values.contiguous()
        rows, size = values.shape
        self._normalize(values.data_ptr(), rows, size, weight.data_ptr(), bias.data_ptr(), eps)
        return values


def pack(weight: torch.Tensor, tile_outputs: int) -> torch.Tensor:
    """Weights (output x input) as tiles need them, in one row: tile x input x output of the tile.

    The last tile has the outputs that are left.
    """
    import torch

    return torch.cat([tile.t().reshape(-1) for tile in torch.split(weight, tile_outputs)])


def unpack(packed: torch.Tensor, outputs: int, tile_outputs: int) -> torch.Tensor:
    """The weights again, output x input."""
    import torch

    inputs = packed.numel() // outputs
    tiles = torch.split(packed, tile_outputs * inputs)
    return torch.cat([tile.view(inputs, -1).t() for tile in tiles])


@dataclass(frozen=True)
class Int8Weights:
    """Weights of a product in int8, with a scale for each group of inputs and each output."""

    group: int
    levels: torch.Tensor
    """Tile x four inputs x output of the tile x input: what one instruction adds up."""
    scales: torch.Tensor
    """Tile x group x output of the tile."""
    sums: torch.Tensor
    """The same: of the weights of a group and an output, as inputs are counted from the least of theirs."""


def pack_int8(weight: torch.Tensor, group: int, tile_outputs: int) -> Int8Weights:
    """Weights (output x input) in int8; `group` divides the inputs."""
    import torch

    outputs, inputs = weight.shape
    parts = weight.view(outputs, inputs // group, group)
    scales = parts.abs().amax(2) / INT8_LEVELS
    levels = torch.where(scales[..., None] > 0, parts / scales[..., None], 0).round().to(torch.int8)
    sums = levels.sum(2, dtype=torch.int32) * scales
    fours = levels.view(outputs, inputs // 4, 4)
    packed = torch.cat([tile.transpose(0, 1).reshape(-1) for tile in torch.split(fours, tile_outputs)])
    return Int8Weights(group, packed, pack(scales, tile_outputs), pack(sums, tile_outputs))


def native() -> Native | None:
    """The kernels for this processor; None if they are switched off or cannot be had here."""
    if not may_compile():
        return None
    with _compiling:
        return _compiled()


def has_native_int8() -> bool:
    """Whether there are products in int8 here; the kernels are compiled and tried to find out, unless that is done."""
    if VNNI not in (processor_flags() or ()):
        return False
    kernels = native()
    return kernels is not None and kernels.has_int8


@functools.cache
def _compiled() -> Native | None:
    instructions = _instructions()
    if instructions is None:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return Native(_library([*OPTIONS, *instructions]))
    return None


def _instructions() -> Sequence[str] | None:
    """The compiler's options for what the processor has, and torch may use; None if there is no kernel for it."""
    flags = processor_flags() or frozenset()
    allowed = os.environ.get("ATEN_CPU_CAPABILITY", "")
    if platform.machine() not in ("x86_64", "AMD64") or not {"avx2", "fma"} <= flags or allowed == "default":
        return None
    if "avx512f" in flags and allowed != "avx2":
        int8 = ["-mavx512vnni"] if VNNI in flags else []
        return ("-mavx512f", *int8, "-mfma", "-mprefer-vector-width=512")
    return ("-mavx2", "-mfma")


def _library(options: Sequence[str]) -> Path:
    """The compiled source, from the cache if its checksum is right, tried before it is first used.

    Raises `OSError` or `SubprocessError`.
    """
    source = SOURCE.read_bytes()
    parts = [source, processor_identity().encode(), *(option.encode() for option in options)]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    folder = cache_folder() / "native"
    record = folder / f"{key}.json"
    known = read_state(record, lambda fields: _recorded(fields, folder))
    if isinstance(known, Path):
        return known
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "native.so"
        command = [_compiler(), *options, str(SOURCE), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMPILING_S)
        # a virtual machine may announce instructions that it has not, and a process dies of them
        trial = [sys.executable, "-I", "-c", TRIAL, str(built)]
        subprocess.run(trial, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=TRYING_S)
        digest = file_sha256(built)
        library = built.replace(_named(folder, digest))  # by its content: another process may do the same now
    write_state(record, {"sha256": digest})
    return library


def _recorded(fields: Fields, folder: Path) -> Path:
    digest = fields.sha256("sha256")
    library = _named(folder, digest)
    if not fields.sealed or not library.is_file() or file_sha256(library) != digest:
        raise UnfitError("the library is not what was compiled")
    return library


def _named(folder: Path, digest: str) -> Path:
    return folder / f"{digest[:32]}.so"


def _compiler() -> str:
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise FileNotFoundError("there is no C++ compiler")
