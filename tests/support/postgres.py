"""A PostgreSQL server of a test's own: Debian's programs, in a folder that goes with it.

`initdb` refuses to be run by root, so that root runs them as the user that Debian made for them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import getpass
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.ports import free_port

USER = "dragoman"

_PSQL = ("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c")


_HANG_UP = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

_EMPTY = """
DO $$ DECLARE name text; BEGIN
  FOR name IN
    SELECT tablename FROM pg_tables WHERE schemaname = 'dragoman' AND tablename <> 'meta'
  LOOP EXECUTE 'DELETE FROM dragoman.' || quote_ident(name); END LOOP;
END $$
"""


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs, the newest that is installed."""
    # What Debian has on the PATH is a script in Perl around each of them.
    folders = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(folders, key=lambda path: int(path.parts[-3]), default=None)
    found = shutil.which(name) if newest is None else str(newest)
    if found is None:
        raise RuntimeError(f"there is no `{name}`: `apt-get install postgresql`")
    return found


class PostgresServer:
    """A server with its data in `folder`, started by `start`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._numbers = itertools.count(1)
        self._as: list[str] = []
        if getpass.getuser() == "root" or os.geteuid() == 0:
            self._as = ["runuser", "-u", "postgres", "--"]
            shutil.chown(folder, "postgres")

    def make(self) -> None:
        """Make the files of a server."""
        self._run(
            program("initdb"),
            *("--pgdata", str(self._data), "--username", USER),
            *("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"),
        )

    def follow(self, primary: PostgresServer) -> None:
        """Make the files of a hot standby of a server that runs, in the place of `make`."""
        self._run(
            program("pg_basebackup"),
            *("--dbname", primary.url("postgres"), "--pgdata", str(self._data)),
            *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"),
        )

    def promote(self) -> None:
        """Make a primary of a standby."""
        self._control("--wait", "--timeout=300", "promote")

    @property
    def pid(self) -> int:
        """The process whose children serve its connections."""
        return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        options = (
            f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
        )
        log = str(self.folder / "log")
        self._control("--log", log, "--options", options, "--wait", "--timeout=300", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `immediate` is as if it had crashed."""
        self._control("--mode", mode, "--wait", "--timeout=300", "stop")

    def _control(self, *arguments: str) -> None:
        self._run(program("pg_ctl"), "--pgdata", str(self._data), *arguments)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*self._as, *command],
            cwd="/",
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout.decode(errors='replace')}")

    def url(self, database: str) -> str:
        """Return the URL of one of its databases."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def query(self, database: str, sql: str) -> list[str]:
        """Do something in a database that no journal does, and return the lines of what it says."""
        done = subprocess.run(
            [program(_PSQL[0]), *_PSQL[1:], sql, self.url(database)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        return done.stdout.decode().splitlines()

    def new_url(self) -> str:
        """Make a database and return its URL."""
        return self.url(self.new_database())

    def new_database(self) -> str:
        """Make a database and return its name."""
        name = f"test_{next(self._numbers)}"
        self.query("postgres", f"CREATE DATABASE {name}")
        return name

    def empty(self, database: str) -> None:
        """Hang up on all that use a database, and remove what a journal has stored in it: quicker
        than to make another one, and a tenth of what `TRUNCATE` takes."""
        self.query(database, f"{_HANG_UP}; {_EMPTY}")

    def hang_up(self, database: str) -> None:
        """Break all connections to a database."""
        self.query(database, _HANG_UP)

    def forget_nodes(self, database: str) -> None:
        """Let nobody wait for the lease of a process that was killed."""
        self.query(database, "DELETE FROM dragoman.nodes")


@contextlib.contextmanager
def postgres_server(primary: PostgresServer | None = None) -> Iterator[PostgresServer]:
    """Run a server in a temporary folder, or a hot standby of `primary`."""
    # Its sockets have short names only in a short folder, which another user may enter.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    server = PostgresServer(folder)
    try:
        if primary is None:
            server.make()
        else:
            server.follow(primary)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def shared_server() -> PostgresServer:
    """Return the server of this process, which is started when the first one asks."""
    stack = contextlib.ExitStack()
    server = stack.enter_context(postgres_server())
    atexit.register(stack.close)
    return server
