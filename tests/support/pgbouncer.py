"""PgBouncer, the pooler that Debian packages, before a PostgreSQL server of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.ports import free_port
from tests.support.postgres import USER, PostgresServer
from tests.support.waiting import SOON_S


class Pooler:
    """A pooler that gives out few connections of a server, by the transaction."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.port = free_port()
        self._folder = folder
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "pgbouncer is not installed: `make deploy-steps` needs Debian's package"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        # It refuses to be run by root.
        self._user = "postgres" if os.geteuid() == 0 else None
        (folder / "users").write_text(f'"{USER}" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"""
            [databases]
            * = host=127.0.0.1 port={server.port}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {self.port}
            unix_socket_dir =
            auth_type = trust
            auth_file = {folder / "users"}
            pool_mode = transaction
            default_pool_size = 3
            max_client_conn = 200
            logfile = {folder / "log"}
            """
        )
        if self._user is not None:
            shutil.chown(folder, self._user)

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._process = subprocess.Popen(
            [self._program, "-q", str(self._folder / "pgbouncer.ini")],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + SOON_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.02)
        raise AssertionError("pgbouncer takes no connections")

    def stop(self) -> None:
        """Stop it: all connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def url(self, database: str) -> str:
        """Return the URL of a database through it."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def pooler(server: PostgresServer) -> Iterator[Pooler]:
    """Run a pooler before a server."""
    folder = Path(tempfile.mkdtemp(prefix="pooler-", dir="/tmp"))
    try:
        made = Pooler(folder, server)
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
