"""One way to talk for the frontends of three dialects, so that a scenario is written once.

A `Talk` says something and hears what comes until the turn is over or waits for a person. Below it
are the strict clients of `tests.support`, which check every frame; after the last turn `check`
compares a full read with what was heard live.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from tests.support.engine_client import EngineClient, EngineEvent, EngineTurn
from tests.support.eve_client import Accepted, EveClient, EveSession, Style, TurnResult
from tests.support.herm_client import Envelope, HermClient, HermTurn, check_join, message

__all__ = ["TALKS", "Asked", "Heard", "Option", "Talk", "Tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A call as a frontend sees it; `status` is None while no result was shown."""

    name: str
    input: Any
    status: str | None


@dataclass(frozen=True, slots=True)
class Option:
    """A choice: what is sent for it, and what a person reads."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a person."""

    id: str
    kind: Literal["approval", "question", "other"]
    prompt: str
    options: tuple[Option, ...] = ()


@dataclass(slots=True)
class Heard:
    """What came of one input, until the turn is over or waits."""

    end: Literal["done", "waits", "failed"]
    text: str = ""
    said: str = ""
    thinking: str = ""
    tools: list[Tool] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    raw: Any = None


class Talk:
    """One conversation of one frontend; a subclass for each of them.

    `face` is the frontend's name in the output, `dialect` that of its route.
    """

    face: str
    dialect: str

    def __init__(self, http: aiohttp.ClientSession, url: Callable[[], str], name: str) -> None:
        """Keep where to talk to, and a name that no other conversation has."""
        raise NotImplementedError

    async def say(self, text: str, **members: Any) -> Heard:
        """Say something and hear the answer."""
        raise NotImplementedError

    async def answer(
        self,
        asked: Asked,
        *,
        allow: bool | None = None,
        option: str | None = None,
        text: str | None = None,
    ) -> Heard:
        """Answer a request by a decision, an option's label, or words, and hear what follows."""
        raise NotImplementedError

    async def cancel(self) -> None:
        """Stop the running turn."""
        raise NotImplementedError

    async def check(self) -> None:
        """Compare a full read with what was heard."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Let go of what is open."""


class EveTalk(Talk):
    """An eve client of the session-ID generation on the form that serves all clients."""

    face = "eve"
    dialect = "eve"
    style: Style = "S"

    def __init__(self, http: aiohttp.ClientSession, url: Callable[[], str], name: str) -> None:
        self._url = url
        self.client = EveClient(http, url(), form="all", style=self.style, beats=True)
        self.session: EveSession | None = None

    async def say(self, text: str, **members: Any) -> Heard:
        return await self.hear(await self.begin(text, **members))

    async def begin(self, text: str, **members: Any) -> Accepted | None:
        """Say something without waiting for the answer."""
        self.client.host = self._url()
        if self.session is None:
            self.session = await self.client.create(text, **members)
            return None
        return await self.session.send(text, **members)

    async def hear(self, accepted: Accepted | None = None) -> Heard:
        """Read to the end of a turn."""
        assert self.session is not None
        self.client.host = self._url()
        return heard_by_eve(await self.session.read_turn(accepted))

    async def answer(
        self,
        asked: Asked,
        *,
        allow: bool | None = None,
        option: str | None = None,
        text: str | None = None,
    ) -> Heard:
        await self.begin_answer(asked, allow=allow, option=option, text=text)
        return await self.hear()

    async def begin_answer(
        self,
        asked: Asked,
        *,
        allow: bool | None = None,
        option: str | None = None,
        text: str | None = None,
    ) -> None:
        """Answer a request without waiting for what follows."""
        assert self.session is not None
        self.client.host = self._url()
        chosen = option
        if allow is not None:
            chosen = asked.options[0 if allow else 1].id
        elif option is not None:
            chosen = next(o.id for o in asked.options if o.label == option)
        await self.session.respond(asked.id, chosen, text)

    async def answer_both(self, asked: Sequence[Asked], allow: Sequence[bool]) -> Heard:
        """Answer several approvals in one request, and hear what follows."""
        assert self.session is not None
        pairs = zip(asked, allow, strict=True)
        await self.session.respond_all(
            [
                {"requestId": one.id, "optionId": one.options[0 if yes else 1].id}
                for one, yes in pairs
            ]
        )
        return await self.hear()

    async def answer_and_say(
        self, asked: Sequence[Asked], given: Sequence[bool | str], text: str
    ) -> Heard:
        """Answer requests, each by a decision or an option's label, and say something in the same
        request; hear what follows."""
        await self.begin_answer_and_say(asked, given, text)
        return await self.hear()

    async def begin_answer_and_say(
        self, asked: Sequence[Asked], given: Sequence[bool | str], text: str
    ) -> None:
        """Answer and say something without waiting for what follows."""
        assert self.session is not None
        self.client.host = self._url()
        answers = [
            {"requestId": one.id, "optionId": _option(one, choice)}
            for one, choice in zip(asked, given, strict=True)
        ]
        await self.session.respond_all(answers, message=text)

    async def cancel(self) -> None:
        assert self.session is not None
        await self.session.cancel()

    async def check(self) -> None:
        assert self.session is not None
        again = self.client.attach(self.session.session_id)
        live = self.session.log
        whole = [record async for record in again.stream(0, follow=False)]
        assert whole[: len(live)] == live, "a full read differs from what was read live"


def _option(asked: Asked, choice: bool | str) -> str:
    if isinstance(choice, bool):
        return asked.options[0 if choice else 1].id
    return next(option.id for option in asked.options if option.label == choice)


class EveTokenTalk(EveTalk):
    """An eve client of the token generation."""

    face = "eve-t"
    style = "T"


def heard_by_eve(turn: TurnResult) -> Heard:
    """Sum up what an eve client read."""
    results = {data["result"]["callId"]: data["status"] for data in turn.data("action.result")}
    actions = [a for data in turn.data("actions.requested") for a in data["actions"]]
    tools = [
        Tool(
            str(a.get("toolName") or a.get("name")), a.get("input"), results.pop(a["callId"], None)
        )
        for a in actions
    ]
    # The result of a call that was shown before the pause.
    tools += [Tool("", None, status) for status in results.values()]
    over = set(turn.types)
    end: Literal["done", "waits", "failed"] = "done"
    if "turn.failed" in over or turn.status == "failed":
        end = "failed"
    resolved = {
        one["requestId"] for data in turn.data("input.resolved") for one in data["resolutions"]
    }
    asked = [_asked_by_eve(r) for r in turn.requests if r["requestId"] not in resolved]
    if asked or (turn.data("authorization.required") and end == "done"):
        end = "waits" if not turn.data("authorization.completed") else end
    return Heard(
        end=end,
        text=turn.text or "",
        said="".join(data["message"] or "" for data in turn.data("message.completed")),
        thinking="".join(data["reasoning"] for data in turn.data("reasoning.completed")),
        tools=tools,
        asked=asked,
        types=turn.types,
        raw=turn,
    )


def _asked_by_eve(request: dict[str, Any]) -> Asked:
    kinds: dict[str, Literal["approval", "question"]] = {
        "tool-approval": "approval",
        "question": "question",
    }
    options = tuple(Option(o["id"], o["label"]) for o in request.get("options", ()))
    return Asked(
        request["requestId"], kinds.get(request["kind"], "other"), request["prompt"], options
    )


class EngineTalk(Talk):
    """An Engine client; the body of a turn stays open over its pauses."""

    face = "engine"
    dialect = "engine"

    def __init__(self, http: aiohttp.ClientSession, url: Callable[[], str], name: str) -> None:
        self._http, self._url = http, url
        self.task_id = name
        self._events: AsyncGenerator[EngineEvent, None] | None = None

    @property
    def client(self) -> EngineClient:
        """A client of the server as it listens now."""
        return EngineClient(self._http, self._url())

    async def say(self, text: str, **members: Any) -> Heard:
        await self.aclose()
        self._events = self.client.execute(text, self.task_id, **members)
        return await self.hear()

    async def follow(self, answered: str | None = None) -> Heard:
        """Go on with a replay, as a client does whose connection broke."""
        await self.aclose()
        self._events = self.client.replay(0, self.task_id)
        return await self.hear(answered)

    async def hear(self, answered: str | None = None) -> Heard:
        """Read to the end of the turn, or to a request that is not answered yet."""
        assert self._events is not None
        turn = EngineTurn()
        asked: list[Asked] = []
        async for seen in self._events:
            turn.events.append(seen)
            if seen.event == "hitl_request" and seen.payload["request_id"] != answered:
                asked = [_asked_by_engine(seen.payload)]
                break
            if seen.event == "hitl_resolved":
                asked = []
        return _heard_by_engine(turn, asked)

    async def answer(
        self,
        asked: Asked,
        *,
        allow: bool | None = None,
        option: str | None = None,
        text: str | None = None,
    ) -> Heard:
        given = option if option is not None else text or ""
        members: dict[str, Any] = {}
        if allow is not None:
            given = "yes" if allow else "no"
            members = {} if text is None else {"feedback": text}
        await self.client.respond(self.task_id, given, **members)
        return await self.hear()

    async def check(self) -> None:
        turn = EngineTurn()
        async for seen in self.client.replay(0, self.task_id):
            turn.events.append(seen)
        assert turn.outcome is not None, "a replay of the whole task has no end"

    async def aclose(self) -> None:
        if self._events is not None:
            await self._events.aclose()
            self._events = None


def _asked_by_engine(payload: dict[str, Any]) -> Asked:
    options = tuple(Option(str(o), str(o)) for o in payload.get("options") or ())
    kind: Literal["approval", "question"] = (
        "approval" if payload["kind"] == "permission" else "question"
    )
    return Asked(payload["request_id"], kind, payload["question"], options)


def _heard_by_engine(turn: EngineTurn, asked: list[Asked]) -> Heard:
    results = {
        payload["tool_call_id"]: "failed" if "error" in payload else "completed"
        for payload in turn.payloads("tool_result")
    }
    tools = [
        Tool(payload["tool"], payload["input"], results.pop(payload["tool_call_id"], None))
        for payload in turn.payloads("tool_call")
    ]
    tools += [Tool("", None, status) for status in results.values()]
    end: Literal["done", "waits", "failed"] = "waits" if asked else "done"
    if not asked:
        assert turn.outcome is not None, f"a body without a result: {turn.types}"
        end = "failed" if turn.outcome == "failed" else "done"
    return Heard(
        end=end,
        text=turn.text,
        said=turn.text,
        thinking=turn.thinking,
        tools=tools,
        asked=asked,
        types=turn.types,
        raw=turn,
    )


class HermTalk(Talk):
    """A Herm client; its stream stays open for the life of the conversation."""

    face = "herm"
    dialect = "herm"

    def __init__(self, http: aiohttp.ClientSession, url: Callable[[], str], name: str) -> None:
        self._http, self._url = http, url
        self.session: str | None = None
        self.envelopes: list[Envelope] = []
        self._stream: AsyncGenerator[Envelope, None] | None = None
        self._agent = url().rsplit("/", 1)[-1]

    @property
    def client(self) -> HermClient:
        """A client of the server as it listens now."""
        return HermClient(self._http, self._url())

    async def say(self, text: str, **members: Any) -> Heard:
        await self.begin(text)
        return await self.hear()

    async def begin(self, text: str) -> None:
        """Say something without waiting for the answer."""
        if self.session is None:
            created = await self.client.create(self._agent)
            self.session = str(created["id"])
        if self._stream is None:
            await self.open()
        await self.client.post(self.session, message(text))

    async def open(self) -> None:
        """Open the stream behind what was heard."""
        assert self.session is not None
        last = str(self.envelopes[-1]["id"]) if self.envelopes else None
        self._stream = self.client.stream(self.session, last)
        await anext(self._stream)

    async def hear(self) -> Heard:
        """Read to the next pause or end."""
        assert self._stream is not None
        turn = HermTurn()
        async for seen in self._stream:
            turn.envelopes.append(seen)
            self.envelopes.append(seen)
            if seen["type"] == "session.status_idle":
                return _heard_by_herm(turn)
        raise AssertionError(f"the stream ends before the turn: {turn.types}")

    async def answer(
        self,
        asked: Asked,
        *,
        allow: bool | None = None,
        option: str | None = None,
        text: str | None = None,
    ) -> Heard:
        await self.begin_answer(asked, allow=allow, option=option, text=text)
        return await self.hear()

    async def begin_answer(
        self,
        asked: Asked,
        *,
        allow: bool | None = None,
        option: str | None = None,
        text: str | None = None,
    ) -> None:
        """Answer a request without waiting for what follows."""
        event: Envelope
        if allow is not None:
            event = {
                "type": "user.tool_confirmation",
                "tool_use_id": asked.id,
                "result": "allow" if allow else "deny",
            }
            if text is not None and not allow:
                event["deny_message"] = text
        else:
            event = {
                "type": "user.clarify_result",
                "request_id": asked.id,
                "answer": option if option is not None else text,
            }
        assert self.session is not None
        await self.client.post(self.session, event)

    async def answer_both(self, asked: Sequence[Asked], allow: Sequence[bool]) -> Heard:
        """Answer several approvals in one request, and hear what follows."""
        assert self.session is not None
        await self.client.post(self.session, *_confirmed(asked, allow))
        return await self.hear()

    async def answer_and_say(
        self, asked: Sequence[Asked], allow: Sequence[bool], text: str
    ) -> Heard:
        """Answer approvals and give a hint in the same request: no message is taken in it."""
        assert self.session is not None
        hint = {"type": "user.steer", "message": text}
        await self.client.post(self.session, *_confirmed(asked, allow), hint)
        return await self.hear()

    async def cancel(self) -> None:
        assert self.session is not None
        await self.client.post(self.session, {"type": "user.interrupt"})

    async def steer(self, text: str) -> None:
        """Give the running turn a hint."""
        assert self.session is not None
        await self.client.post(self.session, {"type": "user.steer", "message": text})

    async def check(self) -> None:
        assert self.session is not None
        check_join(self.envelopes, await self.client.list(self.session))

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


def _confirmed(asked: Sequence[Asked], allow: Sequence[bool]) -> list[Envelope]:
    return [
        {
            "type": "user.tool_confirmation",
            "tool_use_id": one.id,
            "result": "allow" if yes else "deny",
        }
        for one, yes in zip(asked, allow, strict=True)
    ]


def _heard_by_herm(turn: HermTurn) -> Heard:
    results = {
        payload["tool_use_id"]: "failed" if payload.get("is_error") else "completed"
        for payload in turn.payloads("agent.tool_result", "agent.mcp_tool_result")
    }
    # A use that must wait is told a second time when it asks.
    uses = {use["id"]: use for use in turn.payloads("agent.tool_use", "agent.mcp_tool_use")}
    tools = [Tool(use["tool"], use["input"], results.pop(name, None)) for name, use in uses.items()]
    tools += [Tool("", None, status) for status in results.values()]
    reason = turn.stop_reason
    asked: list[Asked] = []
    if reason["type"] == "requires_action":
        clarify = {p["request_id"]: p for p in turn.payloads("agent.clarify_request")}
        for name in reason["event_ids"]:
            if name in clarify:
                given = clarify[name]
                options = tuple(Option(str(c), str(c)) for c in given.get("choices") or ())
                asked.append(Asked(name, "question", given["question"], options))
            else:
                asked.append(Asked(name, "approval", uses[name]["tool"] if name in uses else ""))
    end: Literal["done", "waits", "failed"] = "done"
    if asked:
        end = "waits"
    elif reason["type"] != "end_turn" or turn.payloads("session.error"):
        end = "failed"
    return Heard(
        end=end,
        text=turn.text,
        said=turn.text,
        thinking=turn.thinking,
        tools=tools,
        asked=asked,
        types=turn.types,
        raw=turn,
    )


TALKS: Sequence[type[Talk]] = (EveTalk, EveTokenTalk, EngineTalk, HermTalk)
