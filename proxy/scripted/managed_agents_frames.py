"""What the scripted Managed Agents service sends, as its data file has it: each body and event with
the recording that it was cut from, or the section of the page whose table or example it is.

A template has every member that its source allows. What an event says names its own: members that
are not set are left out (live page, section 1).
"""

import importlib.resources
import json
from collections.abc import Mapping

from proxy.scripted.templates import Template, dump

_FILE = importlib.resources.files(__package__) / "managed_agents_frames.json"
_GROUPS = json.loads(_FILE.read_text(encoding="utf-8"))


def _templates(group: str) -> Mapping[str, Template]:
    return {
        name: Template(entry["source"], name, dump(entry["data"]))
        for name, entry in _GROUPS[group].items()
    }


EVENTS = _templates("events")
"""Events of streams and lists, by type."""

OTHERS = _templates("other_server")
"""Events as a third party's server writes them, by type."""

BODIES = _templates("bodies")
"""Bodies of answers."""


def saying(template: Template, /, **members: object) -> dict[str, object]:
    """Return an event of a template's type with these members alone; those that are None are left
    out.

    Raises:
        KeyError: the source has no such member.
    """
    given = {name: value for name, value in members.items() if value is not None}
    filled = template.filled(**given)
    return {name: value for name, value in filled.items() if name in given or name == "type"}
