"""An encoder's plan never changes under its version: cursors count frames."""

from __future__ import annotations

import dataclasses

import pytest

from adapters.eve.server import EveEncoder
from adapters.herm.server import HermEncoder
from adapters.model.base import EncoderContext, Frame
from adapters.model.events import MAIN, Entry
from adapters.registry import DIALECTS
from tests import plans


def test_no_plan_of_a_golden_log_has_changed() -> None:
    now, before = plans.plans(), plans.stored()
    assert plans.changed(now, before) == [], (
        "the same logs give other frames: raise the encoder's `version` and keep the old encoder "
        "in `Dialect.older`, then run: python -m tests.plans --write"
    )


def test_every_golden_log_has_its_plan_in_every_face_and_version() -> None:
    now, before = plans.plans(), plans.stored()
    assert {face: set(of_face) for face, of_face in now.items()} == {
        face: set(of_face) for face, of_face in before.items()
    }, "run: python -m tests.plans --write"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'event: text_delta\ndata: {"text":"a"}\n\n', "text_delta"),
        (b'id: 7\ndata: {"type":\ndata: "RUN_STARTED"}\n\n', "RUN_STARTED"),
        (b"data: [DONE]\n\n", "-"),
        (b": beat\n\n", ":"),
        (b'{"type":"turn.started"}\n', "turn.started"),
        (b'{"text":"a"}\n', "-"),
        (b"plain words\n", "-"),
    ],
)
def test_a_frame_of_any_framing_has_a_kind(data: bytes, kind: str) -> None:
    assert plans.kind_of(Frame(0, data)) == kind


class OneMore(HermEncoder):
    """Writes one frame more than Herm's encoder does, at the end of a turn."""

    def feed(self, entry: Entry) -> list[Frame]:
        frames = super().feed(entry)
        more = frames[-1:] if entry.event.TYPE == "turn.ended" else []
        return frames + more


def test_one_frame_more_is_a_change_unless_the_version_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(number: int) -> None:
        class Other(OneMore):
            version = number

        changed = dataclasses.replace(DIALECTS["herm"], encoder=Other)
        monkeypatch.setitem(DIALECTS, "herm", changed)

    other(HermEncoder.version)
    assert "herm: engine-01-plain-text" in [
        name.replace(f"/{HermEncoder.version}", "")
        for name in plans.changed(plans.plans(), plans.stored())
    ]
    other(HermEncoder.version + 1)
    assert plans.changed(plans.plans(), plans.stored()) == []


def test_the_stream_of_a_child_has_a_plan_of_its_own() -> None:
    children = {
        face.split("/")[0]: {log.split()[0] for log in of_face if "@" in log}
        for face, of_face in plans.stored().items()
    }
    assert children["eve-all"] == children["eve-tokens"] == children["eve-newest"]
    assert len(children["eve-all"]) >= 2
    assert children["herm"] == children["engine"] == set()
    stored = plans.stored()["eve-all/1"]
    for child in children["eve-all"]:
        (key,) = (log for log in stored if log.split()[0] == child)
        assert stored[key] != stored[key.replace(child, child.split("@")[0])]


def test_one_frame_more_in_a_childs_stream_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(EveEncoder):
        def feed(self, entry: Entry) -> list[Frame]:
            frames = super().feed(entry)
            return frames if self._thread_id == MAIN else frames + frames[-1:]

    monkeypatch.setitem(DIALECTS, "eve", dataclasses.replace(DIALECTS["eve"], encoder=Other))
    assert plans.changed(plans.plans(), plans.stored())


def test_versions_say_which_they_are_and_the_older_ones_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Newest(HermEncoder):
        version = 2

    known = dataclasses.replace(DIALECTS["herm"], encoder=Newest, older={1: HermEncoder})
    monkeypatch.setitem(DIALECTS, "herm", known)
    for dialect in DIALECTS.values():
        for version, make in dialect.older.items():
            assert make(EncoderContext("s", b"")).version == version
            assert dialect.encoder is not None
            assert version < dialect.encoder.version
    made = plans.plans()
    assert made["herm/1"] == made["herm/2"] == plans.stored()["herm/1"]
