"""The configuration of Hermes is edited as text: our entries come and go, all else stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.hooks.setup.config_edit import ConfigEdit
from proxy.hooks.setup.config_proof import ConfigEntries
from proxy.hooks.setup.yaml_text import EditRefused

COMMAND = "/opt/bin/dragoman hook --home '/home/a b/.hermes'"
TIMEOUTS = {"on_session_start": 15, "pre_tool_call": 255, "post_tool_call": 15}
ALL = ConfigEntries(COMMAND, TIMEOUTS, plugin=True, callback_timeout=255)
SHELL = ConfigEntries(COMMAND, TIMEOUTS)
PLUGIN = ConfigEntries(plugin=True, callback_timeout=255)
NOTHING = ConfigEntries()


def is_ours(command: str) -> bool:
    return "dragoman hook" in command


def edit(
    text: str, wanted: ConfigEntries, before: dict[str, str | None], seconds: int | None = 255
) -> str:
    return ConfigEdit(text, wanted, is_ours, before, seconds).edited()


def entries(text: str) -> list[tuple[str, int]]:
    """Return our shell hooks in a configuration."""
    hooks = (yaml.safe_load(text) or {}).get("hooks") or {}
    return [
        (event, one["timeout"])
        for event, items in hooks.items()
        for one in items or ()
        if isinstance(one, dict) and one.get("command") == COMMAND
    ]


CONFIGS = {
    "empty": "",
    "comments only": "# nothing yet\n",
    "a bare document": "---\n",
    "other keys": "model:\n  default: a # b\n\n# The end.\n",
    "no last newline": "model: a",
    "hooks without a value": "hooks:\nmodel: a\n",
    "hooks without a value and newline": "model: a\nhooks:",
    "a comment behind hooks": "hooks:  # mine\n  # pre_tool_call: later\nmodel: a\n",
    "null": "hooks: null # none\nplugins: ~\n",
    "empty braces": "hooks: {} # none\nplugins: {}\n",
    "empty brackets": "hooks:\n  pre_tool_call: []\nplugins:\n  enabled: [ ]\n",
    "events without a value": "hooks:\n  pre_tool_call:\n  # c\n  post_tool_call:\n",
    "others' hooks": (
        "# Hooks.\nhooks:\n  # Guard.\n  pre_tool_call:\n    # First.\n    - matcher: terminal\n"
        "      command: /opt/guard # trailing\n      # of the guard\n"
        "  on_session_end:\n  - command: |\n      /opt/end\n    timeout: 5\n  output_spill:\n"
        "    max: 1\n\nmodel: a\n"
    ),
    "hooks in brackets": (
        "hooks:\n  pre_tool_call: [{command: /a, timeout: 3}, {command: /b}, ] # c\n"
        "plugins: # p\n  enabled: [a, 'b']\n  hook_callback_timeout: 30 # seconds\n"
    ),
    "plugins in a block": (
        "plugins:\n    enabled:\n    - a\n    # - b\n    disabled: [c]\nhooks: {}\n"
    ),
    "a timeout that is enough": "plugins:\n  hook_callback_timeout: 400\n",
    "a timeout without a value": "plugins:\n  hook_callback_timeout:\n  enabled:\n",
    "Windows lines": "hooks:\r\n  pre_tool_call:\r\n    - command: /a\r\nmodel: b\r\n",
    "the end of a document": "model: a\n...\n",
    "anchors elsewhere": "x: &b {y: 1}\nz: *b\nhooks:\n  pre_tool_call:\n    - command: /a\n",
    "a NaN": "x: .nan\nday: 2026-01-02\n",
    "an indented document": "  model: a\n  hooks:\n    pre_tool_call:\n",
    "a block of text at the end": "hooks:\n  pre_tool_call:\n    - command: >\n        /a\n",
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("wanted", [ALL, SHELL, PLUGIN], ids=["all", "shell", "plugin"])
def test_what_comes_goes_again_and_leaves_the_same_text(name: str, wanted: ConfigEntries) -> None:
    text = CONFIGS[name]
    before: dict[str, str | None] = {}
    installed = edit(text, wanted, before)
    assert sorted(entries(installed)) == sorted(wanted.timeouts.items())
    loaded = yaml.safe_load(installed)
    if wanted.plugin:
        assert loaded["plugins"]["enabled"][-1] == "dragoman"
        assert loaded["plugins"]["hook_callback_timeout"] >= 255
    recorded = dict(before)
    assert edit(installed, wanted, before) == installed
    assert before == recorded
    assert edit(installed, NOTHING, before) == text
    assert before == {}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_installation_only_adds_lines_where_no_value_is_replaced(name: str) -> None:
    text = CONFIGS[name]
    before: dict[str, str | None] = {}
    lines = iter(edit(text, SHELL, before).splitlines())
    replaced = any(source and source.strip() for source in before.values())
    if not replaced and "[{" not in text:
        assert all(line in lines for line in text.splitlines())


def test_others_stay_before_ours_and_comments_beside_what_they_are_about() -> None:
    found = edit(CONFIGS["others' hooks"], SHELL, {})
    assert found == (
        "# Hooks.\nhooks:\n  # Guard.\n  pre_tool_call:\n    # First.\n    - matcher: terminal\n"
        "      command: /opt/guard # trailing\n      # of the guard\n"
        f'    - command: "{COMMAND}"\n      timeout: 255\n'
        "  on_session_end:\n  - command: |\n      /opt/end\n    timeout: 5\n  output_spill:\n"
        "    max: 1\n"
        f'  on_session_start:\n    - command: "{COMMAND}"\n      timeout: 15\n'
        f'  post_tool_call:\n    - command: "{COMMAND}"\n      timeout: 15\n\nmodel: a\n'
    )


def test_the_lines_of_a_file_end_as_its_first_does() -> None:
    found = edit(CONFIGS["Windows lines"], ALL, {})
    assert found.count("\n") == found.count("\r\n") > 10


def test_another_command_or_timeout_is_written_into_the_entry_that_is_there() -> None:
    text = (
        "hooks:\n  pre_tool_call:\n"
        "    - command: /old/dragoman hook # ours\n      timeout: 60 # s\n      matcher: terminal\n"
        "  on_session_start: [{command: /old/dragoman hook}]\n"
        "  on_gone:\n    - command: /old/dragoman hook\n"
        "  post_tool_call:\n    - command: /a\n    - command: /old/dragoman hook\n"
    )
    found = edit(text, SHELL, {})
    assert found == (
        "hooks:\n  pre_tool_call:\n"
        f'    - command: "{COMMAND}" # ours\n      timeout: 255 # s\n      matcher: terminal\n'
        f'  on_session_start: [{{timeout: 15, command: "{COMMAND}"}}]\n'
        "  post_tool_call:\n    - command: /a\n"
        f'    - timeout: 15\n      command: "{COMMAND}"\n'
    )


def test_of_two_entries_of_ours_one_stays() -> None:
    ours = "    - command: /old/dragoman hook\n      timeout: 1\n"
    found = edit(f"hooks:\n  pre_tool_call:\n{ours}    - command: /b\n{ours}", SHELL, {})
    hooks = yaml.safe_load(found)["hooks"]["pre_tool_call"]
    assert hooks == [{"command": COMMAND, "timeout": 255}, {"command": "/b"}]


def test_what_hermes_has_written_anew_is_taken_out_as_well() -> None:
    text = "hooks: {}\nplugins:\n  enabled: []\n  hook_callback_timeout: 20\n"
    before: dict[str, str | None] = {}
    again = yaml.safe_dump(yaml.safe_load(edit(text, ALL, before)))
    assert yaml.safe_load(edit(again, NOTHING, before)) == yaml.safe_load(text)


def test_a_callback_timeout_follows_ours_and_goes_back_to_its_own() -> None:
    text = "plugins:\n  hook_callback_timeout: 30\n"
    before: dict[str, str | None] = {}
    first = edit(text, PLUGIN, before)
    shorter = ConfigEntries(plugin=True, callback_timeout=25)
    second = edit(first, ConfigEntries(plugin=True, callback_timeout=60), before)
    assert yaml.safe_load(second)["plugins"]["hook_callback_timeout"] == 60
    third = edit(second, shorter, before, 60)
    assert yaml.safe_load(third)["plugins"]["hook_callback_timeout"] == 30
    assert edit(third, NOTHING, before, 25) == text


def test_a_callback_timeout_that_somebody_changed_since_stays() -> None:
    before: dict[str, str | None] = {}
    text = edit("plugins:\n  hook_callback_timeout: 30\n", PLUGIN, before)
    changed = text.replace("255", "999")
    found = yaml.safe_load(edit(changed, NOTHING, before))
    assert found == {"plugins": {"hook_callback_timeout": 999}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nhooks:\n\tx: 1\n", "line 3: it is not YAML"),
        ("a: [1\n", "it is not YAML"),
        ("- a\n", "it is not a mapping"),
        ("{a: 1}\n", "it is written in braces"),
        ("hooks: {pre_tool_call: [{command: /a}]}\n", "line 1: `hooks` is written in braces"),
        ("hooks: [a]\n", "line 1: `hooks` is not what Hermes expects there"),
        ("hooks:\n  pre_tool_call: {command: /a}\n", "line 2: `hooks.pre_tool_call` is not a list"),
        ("hooks:\n  pre_tool_call: &x\n    - command: /a\n", "line 2: `hooks` has an anchor"),
        ("x: &x [{command: /a}]\nhooks:\n  pre_tool_call: *x\n", "line 3: `hooks` has an anchor"),
        ("hooks:\nhooks:\n", "line 2: `hooks` is there twice"),
        ("hooks:\n  pre_tool_call:\n  pre_tool_call:\n", "line 3: `pre_tool_call` is there twice"),
        ("a: 1\n---\nb: 2\n", "it is not YAML"),
        ("a: !secret x\n", "it is not YAML that Hermes can load"),
        ("a: 9999-99-99\n", "it is not YAML that Hermes can load"),
        ("? [a]\n: 1\n", "line 1: it is not YAML that Hermes can load: found unhash"),
        ("x: &x {a: 1}\nplugins: *x\n", "line 2: `plugins` has an anchor"),
        ("hooks:\n  - - a\n", "`hooks` is not what Hermes expects there"),
        ("plugins: {a: 1}\n", "line 1: `plugins` is written in braces"),
        ("plugins:\n  enabled: dragon\n", "line 2: `plugins.enabled` is not a list"),
        ("model: |+\n  a", "it is written in a way that cannot be edited"),
    ],
)
def test_what_cannot_be_edited_is_refused_with_its_line_and_what_to_add(
    text: str, why: str
) -> None:
    editing = ConfigEdit(text, ALL, is_ours, {})
    with pytest.raises(EditRefused) as error:
        editing.edited()
    assert why in str(error.value)
    lines = editing.lines_by_hand()
    loaded = yaml.safe_load("\n".join(lines))
    assert loaded["hooks"]["pre_tool_call"] == [{"command": COMMAND, "timeout": 255}]
    assert loaded["plugins"] == {"enabled": ["dragoman"], "hook_callback_timeout": 255}


def test_what_is_not_to_change_need_not_be_editable() -> None:
    text = "hooks: {pre_tool_call: [{command: /a}]}\nplugins: {a: &b 1, c: *b}\n"
    assert edit(text, NOTHING, {}) == text


# Drawn configurations.

names = st.sampled_from(["pre_tool_call", "post_tool_call", "on_session_end", "output_spill"])
comments = st.sampled_from(["", "", " # a comment", "  # it's: [x]"])
scalars = st.sampled_from(
    ["a", "'b c'", '"d: #e"', "3", "~", "true", "é", "|\n%sx\n%sy", ">-\n%sx"]
)


@st.composite
def items(draw: st.DrawFn, indent: int) -> str:
    """Draw an entry of a list of hooks, of other people."""
    inner = " " * (indent + 4)
    lines = [" " * indent + "- command: " + draw(scalars).replace("%s", inner) + "\n"]
    if draw(st.booleans()):
        lines.append(" " * (indent + 2) + f"timeout: {draw(st.integers(1, 9))}{draw(comments)}\n")
    if draw(st.booleans()):
        lines.append(" " * draw(st.integers(0, indent + 3)) + "# between\n")
    return "".join(lines)


@st.composite
def lists(draw: st.DrawFn, key: str, indent: int) -> str:
    """Draw a list below a key: absent, empty, in brackets or a block."""
    head = " " * indent + f"{key}:"
    match draw(st.integers(0, 4)):
        case 0:
            return f"{head}{draw(comments)}\n"
        case 1:
            return f"{head} {draw(st.sampled_from(['[]', 'null', '~', '[ ]']))}{draw(comments)}\n"
        case 2:
            return f"{head} [{{command: /a}}, {{command: 'b', timeout: 2}}]{draw(comments)}\n"
        case _:
            inner = indent + draw(st.sampled_from([0, 2, 4]))
            found = draw(st.lists(items(inner), min_size=1, max_size=3))
            return f"{head}{draw(comments)}\n" + "".join(found)


@st.composite
def configs(draw: st.DrawFn) -> str:
    """Draw a configuration."""
    indent = draw(st.sampled_from([2, 4]))
    parts = []
    if draw(st.booleans()):
        events = draw(st.lists(names, unique=True, max_size=3))
        below = "".join(draw(lists(event, indent)) for event in events)
        empty = draw(st.sampled_from(["", " {}", " ~", "   {}"]))
        parts.append(f"hooks:{'' if below else empty}{draw(comments)}\n{below}")
    if draw(st.booleans()):
        below = ""
        if draw(st.booleans()):
            style = draw(st.sampled_from([" [a, b]", " []", "", f"\n{' ' * indent}- a"]))
            below += f"{' ' * indent}enabled:{style}{draw(comments)}\n"
        if draw(st.booleans()):
            seconds = draw(st.sampled_from([" 30", " 300", "", " 4.5", " ~"]))
            below += f"{' ' * indent}hook_callback_timeout:{seconds}{draw(comments)}\n"
        parts.append(f"plugins:{draw(comments)}\n{below}")
    for number in range(draw(st.integers(0, 3))):
        value = draw(scalars).replace("%s", "  ")
        parts.append(f"key{number}: {value}\n" + draw(st.sampled_from(["", "\n", "# note\n"])))
    text = "".join(draw(st.permutations(parts)))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    # A block of text without a last newline would get one.
    if text.rstrip()[-1:] not in ("x", "y") and draw(st.booleans()):
        return text.removesuffix("\n").removesuffix("\r")
    return text


def same(one: Any, other: Any) -> bool:
    return bool(yaml.safe_dump(one) == yaml.safe_dump(other))


def without_ours(data: Mapping[str, Any] | None) -> Any:
    """Return what others have in a configuration, without what is empty."""
    found = dict(data or {})
    hooks = {
        event: [one for one in value if one.get("command") != COMMAND]
        if isinstance(value, list)
        else value
        for event, value in (found.pop("hooks", None) or {}).items()
    }
    plugins = dict(found.pop("plugins", None) or {})
    plugins["enabled"] = [name for name in plugins.get("enabled") or () if name != "dragoman"]
    seconds = plugins.pop("hook_callback_timeout", None)
    found["hooks"] = {event: value for event, value in hooks.items() if value}
    return found, plugins, seconds if isinstance(seconds, int) and seconds > 255 else None


@settings(max_examples=40)
@given(configs(), st.sampled_from([ALL, SHELL, PLUGIN]))
def test_a_drawn_configuration_gets_ours_and_is_the_same_without(
    text: str, wanted: ConfigEntries
) -> None:
    original = yaml.safe_load(text)
    before: dict[str, str | None] = {}
    installed = edit(text, wanted, before)
    loaded = yaml.safe_load(installed)
    assert sorted(entries(installed)) == sorted(wanted.timeouts.items())
    assert same(without_ours(loaded), without_ours(original))
    removed = edit(installed, NOTHING, before)
    assert removed == text
    assert same(yaml.safe_load(removed), original)


@settings(max_examples=25)
@given(configs(), st.data())
def test_one_way_after_the_other_comes_and_goes(text: str, data: st.DataObject) -> None:
    before: dict[str, str | None] = {}
    found = text
    for wanted in data.draw(st.lists(st.sampled_from([ALL, SHELL, PLUGIN, NOTHING]), max_size=4)):
        found = edit(found, wanted, before)
        assert sorted(entries(found)) == sorted(wanted.timeouts.items())
    removed = edit(found, NOTHING, before)
    assert same(yaml.safe_load(removed), yaml.safe_load(text))
