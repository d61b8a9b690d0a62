"""Features of x86 processors as the system announces them, and code that uses each one once."""

from __future__ import annotations

import ctypes
import errno
import mmap
from dataclasses import dataclass

from ultimate_embedder.devices.trials.trial import TrialError

ZERO_UPPER_AND_RETURN = bytes.fromhex("c5f877 c3")
# load the tile configuration, set three tiles to zero, multiply two of them, release
LOAD_TILES = bytes.fromhex("c4e2784907 c4e27b49c0 c4e27b49c8 c4e27b49d0")
RELEASE_TILES_AND_RETURN = bytes.fromhex("c4e27849c0 c3")
TILES, TILE_ROWS, TILE_ROW_BYTES = 3, 16, 64
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux: a process has to ask before it uses AMX


@dataclass(frozen=True)
class CpuFeature:
    """A feature, its flag in /proc/cpuinfo, and an instruction of it."""

    name: str
    flag: str
    instruction: bytes
    in_tiles: bool = False


FEATURES: tuple[CpuFeature, ...] = (
    CpuFeature("AVX2", "avx2", bytes.fromhex("c5fdfec0")),  # vpaddd ymm
    CpuFeature("AVX-512", "avx512f", bytes.fromhex("62f17d48fec0")),  # vpaddd zmm
    CpuFeature("AVX-VNNI", "avx_vnni", bytes.fromhex("c4e27d50c0")),  # vpdpbusd ymm
    CpuFeature("AVX-512 VNNI", "avx512_vnni", bytes.fromhex("62f27d4850c0")),  # vpdpbusd zmm
    CpuFeature("AVX-512 BF16", "avx512_bf16", bytes.fromhex("62f27e4852c0")),  # vdpbf16ps zmm
    CpuFeature("AMX BF16", "amx_bf16", bytes.fromhex("c4e26a5cc1"), in_tiles=True),  # tdpbf16ps
    CpuFeature("AMX INT8", "amx_int8", bytes.fromhex("c4e26b5ec1"), in_tiles=True),  # tdpbssd
)


def try_feature(name: str) -> None:
    """Run an instruction of the feature in this process, which dies of it where the processor has it not."""
    feature = next(each for each in FEATURES if each.name == name)
    if not feature.in_tiles:
        _execute(feature.instruction + ZERO_UPPER_AND_RETURN)
        return
    if ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA):
        number = ctypes.get_errno()
        raise TrialError(f"the system does not permit AMX ({errno.errorcode.get(number, number)})")
    _execute(LOAD_TILES + feature.instruction + RELEASE_TILES_AND_RETURN)


def _execute(code: bytes) -> None:
    """Call machine code, with the address of a tile configuration as its argument."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
        memory.write(code)
        start = ctypes.c_char.from_buffer(memory)
        ctypes.CFUNCTYPE(None, ctypes.c_char_p)(ctypes.addressof(start))(_tile_configuration())
        del start  # else the memory cannot be closed


def _tile_configuration() -> bytes:
    """Palette 1; sixteen widths in bytes (two bytes each) from byte 16, sixteen numbers of rows from byte 48."""
    unused = 16 - TILES
    widths = TILE_ROW_BYTES.to_bytes(2, "little") * TILES + bytes(2 * unused)
    return bytes([1]) + bytes(15) + widths + bytes([TILE_ROWS] * TILES + [0] * unused)
