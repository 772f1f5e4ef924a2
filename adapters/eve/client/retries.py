"""Requests that were refused for now, and are sent again."""

from __future__ import annotations

import dataclasses
import re

from adapters.driving.again import Again, Patience
from adapters.driving.part import soonest
from adapters.eve.client.posts import EvePosts
from adapters.eve.client.server_profile import ServerProfile
from adapters.eve.client.state import EveClientState, Retry
from adapters.model.base import Call, Response

_MESSAGE = Patience(first_ms=250, most_ms=2_000, for_ms=20_000)
"""Section 7.5: `session_not_ready` is tried again after 250 ms doubling to 2 s, for 20 s."""

_NOT_YET = Patience(first_ms=250, most_ms=4_000, tries=5)
"""0.48 to 0.58 say `session_not_active` of a session that is just being made. A busy 0.80.1 says it
of one that has just come to rest. What they refuse so is tried again after 250 ms doubling to 4 s,
five times."""

_ANSWER = Patience(first_ms=200, most_ms=200, tries=10)
"""Section 7.5: T tries answers again, 200 ms apart, while the target session is not found."""

_TOKEN = re.compile(rb'\{"continuationToken":"(?:[^"\\]|\\.)*",')
"""The begin of a body with a token."""


@dataclasses.dataclass(slots=True)
class EveRetries:
    """What is to be sent again, and when."""

    state: EveClientState
    server: ServerProfile
    posts: EvePosts

    def without_token(self, call: Call, response: Response, now: int) -> bool:
        """Send a request again without its token, where an S has come in the place of a T: it takes
        none (section 5), and has done nothing with the request."""
        posts = call.name in ("message", "answer", "negative")
        if not posts or b"continuationToken" not in response.body:
            return False
        if _TOKEN.match(call.request.body or b"") is None:
            return False
        self.server.know("S1", sure=True)
        again = self._retry_of(call, now).again
        again.wait()
        again.let_go()
        return True

    def _retry_of(self, call: Call, now: int) -> Retry:
        """Return what is kept of a call that is to be sent again."""
        retries = self.state.retries
        about = call.command_id, call.name
        known = next((r for r in retries if (r.command_id, r.name) == about), None)
        if known is None:
            body = call.request.body
            if body is not None and (token := _TOKEN.match(body)) is not None:
                body = b"{" + body[token.end() :]
            known = Retry(
                command_id=call.command_id,
                also=list(call.also),
                name=call.name,
                path=call.request.path,
                body=None if body is None else body.decode(),
                again=Again(since=now),
            )
            retries.append(known)
        return known

    def again(self, call: Call, now: int) -> bool:
        """Plan a refused request once more, as the clients do; False when its time is over."""
        known = self._retry_of(call, now)
        if known.again.refused(now, _MESSAGE if call.name == "message" else _ANSWER):
            return True
        self.state.retries.remove(known)
        return False

    def not_yet(self, call: Call, now: int) -> bool:
        """Plan a request once more that was refused by a session which may not be active yet; False
        when it is, or its time is over."""
        known = self._retry_of(call, now)
        if known.again.refused(now, _NOT_YET):
            return True
        self.state.retries.remove(known)
        return False

    def done(self, call: Call) -> None:
        """Record that a request was answered."""
        retries = self.state.retries
        self.state.retries = [
            r for r in retries if (r.command_id, r.name) != (call.command_id, call.name)
        ]

    def tick(self, now: int) -> None:
        """Make those ready whose time has come."""
        for retry in self.state.retries:
            retry.again.tick(now)

    def due(self) -> int | None:
        """Return when the next one is sent."""
        return soonest(*(retry.again.due for retry in self.state.retries))

    def take(self) -> list[Call]:
        """Return those that are to be sent now."""
        return [self._retry(retry) for retry in self.state.retries if retry.again.ready]

    def _retry(self, retry: Retry) -> Call:
        retry.again.sent()
        name, path, body = retry.name, retry.path, retry.body
        if body is None:
            call = self.posts.post(name, path, None, retry.command_id)
        else:
            call = self.posts.raw_post(name, path, self.posts.with_token(body), retry.command_id)
        return dataclasses.replace(call, also=tuple(retry.also))
