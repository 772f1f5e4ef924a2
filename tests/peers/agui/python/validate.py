"""Reads every golden of AG-UI with `ag-ui-validate`: nothing is wrong but what `MEANT` explains.

Usage: validate.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ag_ui_validate import create_validator  # type: ignore[import-not-found]

Event = Mapping[str, Any]


def _is_cut(events: Sequence[Event], _: int) -> bool:
    """The recording behind the golden ends in the middle of a run."""
    return events[-1]["type"] not in ("RUN_FINISHED", "RUN_ERROR")


def _is_of_an_earlier_run(events: Sequence[Event], at: int) -> bool:
    """An answer begins a run, and what came of the call that waited for it stands there."""
    call = events[at]["toolCallId"]
    return any(
        event["type"] == "TOOL_CALL_START" and event["toolCallId"] == call for event in events[:at]
    )


def _is_of_an_agent(events: Sequence[Event], at: int) -> bool:
    """It is as an agent of AG-UI has sent it: ours have a prefix."""
    return not events[at].get("name", "").startswith("dragoman")


MEANT: Mapping[str, Callable[[Sequence[Event], int], bool]] = {
    "AGUI003": _is_cut,  # a run without an end
    "AGUI007": _is_cut,  # a step without an end
    "AGUI103": _is_cut,  # a message without an end
    "AGUI207": _is_of_an_earlier_run,  # a result without a call in its run
    "AGUI304": _is_of_an_agent,  # a state told whole behind what has changed of it
    "AGUI903": _is_of_an_agent,  # the name of a custom event without a prefix
}
"""Rule -> whether events break it for a good reason at this place."""


def complaints(golden: Path) -> list[str]:
    """Return what is wrong in a golden, as lines."""
    text = golden.read_text("utf-8")
    data = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    events = [json.loads(line) for line in data]
    validator = create_validator()
    for event in events:
        validator.feed(event)
    validator.finalize()
    report = validator.report()
    found: list[str] = [
        f"{one.rule} ({one.severity}) at event {one.event_index}: {one.message}"
        for one in report.diagnostics
        if one.rule not in MEANT or not MEANT[one.rule](events, one.event_index)
    ]
    return [*found, *report.internal_errors]


def main(folder: Path) -> int:
    """Validate the goldens of a folder; return the exit status."""
    goldens = sorted(folder.rglob("agui.sse"))
    wrong = 0
    for golden in goldens:
        found = complaints(golden)
        wrong += bool(found)
        for line in found:
            print(f"     {golden}: {line}")
    failed = wrong or not goldens
    name = f"ag-ui-validate {version('ag-ui-validate')}"
    print(f"{'FAIL' if failed else 'PASS'} {name} reads {len(goldens)} goldens")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
