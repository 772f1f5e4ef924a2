"""Templates: JSON as it stands in a source, into which a scripted backend puts its own values.

`filled` and `inner` put other values into members that the source has and refuse any other member,
so a scripted backend cannot invent a field; `without` leaves out a member that a page calls
optional.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

# Made once: `json.dumps` with options makes an encoder for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SORTED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def dump(value: object) -> str:
    """Write a JSON value the way the recordings do: one line, no spaces, raw UTF-8."""
    return _ENCODER.encode(value)


def dump_sorted(value: object) -> str:
    """Write a JSON value as `dump` does, the members of objects sorted by name."""
    return _SORTED.encode(value)


@functools.cache
def _parsed(data: str) -> dict[str, object]:
    members: dict[str, object] = json.loads(data)
    return members


@dataclass(frozen=True, slots=True)
class Template:
    """One event, record or body of a source.

    Args:
        source: a recording's file, or the section of a page.
        type: the type of the event or record, where it stands beside its JSON.
        data: the JSON text as it stands in the source; empty for a record without.
    """

    source: str
    type: str
    data: str

    def payload(self) -> dict[str, object]:
        """Return the members of the source, as a new dictionary."""
        return dict(_parsed(self.data))

    def filled(self, /, **members: object) -> dict[str, object]:
        """Return the members of the source with other values in the named ones.

        Raises:
            KeyError: the source has no such member.
        """
        return self._with(_parsed(self.data), members)

    def inner(self, member: str, /, **members: object) -> dict[str, object]:
        """Return an object of the source, the first of a list, with other values in it.

        Raises:
            KeyError: the source has no such member.
        """
        value = _parsed(self.data)[member]
        if isinstance(value, list):
            value = value[0]
        assert isinstance(value, dict)
        return self._with(value, members)

    def without(self, *names: str) -> "Template":
        """Return this template with members left out."""
        payload = self.payload()
        for name in names:
            del payload[name]
        return Template(self.source, self.type, dump(payload))

    def _with(
        self, values: Mapping[str, object], members: Mapping[str, object]
    ) -> dict[str, object]:
        for name in members:
            if name not in values:
                raise KeyError(f"no member `{name}` in {self.type or 'the JSON'} of {self.source}")
        return {**values, **members}
