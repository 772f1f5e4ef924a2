"""What people see of a tool call in an eve client, folded from the records as the clients do.

The strict checker asks whether records are lawful; this asks whether what they make on the screens
is true. Two families of readers disagree about the resolution of an approval in the closed form:

* 0.80 (`foldSession` and the rows of its terminal program): a call that was `approved` runs, and a
call that runs in a turn that is closed is shown as interrupted, for good. A call whose request is
settled by another word waits until its result, and rows after one that waits are never printed.
* 0.44 to 0.64 (`defaultMessageReducer`): a resolution replaces what the call's part has, its
output included. 0.71 prints a call as interrupted that is responded to while no turn is open, and
as done where the resolution has no response.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.support.strictness import ProtocolViolation

__all__ = ["ShownCalls"]

Record = dict[str, Any]

_SETTLES = {"denied": "settled", "cancelled": "settled", "approved": "running"}


@dataclass(slots=True)
class _Call:
    turn: str
    status: str = "running"
    request: str | None = None


@dataclass(slots=True)
class ShownCalls:
    """Takes the records of one session in order, from its first one."""

    calls: dict[str, _Call] = field(default_factory=dict)
    approvals: dict[str, str] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    turn: str | None = None
    interrupted: set[str] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Take the next record.

        Raises:
            ProtocolViolation: some client would show a call as something that it is not.
        """
        data = record.get("data", {})
        match record["type"]:
            case "turn.started":
                self.turn = data["turnId"]
            case "turn.completed" | "turn.failed" | "turn.cancelled":
                self.turn = None
            case "session.waiting" | "session.completed" | "session.failed":
                self._rests(record)
            case "actions.requested":
                for action in data["actions"]:
                    self.calls.setdefault(action["callId"], _Call(data["turnId"]))
            case "input.requested":
                self._requested(data)
            case "input.resolved":
                for resolution in data["resolutions"]:
                    self._resolved(resolution, record)
            case "action.result":
                self._returned(data, record)
            case "context.cleared":
                self.calls.clear()
        self._look()

    def _requested(self, data: dict[str, Any]) -> None:
        for request in data["requests"]:
            self.open.add(request["requestId"])
            call = self.calls.get(request["action"]["callId"])
            # What a child asks, or what has no call of its own, gets no result either.
            if request["kind"] == "tool-approval" and call is not None:
                self.approvals[request["requestId"]] = request["action"]["callId"]
                if call.status != "settled":
                    call.status, call.request = "asked", request["requestId"]

    def _resolved(self, resolution: dict[str, Any], record: Record) -> None:
        request_id = resolution["requestId"]
        self.open.discard(request_id)
        call = self.calls.get(self.approvals.get(request_id, ""))
        if call is None:
            return
        if call.status == "settled":
            raise ProtocolViolation("0.44 to 0.64 take back the result they have shown", record)
        outcome = resolution["outcome"]
        if outcome in ("approved", "answered"):
            if self.turn is None:
                raise ProtocolViolation("0.71 shows this call as interrupted", record)
            if "response" not in resolution:
                raise ProtocolViolation("0.71 shows this call as done before it ran", record)
        if call.status == "asked" and call.request == request_id:
            call.status = _SETTLES.get(outcome, "asked")

    def _returned(self, data: dict[str, Any], record: Record) -> None:
        name = data["result"]["callId"]
        call = self.calls.get(name)
        if call is None:
            return
        if name in self.interrupted and data["status"] == "completed":
            raise ProtocolViolation("0.80 has shown this call as interrupted", record)
        call.status = "settled"

    def _rests(self, record: Record) -> None:
        if self.open:
            return
        for name, call in self.calls.items():
            if call.status == "asked":
                raise ProtocolViolation(f"0.80 waits for the call `{name}` for ever", record)

    def _look(self) -> None:
        for name, call in self.calls.items():
            if call.status == "running" and call.request and call.turn != self.turn:
                self.interrupted.add(name)
