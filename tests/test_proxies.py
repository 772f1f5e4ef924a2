"""Caddy and nginx with the files of docs/deploy.md, in front of a Dragoman over a scripted Engine.

`make deploy-steps` runs these; Debian's packages have both programs. What is changed in the files
is what a test cannot have, and nothing else:

* Caddy: the global options get free ports instead of 80 and 443, certificates of Caddy's own
  authority (`local_certs`, which is `tls internal` for all hosts), and neither an admin port nor an
  entry in the system's list of authorities.
* nginx: addresses to listen on are free ports of 127.0.0.1, the certificate is one that openssl
  signs with its own key, and a main file includes the page's, as Debian's does.
* Both: 127.0.0.1:8787 is where Dragoman listens.

The client believes both certificates and nothing else, and finds the host at 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from proxy.base.clock import Clock
from proxy.config.settings import ServerSettings
from tests.deployed import HOST, UPSTREAM, block, replaced
from tests.support.keys import key_of
from tests.support.ports import free_port
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import SOON_S

pytestmark = pytest.mark.deploy

KEY = {"authorization": "Bearer k-a"}
SESSIONS = "/as/eve/to/engine/eve/v1/session"
LIMIT = ServerSettings().max_body_bytes
SHORT_S = 3
"""What the limits of time are cut to where a test waits for them."""

PROXIES = ("caddy", "nginx")


class AtHome(AbstractResolver):
    """Finds every host on this machine."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None: ...


@dataclass
class Front:
    """A reverse proxy with TLS in front of a Dragoman, and a client of it."""

    http: aiohttp.ClientSession
    tls: ssl.SSLContext
    port: int
    plain_port: int
    dragoman: Proxied

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        headers = {**KEY, **options.pop("headers", {})}
        async with self.http.request(
            method, self.url + path, headers=headers, **options
        ) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: object) -> dict[str, Any]:
        status, text = await self.ask("POST", path, json=body)
        assert status < 300, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def raw(self, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection of one's own, and send so much."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.tls, server_hostname=HOST
        )
        writer.write(head)
        await writer.drain()
        return reader, writer


def hurried(text: str) -> str:
    """Return a file whose limits of time are short."""
    short, count = re.subn(r"\b\d+s\b", f"{SHORT_S}s", text)
    assert count >= 4
    return short


def caddy(folder: Path, text: str, ports: tuple[int, int], upstream: str) -> list[str]:
    plain, secure = ports
    options = f"http_port {plain}\nhttps_port {secure}\nadmin off\nskip_install_trust\nlocal_certs"
    file = folder / "Caddyfile"
    file.write_text(
        replaced(
            re.sub(r"\A\{\n", f"{{\n{options}\n", text),
            (options, options),
            (UPSTREAM, upstream),
        )
    )
    return ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]


def nginx(folder: Path, text: str, ports: tuple[int, int], upstream: str) -> list[str]:
    plain, secure = ports
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"),
            *("-out", certificate, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    file = folder / "dragoman.conf"
    file.write_text(
        replaced(
            text,
            ("    listen [::]:80;\n", ""),
            ("    listen [::]:443 ssl http2;\n", ""),
            ("listen 80;", f"listen 127.0.0.1:{plain};"),
            ("listen 443 ", f"listen 127.0.0.1:{secure} "),
            ("/etc/ssl/certs/dragoman.pem", str(certificate)),
            ("/etc/ssl/private/dragoman.key", str(key)),
            (UPSTREAM, upstream),
        )
    )
    temporary = "".join(
        f"{name}_temp_path {folder / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # As root its workers would be somebody else, who cannot read the test's folder.
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\npid {folder / 'pid'};\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {file};\n}}\n"
    )
    return ["nginx", "-e", "stderr", "-c", str(folder / "nginx.conf")]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a proxy that keeps everything in a folder."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }


def authority(name: str, folder: Path) -> Path:
    """Return the certificate that a client of a proxy believes."""
    if name == "caddy":
        return folder / "data/caddy/pki/authorities/local/root.crt"
    return folder / "cert.pem"


@contextlib.asynccontextmanager
async def front(
    name: str, folder: Path, *, hurry: bool = False, **tables: Any
) -> AsyncIterator[Front]:
    """Start a Dragoman and a reverse proxy in front of it, by the page's file."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, f"{name} is not installed: `make deploy-steps` needs Debian's package"
    text = block("caddyfile", "request_body") if name == "caddy" else block("nginx", "limit_conn")
    ports = free_port(), free_port()
    tables = {"keys": (key_of("a"),), **tables}
    # The limits of time are the proxy's here, which are real.
    async with proxied(engine={"pace": 0.0}, clock=Clock(), **tables) as dragoman:
        upstream = dragoman.url.removeprefix("http://")
        write = caddy if name == "caddy" else nginx
        _, *arguments = write(folder, hurried(text) if hurry else text, ports, upstream)
        log = folder / "log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                program, *arguments, env=environment(folder), cwd=folder, stdout=out, stderr=out
            )
        try:
            tls = await until_it_answers(process, authority(name, folder), ports[1], log)
            connector = aiohttp.TCPConnector(limit=0, ssl=tls, resolver=AtHome())
            async with aiohttp.ClientSession(connector=connector) as http:
                yield Front(http, tls, ports[1], ports[0], dragoman)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def until_it_answers(
    process: asyncio.subprocess.Process, authority: Path, port: int, log: Path
) -> ssl.SSLContext:
    """Wait until TLS answers with a certificate of the authority, which may not be made yet."""
    async with asyncio.timeout(SOON_S):
        while True:
            assert process.returncode is None, log.read_text()
            with contextlib.suppress(OSError):
                tls = ssl.create_default_context(cafile=str(authority))
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=tls, server_hostname=HOST
                )
                writer.close()
                return tls
            await asyncio.sleep(0.05)


async def lines_until(response: aiohttp.ClientResponse, mark: str) -> list[str]:
    """Read a stream up to the line that has `mark`."""
    lines: list[str] = []
    async with asyncio.timeout(SOON_S):
        async for line in response.content:
            lines.append(line.decode())
            if mark in lines[-1]:
                return lines
    pytest.fail(f"the stream ended before {mark}: {lines[-3:]}")


@pytest.mark.parametrize("name", PROXIES)
async def test_a_stream_of_lines_passes_piece_by_piece_and_an_approval_is_answered(
    name: str, tmp_path: Path
) -> None:
    async with front(name, tmp_path) as proxy:
        made = await proxy.post(SESSIONS, {"message": "script: approve"})
        path = f"{SESSIONS}/{made['sessionId']}"
        async with proxy.http.get(f"{proxy.url}{path}/stream", headers=KEY) as stream:
            assert stream.content_type == "application/x-ndjson"
            # The turn waits here: what was buffered on the way would never come.
            asked = json.loads((await lines_until(stream, "input.requested"))[-1])
            await lines_until(stream, "session.waiting")
            (request,) = asked["data"]["requests"]
            answer = {"requestId": request["requestId"], "optionId": "approve"}
            await proxy.post(path, {"inputResponses": [answer]})
            assert "4.1 GB freed" in (await lines_until(stream, "4.1 GB freed"))[-1]


@pytest.mark.parametrize("name", PROXIES)
async def test_server_sent_events_pass_piece_by_piece(name: str, tmp_path: Path) -> None:
    async with front(name, tmp_path) as proxy:
        engine = f"{proxy.url}/as/engine/to/engine"
        body = {"task_id": "one", "message": "script: approve"}
        async with proxy.http.post(f"{engine}/execute", json=body, headers=KEY) as stream:
            assert stream.content_type == "text/event-stream"
            text = "".join(await lines_until(stream, "request_id"))
            request = re.findall(r'"request_id":"([^"]+)"', text)[0]
            answer = {"task_id": "one", "request_id": request, "answer": "yes"}
            await proxy.post("/as/engine/to/engine/hitl/respond", answer)
            await lines_until(stream, '"completed"')


@pytest.mark.parametrize("name", PROXIES)
async def test_a_body_of_the_documented_size_passes_and_one_beyond_is_refused(
    name: str, tmp_path: Path
) -> None:
    # Dragoman would take more: who refuses is the proxy.
    larger = {"max_body_bytes": 2 * LIMIT, "max_text_bytes": 2 * LIMIT}
    async with front(name, tmp_path, server=larger) as proxy:

        async def said(size: int) -> int:
            body = io.BytesIO(json.dumps({"message": "hello"}).encode().ljust(size))
            headers = {"content-type": "application/json"}
            status, _ = await proxy.ask("POST", SESSIONS, data=body, headers=headers)
            return status

        assert await said(LIMIT) in (200, 202)
        # Caddy 2.6 says 502.
        assert await said(LIMIT + 1) in ((413,) if name == "nginx" else (413, 502))


@pytest.mark.parametrize("name", PROXIES)
async def test_a_large_head_is_refused_and_http_is_redirected(name: str, tmp_path: Path) -> None:
    async with front(name, tmp_path) as proxy:
        assert await proxy.ask("GET", "/readyz") == (200, '{"status": "ready"}')
        status, _ = await proxy.ask(
            "GET", "/readyz", headers={f"x-{n}": "x" * 7000 for n in "abcdef"}
        )
        assert status in (400, 431)
        async with proxy.http.get(
            f"http://{HOST}:{proxy.plain_port}/readyz", allow_redirects=False
        ) as response:
            assert response.status in (301, 308)
            assert response.headers["location"].startswith(f"https://{HOST}")


@pytest.mark.parametrize("name", PROXIES)
async def test_the_host_passes_and_forwarded_headers_change_nothing(
    name: str, tmp_path: Path
) -> None:
    async with front(name, tmp_path) as proxy:
        path = "/as/eve/to/engine/eve/v1/nothing"
        status, text = await proxy.ask("GET", path)
        assert status == 404
        assert f"http://{HOST}:{proxy.port}{path}" in text
        forged = {
            "x-forwarded-for": "192.0.2.1",
            "x-forwarded-host": "evil.test",
            "x-forwarded-proto": "gopher",
        }
        assert await proxy.ask("GET", path, headers=forged) == (status, text)


@pytest.mark.parametrize("name", PROXIES)
async def test_without_keys_what_comes_by_the_host_is_refused(name: str, tmp_path: Path) -> None:
    async with front(name, tmp_path, keys=()) as proxy:
        status, text = await proxy.ask("GET", "/api/v1/sessions")
        assert status == 403
        assert HOST in text


@pytest.mark.parametrize("name", PROXIES)
async def test_limits_of_time_end_what_is_slow_and_no_stream(name: str, tmp_path: Path) -> None:
    often = {"heartbeat_seconds": SHORT_S / 10}
    async with front(name, tmp_path, hurry=True, server=often) as proxy:
        engine = "/as/engine/to/engine"
        body = {"task_id": "one", "message": "script: approve"}
        async with proxy.http.post(
            f"{proxy.url}{engine}/execute", json=body, headers=KEY
        ) as stream:
            asked = (await lines_until(stream, "request_id"))[-1]
            begun = asyncio.get_running_loop().time()
            host = f"Host: {HOST}\r\n".encode()
            slow = (
                # A head that does not end, a body that does not come, a connection at rest.
                b"GET /readyz HTTP/1.1\r\n" + host,
                b"POST %b HTTP/1.1\r\n%bAuthorization: Bearer k-a\r\nContent-Length: 9\r\n\r\n{"
                % (SESSIONS.encode(), host),
                b"GET /readyz HTTP/1.1\r\n" + host + b"\r\n",
            )
            async with asyncio.timeout(SOON_S):
                for reader, writer in await asyncio.gather(*map(proxy.raw, slow)):
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
                    writer.close()
            # Nothing but signs of life has passed here for twice as long as anything may take.
            while asyncio.get_running_loop().time() < begun + 2 * SHORT_S + 1:
                assert await stream.content.readany()
            request = re.findall(r'"request_id":"([^"]+)"', asked)[0]
            answer = {"task_id": "one", "request_id": request, "answer": "yes"}
            await proxy.post(f"{engine}/hitl/respond", answer)
            await lines_until(stream, '"completed"')


async def test_nginx_takes_a_hundred_streams_of_one_address(tmp_path: Path) -> None:
    async with front("nginx", tmp_path) as proxy, contextlib.AsyncExitStack() as stack:
        made = await proxy.post(SESSIONS, {"message": "hello"})
        stream = f"{proxy.url}{SESSIONS}/{made['sessionId']}/stream"
        for _ in range(100):
            response = await stack.enter_async_context(proxy.http.get(stream, headers=KEY))
            assert response.status == 200
        assert (await proxy.ask("GET", "/readyz"))[0] == 503
