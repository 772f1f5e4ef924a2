"""The plugin of Hermes: it asks Dragoman before a tool runs, and tells it what else happens.

It runs in Hermes, from `HOME/plugins/dragoman/`, with `delivery.py` beside it. What happens is sent
in order by one thread, so that the agent does not wait. A tool call that asks is in the same queue,
and the thread of the agent waits for its answer.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.hooks.delivery import Directive, Doubt, HookSettings, Json

FOLDER = Path(__file__).parent
HOME = FOLDER.parent.parent
"""The home of Hermes that this copy is in."""

MOST_EVENTS = 1_000
"""That wait to be sent: beyond it the oldest is lost."""
MOST_PARTS = 1_000
"""Pieces of a text that are sent as one."""
FLUSH_SECONDS = 2.0
"""How long an end waits for what is not sent yet."""
TEXT = "on_stream_delta"

logger = logging.getLogger(__name__)


def register(ctx: Any) -> None:
    """Take all events that this Hermes has and we want. Without `delivery.py` no tool runs."""
    try:
        delivery = load_delivery(FOLDER / "delivery.py")
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody could be asked
        message = f"Not allowed by Dragoman: its plugin in {FOLDER} is broken: {error!r}."
        ctx.register_hook("pre_tool_call", lambda **_: {"action": "block", "message": message})
        return
    outbox = HookOutbox(delivery, HOME)
    for event in known_events(delivery):
        ctx.register_hook(event, outbox.callback(event))
    atexit.register(outbox.flush)


def load_delivery(file: Path) -> Any:
    """Return the module `delivery` from its file."""
    name = f"{__name__}.delivery"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_events(delivery: Any) -> list[str]:
    """Return the events that we want and this Hermes has: it warns of others."""
    known: Any = delivery.EVENTS_0_19
    try:
        known = {*importlib.import_module("hermes_cli.plugins").VALID_HOOKS, delivery.GATE}
    except Exception as error:  # noqa: BLE001 - another version may have it elsewhere
        logger.info("dragoman: the events of this Hermes are not known: %r", error)
    return [event for event in delivery.EVENTS if event in known]


@dataclass(slots=True, eq=False)
class QueuedEvent:
    """An event that is not sent yet."""

    payload: Json
    settings: HookSettings | None = None
    """Of a tool call that asks."""
    started: float = field(default_factory=time.monotonic)
    parts: list[str] = field(default_factory=list)
    """What followed a piece of text."""
    handled: threading.Event = field(default_factory=threading.Event)
    """It was sent or is lost; of what asks, there is an answer."""
    sent: threading.Event = field(default_factory=threading.Event)
    answer: Directive = field(default_factory=dict)

    def joins(self, payload: Json) -> bool:
        """Whether an event is the next piece of the same text."""
        return (
            payload["hook_event_name"] == TEXT
            and len(self.parts) < MOST_PARTS
            and _text_key(payload) == _text_key(self.payload)
        )


def _text_key(payload: Json) -> tuple[Any, ...]:
    extra = payload["extra"]
    ids = (extra.get("turn_id"), extra.get("iteration"), extra.get("kind"))
    return (payload["hook_event_name"], payload["session_id"], *ids)


class HookOutbox:
    """What is to be sent, in order, and the thread that sends it.

    Only one thing is sent at a time, but a tool call that was sent waits in a thread of its own:
    other agents of this process go on.
    """

    def __init__(self, delivery: Any, home: Path, times: Any = None) -> None:
        self._delivery = delivery
        self._home = home
        self._times = times or delivery.TIMES
        self._changed = threading.Condition()
        self._queue: deque[QueuedEvent] = deque()
        self._last: QueuedEvent | None = None
        """The event that was put in last, until it is handled."""
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._fails = False
        """Whether the last one did not arrive."""

    def callback(self, event: str) -> Callable[..., Directive | None]:
        """Return what Hermes calls at an event."""
        act = self._gate if event == self._delivery.GATE else self._watch

        def dragoman_hook(**arguments: Any) -> Directive | None:
            try:
                return act(self._delivery.payload_of(event, arguments))
            except Exception as error:  # noqa: BLE001 - Hermes must go on, whatever it is
                logger.warning("dragoman: the hook %s failed: %r", event, error)
                return None

        return dragoman_hook

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all is sent, but not longer than some seconds; tell whether it is."""
        last = self._last
        return last is None or last.handled.wait(seconds)

    def _watch(self, payload: Json) -> None:
        item = self._put(QueuedEvent(self._snapshot(payload)))
        if payload["hook_event_name"] in self._delivery.LAST_EVENTS:
            item.handled.wait(FLUSH_SECONDS)

    def _gate(self, payload: Json) -> Directive | None:
        """Return whether a tool call is blocked, and wait for it if the call asks."""
        settings = None
        try:
            settings = self._delivery.read_settings(self._home)
            if not self._delivery.is_gated(settings, payload):
                self._watch(payload)
                return None
            item = self._put(QueuedEvent(self._snapshot(payload), settings))
            if item.handled.wait(settings.wait_seconds + self._times.spare):
                return item.answer or None
            doubt = self._doubt(f"Dragoman gave no decision in {settings.wait_seconds:g} seconds")
        except self._delivery.Doubt as error:
            doubt = error
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody decided
            doubt = self._doubt(f"the hook failed: {error!r}")
        return self._delivery.directive(doubt, settings) or None

    def _doubt(self, happened: str) -> Doubt:
        doubt: Doubt = self._delivery.Doubt(happened, self._delivery.LOOK)
        return doubt

    def _snapshot(self, payload: Json) -> Json:
        """Return an event as it is now: the agent goes on with its objects."""
        snapshot: Json = self._delivery.plain(self._delivery.trim(payload))
        return snapshot

    def _put(self, item: QueuedEvent) -> QueuedEvent:
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="dragoman", daemon=True)
                self._thread.start()
            if self._queue and self._queue[-1].joins(item.payload):
                self._queue[-1].parts.append(str(item.payload["extra"].get("delta", "")))
                return self._queue[-1]
            self._queue.append(item)
            self._last = item
            if len(self._queue) > MOST_EVENTS:
                self._drop_oldest()
            self._changed.notify_all()
        return item

    def _drop_oldest(self) -> None:
        """Lose the oldest event that nobody waits for."""
        for at, item in enumerate(self._queue):
            if item.settings is None:
                del self._queue[at]
                self._dropped += 1
                item.handled.set()
                return

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                item = self._queue.popleft()
            try:
                if item.settings is None:
                    self._tell(item)
                else:
                    threading.Thread(target=self._ask, args=(item,), daemon=True).start()
                    # What comes after it is sent after it.
                    item.sent.wait(self._times.connect + self._times.answer)
            except Exception as error:  # noqa: BLE001 - the thread must outlive a bad event
                self._lost(1, error)
                if item.settings is not None:
                    self._settle(item, self._doubt(f"the hook failed: {error!r}"))
            finally:
                if item.settings is None:
                    item.handled.set()

    def _tell(self, item: QueuedEvent) -> None:
        if item.parts:
            extra = item.payload["extra"]
            extra["delta"] = "".join((str(extra.get("delta", "")), *item.parts))
        dropped = self._take_dropped()
        away = (self._delivery.Unreachable, self._delivery.ConnectionBroken)
        try:
            settings = self._delivery.read_settings(self._home)
            delivery = self._delivery.make_delivery(item.payload, "plugin", dropped=dropped)
            while True:
                try:
                    self._delivery.tell(
                        settings, delivery, times=self._times, again=not self._fails
                    )
                    break
                except away:
                    if not self._awaits_server(item):
                        raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it did not arrive
            self._lost(
                dropped + 1, error, away=isinstance(error, (*away, self._delivery.OutOfTime))
            )
        else:
            self._fails = False

    def _awaits_server(self, item: QueuedEvent) -> bool:
        """Wait a moment for a server that is away; not while a tool call waits behind an event,
        nor for one that is old."""
        with self._changed:
            asks = any(one.settings is not None for one in self._queue)
            if asks or time.monotonic() - item.started >= self._times.away:
                return False
            self._changed.wait(self._times.pause)
        return True

    def _take_dropped(self) -> int:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def _lost(self, events: int, error: Exception, *, away: bool = False) -> None:
        """Count lost events. If the server is away, a tool call does not wait for more of them."""
        if not self._fails:
            logger.warning("dragoman: events are lost: %s", error)
        with self._changed:
            self._fails = True
            self._dropped += events
            asks = any(item.settings is not None for item in self._queue)
            while away and asks and self._queue[0].settings is None:
                self._drop_oldest()

    def _ask(self, item: QueuedEvent) -> None:
        """Ask about a tool call, in a thread of its own."""
        settings, dropped = item.settings, self._take_dropped()
        assert settings is not None
        wait = item.started + settings.wait_seconds - time.monotonic()
        try:
            delivery = self._delivery.make_delivery(
                item.payload, "plugin", wait=max(round(wait), 1), dropped=dropped
            )
            decision = self._delivery.ask(
                settings,
                delivery,
                started=item.started,
                wait=settings.wait_seconds,
                times=self._times,
                sent=item.sent.set,
            )
            self._settle(item, decision)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody decided
            with self._changed:
                self._dropped += dropped
            known = isinstance(error, self._delivery.Doubt)
            self._settle(item, error if known else self._doubt(f"the hook failed: {error!r}"))

    def _settle(self, item: QueuedEvent, outcome: Any) -> None:
        """Answer a tool call by a decision or a doubt."""
        item.answer = self._delivery.directive(outcome, item.settings)
        item.sent.set()
        item.handled.set()
