"""Files of a request that comes to nothing: nothing of them stays on the disk.

No session would name them, so that no deletion and no retention would ever reach them, and who has
a key could fill the disk with what nobody sees.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from proxy.session.admission import Admission
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied

FILE = b"A file that nobody has any more"
SESSION = "/as/eve/to/engine/eve/v1/session"


def said(file: bytes, **more: Any) -> dict[str, Any]:
    part = {"type": "file", "mediaType": "text/plain", "data": base64.b64encode(file).decode()}
    return {"message": [{"type": "text", "text": "read it"}, part], **more}


async def stored(dragoman: Proxied, file: bytes) -> bool:
    name = hashlib.sha256(file).hexdigest()
    return await dragoman.sessions.journal.blob(name) is not None


@pytest.mark.parametrize("journal", ["memory:", "sqlite"])
async def test_a_create_that_comes_a_second_time_leaves_no_file(
    journal: str, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}" if journal == "sqlite" else journal
    async with proxied(keys=(key_of("a"),), journal={"url": url}) as dragoman:
        first, second = [
            await dragoman.request("POST", SESSION, key="k-a", json=said(file, operationId="op-1"))
            for file in (FILE, FILE * 2)
        ]
        assert first[1]["sessionId"] == second[1]["sessionId"]
        assert await stored(dragoman, FILE)
        assert not await stored(dragoman, FILE * 2)
        await dragoman.until_idle(first[1]["sessionId"])
        status, _ = await dragoman.request(
            "DELETE", f"/api/v1/sessions/{first[1]['sessionId']}", key="k-a"
        )
        assert status == 200
        assert not await stored(dragoman, FILE)


async def test_what_is_refused_when_its_file_is_stored_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with proxied(keys=(key_of("a"),)) as dragoman:
        session = await dragoman.say("hello", key="k-a")
        await dragoman.until_idle(session)
        check, asked = Admission.check, 0

        def once(self: Admission, *given: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise self._full("something that came meanwhile")
            return check(self, *given)

        monkeypatch.setattr(Admission, "check", once)
        path = f"{SESSION}/{session}"
        status, _ = await dragoman.request("POST", path, key="k-a", json=said(FILE))
        assert status == 429
        assert not await stored(dragoman, FILE)
