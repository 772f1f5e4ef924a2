"""Large blocks of memory are mappings, also after one was freed; in a process of its own, since
what is set there holds for the whole of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
from proxy import blocks

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd",
        "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if sys.argv[1] == "set":
    blocks.set_up()
del (freed := [bytes(30_000_000)])[:]
before = libc.mallinfo2().hblks
kept = bytes(2 * blocks.LARGE_BYTES)
large = libc.mallinfo2().hblks
small = bytes(blocks.LARGE_BYTES // 2)
print(large - before, libc.mallinfo2().hblks - large)
"""


@pytest.mark.parametrize(("how", "mappings"), [("set", "1 0"), ("left", "0 0")])
def test_a_large_block_is_a_mapping_though_one_was_freed(how: str, mappings: str) -> None:
    try:
        ctypes.CDLL(None).mallinfo2  # noqa: B018 - asked for only
    except (AttributeError, OSError, TypeError):
        pytest.skip("only glibc has the threshold, and `mallinfo2` that tells of it")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == mappings
