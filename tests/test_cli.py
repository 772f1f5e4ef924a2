"""The command line: what it asks a server, what it prints, how it exits; and the demo."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from proxy import cli
from proxy.cli import printing
from proxy.tools import demo
from tests.support.ports import free_port

REPOSITORY = Path(__file__).parent.parent

SESSION = {
    "id": "s/1",
    "route": "engine",
    "dialect": "eve",
    "owner": "web",
    "state": "paused",
    "title": "a [red]title\x1b[31m\nover two lines",
    "created_at": 1_767_225_600_000,
    "updated_at": 1_767_225_601_500,
    "last_seq": 7,
}
INTERACTION = {
    "session_id": "s/1",
    "request_id": "hitl-5a2e",
    "kind": "approval",
    "prompt": "Run `rm -rf /srv`?",
    "options": [{"id": "approve", "label": "Yes"}, {"id": "deny", "label": "No"}],
    "freeform": False,
    "answerable": True,
    "details": {"tool": "bash"},
    "claimed": False,
}


@dataclass
class FakeServer:
    """A control API with one session; it remembers what it was asked."""

    url: str = ""
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    answer: Callable[[web.Request], web.Response] | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        path = request.raw_path.partition("?")[0]
        body = json.loads(text) if text else None
        self.asked.append((request.method, path, dict(request.query), body))
        self.authorizations.append(request.headers.get("Authorization"))
        if self.answer is not None:
            return self.answer(request)
        match path.removeprefix("/api/v1"):
            case "/sessions":
                return web.json_response({"version": 1, "sessions": [SESSION], "next": 41})
            case "/sessions/s%2F1":
                more = {"open_interactions": [INTERACTION], "legs": [], "aliases": ["task-1"]}
                return web.json_response({"version": 1, **SESSION, **more})
            case "/interactions":
                return web.json_response({"version": 1, "interactions": [INTERACTION]})
            case "/sessions/s%2F1/interactions/hitl-5a2e":
                given = {"version": 1, "command_id": "c-1", "status": "accepted"}
                return web.json_response(given, status=202)
        error = {"code": "not_found", "message": "There is no such session.", "details": {}}
        return web.json_response({"version": 1, "error": error}, status=404)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    async with TestServer(app) as running:
        fake.url = str(running.make_url("/"))
        yield fake


async def dragoman(
    *arguments: str, url: str = "", stdin: str | None = None, key: str | None = None
) -> Result:
    """Run a command in a thread: it has an event loop of its own."""
    environ = {"DRAGOMAN_URL": url or None, "DRAGOMAN_KEY": key}
    run = CliRunner().invoke
    return await asyncio.to_thread(run, cli.main, arguments, input=stdin, env=environ)


async def test_sessions_are_tab_separated_lines_in_a_pipe(server: FakeServer) -> None:
    done = await dragoman("sessions", "list", "--state", "paused", "--limit", "1", url=server.url)
    assert done.stdout == (
        "s/1\tpaused\teve\tengine\tweb\t2026-01-01T00:00:01+00:00\t"
        "a [red]title [31m over two lines\n"
    )
    assert done.stderr == "There are more: add --before 41\n"
    assert done.exit_code == 0
    await dragoman("sessions", "list", "--before", "41", url=server.url)
    assert server.asked == [
        ("GET", "/api/v1/sessions", {"limit": "1", "state": "paused"}, None),
        ("GET", "/api/v1/sessions", {"limit": "100", "before": "41"}, None),
    ]


async def test_on_a_terminal_there_is_a_table_and_texts_are_no_markup(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    done = await dragoman("sessions", "list", url=server.url)
    head, row, *rest = done.stdout.splitlines()
    assert head.split() == ["id", "state", "dialect", "route", "owner", "updated", "title"]
    assert "a [red]title [31m over two lines" in row
    assert rest == []


async def test_json_is_what_the_control_api_says_with_its_version(server: FakeServer) -> None:
    done = await dragoman("interactions", "list", "--json", url=server.url)
    assert json.loads(done.stdout) == {"version": 1, "interactions": [INTERACTION]}
    done = await dragoman("sessions", "list", "--json", url=server.url)
    assert json.loads(done.stdout) == {"version": 1, "sessions": [SESSION], "next": 41}
    done = await dragoman("sessions", "show", "s/1", "--json", url=server.url)
    assert json.loads(done.stdout)["open_interactions"] == [INTERACTION]


async def test_a_session_is_shown_with_what_it_waits_for(server: FakeServer) -> None:
    done = await dragoman("sessions", "show", "s/1", url=server.url)
    rows = dict(line.split("\t") for line in done.stdout.splitlines())
    assert rows["id"] == "s/1"
    assert rows["created"] == "2026-01-01T00:00:00+00:00"
    assert json.loads(rows["waits for"]) == INTERACTION
    assert rows["also called"] == "task-1"
    assert "version" not in rows


async def test_interactions_show_options_and_what_they_are_about(server: FakeServer) -> None:
    done = await dragoman("interactions", "list", url=server.url)
    assert done.stdout == (
        "s/1\thitl-5a2e\tapproval\tapprove,deny\tno\tRun `rm -rf /srv`?\t" + '{"tool":"bash"}\n'
    )


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--allow"], {"decision": "allow"}),
        (["--deny", "--reason", "not today"], {"decision": "deny", "reason": "not today"}),
        (["--option", "a", "--option", "b"], {"option_ids": ["a", "b"]}),
        (["--option", "a", "--text", "t"], {"option_ids": ["a"], "text": "t"}),
        (["--text", ""], {"text": ""}),
        (["--skip"], {"skip": True}),
        (["--sealed"], {"sealed": "hunter 2"}),
    ],
)
async def test_an_answer_says_what_was_asked(
    server: FakeServer, arguments: list[str], body: dict[str, Any]
) -> None:
    done = await dragoman(
        "answer", "s/1", "hitl-5a2e", *arguments, url=server.url, stdin="hunter 2\n"
    )
    assert (done.stdout, done.exit_code) == ("accepted\tc-1\n", 0)
    assert server.asked == [("POST", "/api/v1/sessions/s%2F1/interactions/hitl-5a2e", {}, body)]
    assert "hunter" not in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--allow", "--deny"],
        ["--allow", "--text", "x"],
        ["--skip", "--sealed"],
        ["--text", "x", "--reason", "y"],
    ],
)
async def test_an_answer_that_says_nothing_or_too_much_is_a_usage_error(
    server: FakeServer, arguments: list[str]
) -> None:
    done = await dragoman("answer", "s/1", "hitl-5a2e", *arguments, url=server.url)
    assert (done.exit_code, server.asked) == (2, [])


async def test_an_empty_pipe_is_no_secret(server: FakeServer) -> None:
    done = await dragoman("answer", "s", "r", "--sealed", url=server.url, stdin="")
    assert (done.exit_code, server.asked) == (2, [])


async def test_the_key_comes_from_option_or_environment(server: FakeServer) -> None:
    await dragoman("sessions", "list", url=server.url)
    await dragoman("sessions", "list", url=server.url, key="k-env")
    await dragoman("sessions", "list", "--key", "k-option", url=server.url, key="k-env")
    assert server.authorizations == [None, "Bearer k-env", "Bearer k-option"]


async def test_a_refusal_is_said_in_the_servers_words(server: FakeServer) -> None:
    done = await dragoman("sessions", "show", "other", url=server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "dragoman: There is no such session.\n"


async def test_a_missing_key_is_said_with_where_to_give_it(server: FakeServer) -> None:
    error = {"error": {"code": "unauthorized", "message": "This needs a key."}}
    server.answer = lambda request: web.json_response(error, status=401)
    done = await dragoman("interactions", "list", url=server.url)
    assert done.exit_code == 1
    assert "This needs a key. Give it with --key or DRAGOMAN_KEY." in done.stderr


async def test_another_kind_of_server_is_recognised(server: FakeServer) -> None:
    server.answer = lambda request: web.Response(text="<html>", status=200)
    done = await dragoman("interactions", "list", url=server.url)
    assert done.exit_code == 1
    assert "is not a Dragoman" in done.stderr


async def test_a_redirect_is_not_followed_with_the_key(server: FakeServer) -> None:
    server.answer = lambda request: web.Response(status=302, headers={"Location": "/elsewhere"})
    done = await dragoman("interactions", "list", url=server.url, key="k")
    assert (done.exit_code, len(server.asked)) == (1, 1)


async def test_without_a_server_the_error_says_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = await dragoman("sessions", "list", "--url", url)
    assert done.exit_code == 1
    assert done.stderr == (
        f"dragoman: no server can be reached at {url}: nobody listens there. "
        "Start one with `dragoman serve`, or name the one that runs with --url.\n"
    )


@pytest.mark.parametrize("url", ["nonsense", "ftp://x.example", "http://[::1"])
async def test_a_url_that_is_none_is_a_usage_error(url: str) -> None:
    done = await dragoman("sessions", "list", "--url", url)
    assert done.exit_code == 2
    assert "is not a URL" in done.stderr


async def test_request_prints_the_body_whatever_the_status(server: FakeServer) -> None:
    done = await dragoman("request", f"{server.url}api/v1/interactions")
    assert json.loads(done.stdout)["interactions"] == [INTERACTION]
    target = f"{server.url}nothing"
    done = await dragoman("request", "-H", "Authorization: Bearer x", "-d", '{"a":1}', target)
    assert json.loads(done.stdout)["error"]["code"] == "not_found"
    assert done.exit_code == 0
    await dragoman("request", "-X", "DELETE", target)
    assert [asked[0] for asked in server.asked] == ["GET", "POST", "DELETE"]
    assert server.asked[1][3] == {"a": 1}
    assert server.authorizations == [None, "Bearer x", None]
    done = await dragoman("request", "-H", "no colon", target)
    assert done.exit_code == 2
    assert (await dragoman("request", "http://127.0.0.1:1/")).exit_code == 1


# --- commands that serve, as processes of their own


@contextlib.asynccontextmanager
async def process(
    *arguments: str, cwd: Path, path: str | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command line; ended with its whole group if it has not ended by itself."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith("DRAGOMAN_")}
    environ |= {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(cwd), "PYTHONWARNINGS": "error"}
    if path is not None:
        environ["PATH"] = path
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "proxy",
        *arguments,
        cwd=cwd,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


async def output(child: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a process that ends by itself."""
    out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


async def announced(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    line = (await child.stdout.readline()).decode()
    if line.startswith("Open "):
        line = (await child.stdout.readline()).decode()
    match = re.fullmatch(r"listening on (http://\S+:\d+)\n", line)
    if match is None:
        pytest.fail(f"it says `{line}`:\n{(await output(child))[2]}")
    return match[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_says_where_it_listens_and_stops_when_told(
    tmp_path: Path, number: signal.Signals
) -> None:
    # The default name of the configuration; the environment overrides nothing of it.
    (tmp_path / "dragoman.toml").write_text('[server]\nlisten = "127.0.0.1:0"\n')
    async with process("serve", cwd=tmp_path) as child:
        url = await announced(child)
        listed = await dragoman("sessions", "list", "--json", url=url)
        assert json.loads(listed.stdout) == {"version": 1, "sessions": [], "next": None}
        child.send_signal(number)
        assert (await output(child))[0] == 0
    assert (tmp_path / "dragoman.db").exists()


async def test_a_wrong_configuration_is_status_2_and_says_each_mistake(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[server]\nlissten = "x"\n[eve]\nform = "new"\n')
    async with process("serve", "--config", str(file), cwd=tmp_path) as child:
        status, out, err = await output(child)
    assert (status, out) == (2, "")
    assert err == (
        "dragoman: the configuration is wrong:\n"
        f"  {file}: `[server]`, `lissten`: unknown key; did you mean `listen`?\n"
        f"  {file}: `[eve]`, `form`: `new` is unknown; did you mean `newest`?\n"
    )
    async with process("serve", "--config", str(tmp_path / "none.toml"), cwd=tmp_path) as child:
        status, _, err = await output(child)
    assert status == 2
    assert "none.toml: there is no such file" in err


async def test_serve_explains_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "dragoman.toml"
        file.write_text(f'[server]\nlisten = "{listen}"\n[journal]\nurl = "memory:"\n')
        async with process("serve", cwd=tmp_path) as child:
            status, out, err = await output(child)
    assert status == 1
    assert out == ""
    warning, said = err.splitlines()
    assert "no backend is configured" in warning
    assert said.startswith(f"dragoman: cannot listen on {listen}: ")


def tools_without_curl(folder: Path) -> str:
    """Make a folder with what the samples need, but for curl, and return it as a PATH."""
    for name in ("sh", "sed", "grep", "sleep"):
        found = next(
            each / name
            for each in map(Path, os.environ["PATH"].split(":"))
            if (each / name).exists()
        )
        (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.pages
async def test_the_samples_of_the_demo_work_without_curl(tmp_path: Path) -> None:
    bin_folder, work = tmp_path / "bin", tmp_path / "work"
    bin_folder.mkdir()
    work.mkdir()
    path = tools_without_curl(bin_folder)
    async with process("demo", "--check", cwd=work, path=path) as child:
        status, out, err = await output(child)
    passes = re.findall(r"^PASS {2}(.*)$", out, re.MULTILINE)
    assert passes == [sample.title for sample in demo.SAMPLES], out + err
    assert status == 0
    assert list(work.iterdir()) == []


@pytest.mark.pages
async def test_the_demo_prints_its_samples_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with process("demo", "--port", "0", cwd=tmp_path) as child:
        url = await announced(child)
        assert child.stdout is not None
        printed = ""
        while "Ctrl-C ends the demo." not in printed:
            printed += (await child.stdout.readline()).decode()
        http = demo.http_program()
        for sample in demo.SAMPLES:
            assert f"\n# {sample.title}\n{sample.text(url, http)}\n" in printed
        [folder] = tmp_path.iterdir()
        assert any(folder.iterdir())
        child.send_signal(signal.SIGTERM)
        assert (await output(child))[0] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.pages
async def test_a_demo_for_other_machines_makes_a_key_and_puts_it_into_every_command(
    tmp_path: Path,
) -> None:
    async with process("demo", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path) as child:
        port = (await announced(child)).rpartition(":")[2]
        assert child.stdout is not None
        printed = ""
        while "Ctrl-C ends the demo." not in printed:
            printed += (await child.stdout.readline()).decode()
        url, key = f"http://127.0.0.1:{port}", re.findall(r"Bearer ([\w-]{32})'", printed)[0]
        # curl, which other machines have, with the key in each request.
        http = f"curl -sS -H 'authorization: Bearer {key}'"
        for sample in demo.samples_of(key):
            assert f"\n# {sample.title}\n{sample.text(url, http)}\n" in printed
        assert f"in the place of {url}." in printed
        refused = await dragoman("sessions", "list", url=url)
        assert refused.exit_code == 1
        assert "needs a key" in refused.stderr
        listed = await dragoman("sessions", "list", "--key", key, url=url)
        assert listed.exit_code == 0, listed.stderr
        child.send_signal(signal.SIGTERM)
        await output(child)


@pytest.mark.pages
async def test_the_samples_of_a_demo_for_other_machines_work_with_its_key(tmp_path: Path) -> None:
    async with process("demo", "--check", "--host", "0.0.0.0", cwd=tmp_path) as child:
        status, out, err = await output(child)
    passes = re.findall(r"^PASS {2}(.*)$", out, re.MULTILINE)
    assert passes == [sample.title for sample in demo.samples_of("key")], out + err
    assert status == 0


def test_the_host_of_a_demo_is_a_host() -> None:
    done = CliRunner().invoke(cli.main, ["demo", "--host", "a host"])
    assert done.exit_code == 2
    assert "`a host` is not a host" in done.stderr


async def health(**environ: str) -> Result:
    """Ask for the health of the server that these variables configure."""
    names = {f"DRAGOMAN_{name}": value for name, value in environ.items()}
    return await asyncio.to_thread(CliRunner().invoke, cli.main, ["health"], env=names)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_health_asks_where_the_configuration_says_and_needs_no_credential(
    tmp_path: Path, host: str
) -> None:
    port = free_port()
    digest = hashlib.sha256(b"k").hexdigest()
    file = tmp_path / "dragoman.toml"
    file.write_text(
        f'[server]\nlisten = "{host}:{port}"\n[[keys]]\nname = "a"\nsha256 = "{digest}"\n'
    )
    assert (await health(CONFIG=str(file))).exit_code == 1
    async with process("serve", cwd=tmp_path) as child:
        await announced(child)
        # What the shell of a health check does not have, the server has been given.
        with file.open("a") as more:
            more.write('[[backends]]\nname = "x"\ndialect = "eve"\nurl = "http://x.test"\n')
            more.write('auth = { bearer_env = "NOWHERE" }\n')
        done = await health(CONFIG=str(file))
        assert (done.exit_code, done.output) == (0, "")
        elsewhere = await health(CONFIG=str(file), SERVER__LISTEN=f"127.0.0.1:{free_port()}")
        assert elsewhere.exit_code == 1
        assert "no server can be reached at http://127.0.0.1:" in elsewhere.stderr
        child.send_signal(signal.SIGTERM)
        await output(child)
    assert (await health(CONFIG=str(file))).exit_code == 1


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("127.0.0.1:0", "the server takes any free port"),
        ("nowhere", "`[server]`, `listen`: `nowhere` is not an address"),
    ],
)
async def test_health_that_cannot_be_asked_for_is_status_1(listen: str, why: str) -> None:
    done = await health(SERVER__LISTEN=listen)
    assert done.exit_code == 1
    assert why in done.stderr


async def test_health_takes_nothing_else_that_answers_for_a_server() -> None:
    async with TestServer(web.Application()) as other:
        done = await health(SERVER__LISTEN=f"127.0.0.1:{other.port}")
    assert done.exit_code == 1
    assert "with status 404 is not a Dragoman that lives" in done.stderr


def test_the_demo_takes_the_next_port_when_its_own_is_busy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < demo.free_port(port) <= port + 100


def test_no_sample_needs_more_than_sh_and_its_usual_tools() -> None:
    for sample in demo.SAMPLES:
        text = sample.text("http://127.0.0.1:1", "curl -sS")
        assert "{" not in re.sub(r"'\{.*?\}'", "", text).replace("${", "")
        programs = set(re.findall(r"(?:^|\$\(|\| ?|; |do |&& )([a-z]+)\b", text, re.MULTILINE))
        shell = {"for", "do", "done", "printf", "echo"}
        assert programs <= shell | {"break", "curl", "sed", "grep", "sleep"}, programs


async def outcomes(
    monkeypatch: pytest.MonkeyPatch, samples: Sequence[demo.Sample]
) -> list[tuple[bool, str]]:
    monkeypatch.setattr(demo, "SAMPLES", tuple(samples))
    async with contextlib.aclosing(demo.check("http://127.0.0.1:1", "echo")) as run:
        return [(outcome.passed, outcome.output) async for outcome in run]


async def test_samples_share_one_shell_and_fail_by_what_they_print(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = [
        demo.Sample("sets", "X=found\n{http} {url}", "http://127.0.0.1:1"),
        demo.Sample("uses", 'printf %s "$X"', "found"),
        demo.Sample("fails", "echo other; no-such-program", "expected"),
        demo.Sample("ends the shell", "exit 3", "never"),
    ]
    first, second, third, fourth = await outcomes(monkeypatch, samples)
    assert first == (True, "http://127.0.0.1:1")
    assert second == (True, "found")
    assert third[0] is False
    assert "other" in third[1]
    assert "not found" in third[1]
    assert fourth == (False, "")


async def test_nothing_runs_after_a_sample_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SAMPLE_SECONDS", 0.05)
    samples = [demo.Sample("hangs", "sleep 60", "x"), demo.Sample("next", "echo y", "y")]
    [(passed, printed)] = await outcomes(monkeypatch, samples)
    assert not passed
    assert "no end after" in printed


def run_check(
    monkeypatch: pytest.MonkeyPatch, run_demo: Callable[..., Coroutine[Any, Any, None]]
) -> Result:
    monkeypatch.setattr(demo, "run_demo", run_demo)
    return CliRunner().invoke(cli.main, ["demo", "--check"])


def test_a_sample_that_fails_makes_the_check_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = (demo.Sample("good", "echo a", "a"), demo.Sample("bad", "echo b", "c"))
    monkeypatch.setattr(demo, "SAMPLES", samples)

    async def run_demo(
        *, ready: Callable[[str, str | None], None], stop: asyncio.Event, **_: object
    ) -> None:
        ready("http://127.0.0.1:1", None)
        await stop.wait()

    done = run_check(monkeypatch, run_demo)
    assert done.stdout == (
        "listening on http://127.0.0.1:1\nPASS  good\nFAIL  bad\n      expected: c\n      b\n"
    )
    assert done.exit_code == 1


def test_a_demo_that_cannot_start_makes_the_check_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_demo(**_: object) -> None:
        raise OSError(98, "Address already in use")

    done = run_check(monkeypatch, run_demo)
    assert done.exit_code == 1
    assert "cannot listen: Address already in use" in done.stderr
