"""Writes the outcome of comparisons for a CI."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: it fails where there are `lines`, is an error where `error` says why it could
    not be done, and is skipped where `skipped` says why it was not."""

    name: str
    lines: Sequence[str] = ()
    error: str | None = None
    skipped: str | None = None


def junit(command: str, cases: Sequence[Case]) -> bytes:
    """Return JUnit XML with a test case for each comparison that a command has made."""
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(bool(case.lines) for case in cases)),
        "errors": str(sum(case.error is not None for case in cases)),
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": f"dragoman {command}", **counts})
    for one in cases:
        names = {"classname": f"dragoman.{command}", "name": one.name}
        case = ET.SubElement(suite, "testcase", names)
        if one.lines:
            failure = ET.SubElement(case, "failure", {"message": one.lines[0]})
            failure.text = "\n".join(one.lines)
        elif one.error is not None:
            ET.SubElement(case, "error", {"message": one.error})
        elif one.skipped is not None:
            ET.SubElement(case, "skipped", {"message": one.skipped})
    text: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
