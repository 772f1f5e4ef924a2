"""What a server sets for its whole process; in a process of its own, since it stays set."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, resource
from proxy.base import process

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 256)))
process.set_up()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), gc.get_freeze_count() > 0, *gc.get_threshold())
"""


def test_a_server_opens_as_many_files_as_it_may_and_looks_for_garbage_less_often() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["256", "256", "True", "100000", "20", "20"]
