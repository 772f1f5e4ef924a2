"""What the scripted AG-UI agent sends, as its data file has it: each event, and each part of one,
with the recording that it was cut from, or the section of the page that it is of.

In place of ids, texts, times and counts a template has a word of its kind.
"""

import importlib.resources
import json
from collections.abc import Mapping

from proxy.scripted.templates import Template, dump

_FILE = importlib.resources.files(__package__) / "agui_frames.json"
_GROUPS = json.loads(_FILE.read_text(encoding="utf-8"))


def _templates(group: str) -> Mapping[str, Template]:
    return {
        name: Template(entry["source"], entry["data"].get("type", name), dump(entry["data"]))
        for name, entry in _GROUPS[group].items()
    }


EVENTS = _templates("events")
"""Events of a run."""

PARTS = _templates("parts")
"""What stands inside of events, and an error of a body that is refused."""
