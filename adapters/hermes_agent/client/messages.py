"""What is said: messages of people, texts and reasoning of the model, errors, and the end of a turn
(section 2.1).

The text of a model call that asks for tools is told by `post_api_request` only. That of the last
one is told again, and perhaps otherwise, by `post_llm_call`, which counts.
"""

from __future__ import annotations

from typing import Any

from adapters.hermes_agent import wire
from adapters.hermes_agent.client import turns
from adapters.hermes_agent.client.state import HermesState, HermesThread, Hook, ModelResult, unknown
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.errors import code_of, cut
from adapters.wire.jsonvalue import int_of, name_of, text_of

_MODEL = ("model", "platform", "user_message", "is_first_turn")


def content_of(value: Any) -> tuple[ev.Content, ...]:
    """Return what a person said: words, or parts in the form of OpenAI."""
    if isinstance(value, str):
        return (ev.Text(text=value),)
    parts: list[ev.Content] = []
    for part in value if isinstance(value, list) else ():
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            parts.append(ev.Text(text=text))
            continue
        image = part.get("image_url") if isinstance(part, dict) else None
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str) and url.startswith(("https://", "http://")):
            parts.append(ev.File(media_type="image/*", ref=ev.Url(url=url)))
        else:
            parts.append(ev.Other(dialect=wire.DIALECT, value=part))
    return tuple(parts)


def session_start(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_session_start`; a child's is told by `subagent_start`."""
    if not thread.is_main:
        return []
    model = seen.text("model")
    return [
        ev.SessionUpdated(
            thread_id=ev.MAIN,
            agent=None if model is None else {"model": model},
            native=seen.native,
            extra=seen.rest("model"),
        )
    ]


def turn_start(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `pre_llm_call`: a turn begins with what was said."""
    if thread.turn is not None and thread.turn == seen.turn:
        # It came by another way too, or its begin was inferred from what came before it.
        return []
    out = turns.begin(s, thread, seen, extra=seen.rest("user_message", "model"))
    content = content_of(seen.args.get("user_message"))
    if not content:
        return out
    assert thread.turn is not None
    if not thread.is_main:
        sent = ev.ThreadMessage(**thread.of(seen.native), direction="received", content=content)
        return [*out, sent]
    return [
        *out,
        ev.MessageReceived(
            **thread.of(seen.native), message_id=f"{thread.turn}:message", content=content
        ),
    ]


def request_start(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `pre_api_request`: a model call begins."""
    return turns.step(s, thread, seen)


def request_end(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `post_api_request`: the text of a model call, and its end."""
    request = text_of(seen.args.get("api_request_id")) or "request"
    if request in thread.told:
        return []
    out = turns.step(s, thread, seen, synthetic=True)
    response = seen.args.get("response")
    response = response if isinstance(response, dict) else {}
    message = response.get("assistant_message")
    if not isinstance(message, dict):
        message = seen.args.get("assistant_message")
    message = message if isinstance(message, dict) else {}
    text = message.get("content")
    finish = text_of(seen.args.get("finish_reason")) or text_of(response.get("finish_reason"))
    asks = bool(message.get("tool_calls")) or finish == "tool_calls"
    block = ModelResult(
        thread.streamed or request,
        text if isinstance(text, str) else "",
        seen.native,
        "tool-calls" if asks else finish,
        turns.usage_of(seen.args.get("usage") or response.get("usage")),
        seen.rest(*_MODEL, "finish_reason", "usage", "response", "assistant_message"),
    )
    thread.streamed, thread.error = None, None
    thread.told.append(request)
    thread.last = block
    if asks:
        calls = message.get("tool_calls")
        block.calls = len(calls) if isinstance(calls, list) else 0
        block.told = True
        if block.text:
            out.append(turns.whole_text(thread, block, block.text))
    return out


def request_error(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `api_request_error`. One that Hermes does not repeat is the last that is heard of its
    turn (section 2.1)."""
    said = seen.args.get("error")
    said = said if isinstance(said, dict) else {}
    code = code_of(said.get("type"), "api_request_error")
    words = cut(text_of(said.get("message")) or "The model call failed.")
    status = int_of(seen.args.get("status_code"))
    error = ev.ErrorInfo(code=code, message=words, status=status)
    tries, most = int_of(seen.args.get("retry_count")), int_of(seen.args.get("max_retries"))
    again = seen.args.get("retryable") is True and (tries or 0) < (most or 0)
    # A repeated call has the same id, and an error of its own; that may come by two ways.
    name = f"{seen.text('api_request_id')}:error:{tries}:{seen.args.get('started_at')}"
    told = name in thread.told
    out = turns.work(s, thread, seen) if told else turns.step(s, thread, seen, synthetic=True)
    thread.error = error
    thread.fails_at = seen.now + (turns.RETRIED_MS if again else turns.FAILED_MS)
    if told:
        return out + turns.end_step(thread, seen.native, error=error)
    thread.told.append(name)
    known = ("error", "retryable", *_MODEL)
    details = seen.rest(*known)
    out.append(
        ev.ErrorReported(
            **thread.of(seen.native),
            code=code,
            message=words,
            retry="retrying" if again else "terminal",
            details=details,
        )
    )
    return out + turns.end_step(thread, seen.native, error=error)


def answered(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `post_llm_call`: the whole answer of the turn, and before it what was thought."""
    final = f"{seen.turn}:final"
    if final in thread.told:
        return []
    out = turns.work(s, thread, seen)
    thread.told.append(final)
    text = text_of(seen.args.get("assistant_response"))
    if thread.last is not None and thread.last.told:
        out += turns.tell_last(thread)
    if thread.last is None and text is not None and text != thread.said:
        # The model call itself was not told.
        thread.last = ModelResult(final, text, seen.native, "stop")
    if thread.last is not None:
        out += _thought(thread, seen, thread.last)
    return out + turns.tell_last(thread, text)


def _thought(thread: HermesThread, seen: Hook, block: ModelResult) -> list[ev.Event]:
    """Return the reasoning before the last text: what came before a tool is told when the tool is
    over, and nobody could tell where it belongs."""
    history = seen.args.get("conversation_history")
    last = history[-1] if isinstance(history, list) and history else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return []
    words = text_of(last.get("reasoning")) or text_of(last.get("reasoning_content"))
    name = f"{block.block_id}:reasoning"
    if words is None or name in thread.told:
        return []
    return [
        ev.ReasoningCompleted(
            **thread.of(seen.native), block_id=name, message_id=block.block_id, text=words
        )
    ]


def turn_end(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_session_end`: the end of a turn. On exit paths it names no turn, and may say so of
    one that is over."""
    if thread.turn is None or seen.turn not in (None, thread.turn):
        return []
    turn = thread.turn
    outcome, error = "completed", thread.error
    if seen.args.get("interrupted") is True:
        # `completed` says nothing then.
        outcome, error = "interrupted", None
    elif seen.args.get("failed") is True or seen.args.get("completed") is False:
        outcome = "failed"
        why = seen.text("turn_exit_reason") or seen.text("reason")
        error = error or ev.ErrorInfo(
            code=code_of(why, "turn_failed"),
            message=cut(why or "The turn ended without an answer."),
        )
    else:
        error = None
    out = turns.end(s, thread, seen.native, outcome, error, extra=seen.rest(*_END))
    turns.put_past(thread, turn)
    return out


_END = ("completed", "interrupted", "failed", "model")


def finalized(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_session_finalize`: Hermes lets go of the session, which may be resumed."""
    out = turns.died(s, thread, seen.native)
    reason = seen.text("reason") or "closed"
    out.append(
        ev.Notice(
            thread_id=thread.thread_id,
            text=f"Hermes has put the session away: {cut(reason)}.",
            kind="session_finalized",
            native=seen.native,
            details=seen.rest(),
        )
    )
    following = seen.text("new_session_id")
    if following is not None and thread.is_main:
        updated = ev.SessionUpdated(thread_id=ev.MAIN, replaced_by=following, native=seen.native)
        out.append(updated)
    return out


def reset(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_session_reset`, which names the new session."""
    before = name_of(seen.args.get("old_session_id"))
    return [
        ev.SessionUpdated(
            thread_id=ev.MAIN,
            predecessor=before,
            native=seen.native,
            extra=seen.rest("old_session_id"),
        )
    ]


# What later versions stream (section 2.2).


def stream_start(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_stream_start`, where the turn shows that it is at work."""
    return turns.work(s, thread, seen)


def _iteration(thread: HermesThread, seen: Hook) -> str:
    """Return the block that a stream writes: a model call has no id there."""
    return f"{seen.turn or thread.turn}:stream:{seen.args.get('iteration')}"


def stream_delta(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_stream_delta`: more of a text or of reasoning."""
    text = seen.args.get("delta")
    block = _iteration(thread, seen)
    if not isinstance(text, str) or not text or block in thread.told:
        return []
    out = turns.work(s, thread, seen)
    if thread.way is None:
        thread.way = seen.way
    elif thread.way != seen.way:
        return out
    if seen.args.get("kind") == "reasoning":
        name = f"{block}:reasoning"
        made = raw.delta_of(
            ev.ReasoningDelta, text, **thread.of(seen.native), block_id=name, message_id=block
        )
        thread.told = [*(one for one in thread.told if one != name), name]
        return [*out, made]
    thread.streamed = block
    return [
        *out,
        raw.delta_of(
            ev.TextDelta, text, **thread.of(seen.native), block_id=block, message_id=block
        ),
    ]


def stream_end(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_stream_end`. The whole text is told by what follows; of one that was cut off nothing
    more comes."""
    block = _iteration(thread, seen)
    out = turns.work(s, thread, seen)
    thread.told.append(block)
    if f"{block}:reasoning" in thread.told:
        out.append(raw.BlockEnded(**thread.of(seen.native), block="reasoning"))
    if seen.args.get("finished") is False and thread.streamed == block:
        thread.streamed = None
        out.append(raw.BlockEnded(**thread.of(seen.native), block="text", status="partial"))
    return out


def interim(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `on_interim_message`: text before a tool, which `post_api_request` tells as well."""
    return [unknown(s, seen)] if seen.text("text") is None else []
