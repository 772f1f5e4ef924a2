"""Nothing that anybody writes names a file: only a codec does, that of a file of its own command.

A request's body says by a hash, between two marks, where a file stands. One who could write such a
mark could have a file of somebody else's, whose hash it knows or guesses, put into its own request.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from multidict import CIMultiDict

from adapters.engine.client import EngineClient
from adapters.engine.requests import parse_execute
from adapters.eve import requests
from adapters.eve.client import EveClient
from adapters.eve.requests import parse_create
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Response
from adapters.model.file_body import FileBody
from adapters.wire.errors import ClientProtocolError

OWN, OTHERS = "a" * 64, "b" * 64
FILES = {OWN: b"mine", OTHERS: b"somebody else's"}
FORGED = f"\0{OTHERS}\0"
LONG = FORGED * 1_000
"""So long that its JSON is kept and written as it is."""
TEXTS = (FORGED, LONG, f'"{FORGED}"', f"\\u0000{OTHERS}\\u0000", f"\\{FORGED}")


def with_files(call: Call) -> Any:
    """The JSON that a backend gets, which has no file but the own one."""
    body = call.request.body
    assert body is not None
    named = body.files if isinstance(body, FileBody) else frozenset()
    assert named <= {OWN}
    whole = b"".join(body.pieces(FILES)) if isinstance(body, FileBody) else body
    assert b"\0" not in whole
    return json.loads(whole)


def message(text: str, *, engine: bool) -> cmd.SendMessage:
    given: dict[str, Any] = {text: [text, {text: text}]}
    file = ev.File(media_type=f"image/{text}", name=text, size=4, ref=ev.Blob(sha256=OWN))
    content: list[Any] = [ev.Text(text=text), file]
    content.append(
        ev.File(media_type=text, name=text, ref=ev.Url(url=f"https://example.com/{text}"))
    )
    if engine:
        content.append(ev.Other(dialect="engine", value={"type": text, **given}))
        options = {"engine_members": given}
        return cmd.SendMessage(
            content=tuple(content),
            policy="queue",
            client_context=given,
            options=options,
            edit_of=text,
        )
    return cmd.SendMessage(
        content=tuple(content), policy="queue", client_context=given, output_schema=given
    )


def answered(status: int, body: dict[str, Any]) -> Response:
    return Response(status, CIMultiDict(), json.dumps(body).encode())


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_a_message_names_a_file_to_an_engine(text: str) -> None:
    codec = EngineClient({"task_id": text})
    sent = with_files(codec.submit("k", message(text, engine=True)))
    assert (sent["task_id"], sent["edit_message_id"]) == (text, text)
    assert sent["media"][0]["source"]["data"] == "bWluZQ=="
    assert sent[text] == [text, {text: text}]


@pytest.mark.parametrize("create_takes_it", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_a_message_or_of_a_backend_names_a_file_to_an_eve(
    text: str, create_takes_it: bool
) -> None:
    codec = EveClient({})
    call = codec.submit("k", message(text, engine=False))
    if call.name == "prewarm":
        told = {"ok": True, "sessionId": "s", "continuationToken": text}
        codec.respond(call, answered(*((400, {}) if create_takes_it else (202, told))), 0)
        for info in [] if create_takes_it else codec.take_calls():
            codec.respond(info, answered(200, {"version": 1}), 0)
        # What is kept of it is read again from what is stored.
        again = EveClient({})
        again.restore(codec.snapshot(), codec.position)
        calls = [one for one in again.take_calls() if one.request.body]
        (call,) = calls or codec.take_calls()
    sent = with_files(call)
    parts = [part for part in sent["message"] if part["type"] == "file"]
    assert parts[0]["data"] == f"data:image/{text};base64,bWluZQ=="
    assert sent["clientContext"] == {text: [text, {text: text}]}
    assert sent.get("continuationToken") == (None if call.name == "create" else text)


@pytest.mark.parametrize("text", TEXTS)
def test_no_frontend_says_which_stored_file_it_means(text: str) -> None:
    ref = {"type": "blob", "sha256": OTHERS}
    part = {"type": "file", "mediaType": "a/b", "data": text, "ref": ref, "sha256": OTHERS}
    with pytest.raises(ClientProtocolError):
        parse_create(json.dumps({"message": [part]}).encode(), requests.EveFaceSettings())
    for source in (ref, {"type": "base64", "media_type": "a/b", "data": text, "sha256": OTHERS}):
        block = {"type": "image", "source": source}
        body = {"message": "x", "task_id": "t", "media": [block]}
        with pytest.raises(ClientProtocolError):
            parse_execute(json.dumps(body).encode())
