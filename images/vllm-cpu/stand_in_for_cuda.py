"""Put empty libraries where torch names CUDA's, which it never calls on CPU: stand_in_for_cuda.py SITE_PACKAGES

PyPI has torch for x86-64 only as a CUDA build. Where functions are bound when they are first called, the loader is
content with an empty library of the right name, so that 1.6 GB of CUDA need not be fetched, 2.5 of 5 GB on disk.
Only libcudart and libcupti are called at import: constraints.txt has those.
"""

import shutil
import struct
import sys
from pathlib import Path

NAMED_BY_TORCH = (
    "cu13/lib/libcublas.so.13",
    "cu13/lib/libcublasLt.so.13",
    "cu13/lib/libcufft.so.12",
    "cu13/lib/libcufile.so.0",
    "cu13/lib/libcurand.so.10",
    "cu13/lib/libcusparse.so.12",
    "cu13/lib/libnvrtc.so.13",
    "cudnn/lib/libcudnn.so.9",
    "cusparselt/lib/libcusparseLt.so.0",
    "nccl/lib/libnccl.so.2",
    "nvshmem/lib/libnvshmem_host.so.3",
)
UNUSED = (
    "nixl_ep_cu13",
    "nvidia/cu13/lib/libnvperf_host.so",
    "nvidia/cu13/lib/libnvperf_target.so",
    "torch/lib/libtorch_cuda_linalg.so",
)

BIND_LAZILY = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"
"""For a .pth file: Python itself would have every function bound when a library is loaded."""

_DYN, _X86_64, _LOAD, _DYNAMIC = 3, 62, 1, 2
_STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 5, 6, 10, 11, 14
_HEADER, _SEGMENT, _TAG = 64, 56, 16


def empty_library(name: str) -> bytes:
    """An ELF shared object with a name and no symbol but the null one."""
    strings = b"\0" + name.encode() + b"\0"
    tags_at = _HEADER + 2 * _SEGMENT
    symbols_at = tags_at + 6 * _TAG
    strings_at = symbols_at + 24
    size = strings_at + len(strings)
    tags = [(_STRTAB, strings_at), (_SYMTAB, symbols_at), (_STRSZ, len(strings)), (_SYMENT, 24), (_SONAME, 1), (0, 0)]
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", _DYN, _X86_64, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 2, 0, 0, 0)
    # Readable and writable: the loader relocates the table of tags in place.
    load = struct.pack("<IIQQQQQQ", _LOAD, 6, 0, 0, 0, size, size, 0x1000)
    dynamic = struct.pack("<IIQQQQQQ", _DYNAMIC, 6, *[tags_at] * 3, 6 * _TAG, 6 * _TAG, 8)
    return identity + header + load + dynamic + b"".join(struct.pack("<QQ", *tag) for tag in tags) + bytes(24) + strings


def main() -> None:
    packages = Path(sys.argv[1])
    for name in NAMED_BY_TORCH:
        library = packages / "nvidia" / name
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(empty_library(library.name))
    (packages / "bind_lazily.pth").write_text(BIND_LAZILY, encoding="utf-8")
    for name in UNUSED:
        path = packages / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    main()
