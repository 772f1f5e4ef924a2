"""What a contributor finds: hooks, workflows and forms do what the project's commands do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from adapters.registry import DIALECTS
from tests.test_project import make_targets

REPOSITORY = Path(__file__).parent.parent
GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
FORMS = sorted(set((GITHUB / "ISSUE_TEMPLATE").iterdir()) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})


def load(file: Path) -> Any:
    """Read a YAML file with strings only: to YAML 1.1 `on` is a truth value."""
    return yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


# The hooks


def linters() -> set[str]:
    """Return what `make lint` runs, as one would type it."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (recipe,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    variables = {"$(PY)": "$(VENV)/bin/python", "$(VENV)": ".venv", " --quiet": ""}
    for name, value in variables.items():
        recipe = recipe.replace(name, value)
    return {line.strip("\t@").partition("||")[0].strip() for line in recipe.splitlines()}


def test_a_commit_is_checked_by_the_same_tools_as_make_lint() -> None:
    (local,) = load(REPOSITORY / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["entry"] for hook in local["hooks"]} == linters()
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    # The whole project, as `make lint` does: a change breaks types and contracts elsewhere.
    assert {hook["pass_filenames"] for hook in local["hooks"]} == {"false"}


# The workflows


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in load(workflow)["jobs"].values() for step in job["steps"]]


def ran(workflow: Path) -> list[str]:
    return [step["run"] for step in steps(workflow) if "run" in step]


def used(workflow: Path, action: str) -> list[dict[str, str]]:
    """Return what each use of an action is given."""
    return [
        step.get("with", {})
        for step in steps(workflow)
        if step.get("uses", "").partition("@")[0] == action
    ]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_only_read_and_runs_what_exists(workflow: Path) -> None:
    content = load(workflow)
    assert content["permissions"] == {"contents": "read"}
    assert set(content["on"]) <= {"push", "pull_request"}
    assert "secrets." not in workflow.read_text(encoding="utf-8")
    for job in content["jobs"].values():
        assert "permissions" not in job
        assert int(job["timeout-minutes"]) <= 100
    for step in steps(workflow):
        # A tag can be moved, a commit cannot.
        assert "uses" not in step or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])
    for given in used(workflow, "actions/checkout"):
        assert given["persist-credentials"] == "false"
    commands = "\n".join(ran(workflow))
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= make_targets()
    assert all((REPOSITORY / name).is_file() for name in re.findall(r"\bbash (\S+)", commands))


def test_ci_runs_all_of_the_script_on_the_python_of_the_image() -> None:
    workflow = GITHUB / "workflows" / "ci.yml"
    assert set(load(workflow)["on"]) == {"push", "pull_request"}
    assert ran(workflow)[-1] == "bash .ci/run"
    assert used(workflow, "actions/checkout")[0]["fetch-depth"] == "0"
    job = load(workflow)["jobs"]["run"]
    python = re.findall(r"^FROM (python:[\d.]+)-", (REPOSITORY / "Dockerfile").read_text(), re.M)
    assert {job["container"]["image"].partition("-")[0]} == set(python)
    (minutes,) = re.findall(
        r"^ALL=\$\(\((\d+) \* 60\)\)", (REPOSITORY / ".ci/run").read_text(), re.M
    )
    assert int(job["timeout-minutes"]) > int(minutes)


def test_a_tag_makes_the_distributions_and_the_image_and_publishes_neither() -> None:
    workflow = GITHUB / "workflows" / "release.yml"
    assert load(workflow)["on"] == {"push": {"tags": ["v*"]}}
    commands = ran(workflow)
    assert "make release" in commands
    assert any(command.startswith("docker build ") for command in commands)
    assert not re.search(r"docker (push|login)|twine|gh release|publish", "\n".join(commands))
    assert [given["path"] for given in used(workflow, "actions/upload-artifact")] == [
        "dist/",
        "dragoman-image.tar.gz",
    ]


# The forms


@pytest.mark.parametrize("form", FORMS, ids=lambda file: file.stem)
def test_a_form_has_what_github_asks_for(form: Path) -> None:
    content = load(form)
    assert content["name"]
    assert content["description"]
    assert set(content) <= {"name", "description", "labels", "body"}
    asked = [field for field in content["body"] if field["type"] != "markdown"]
    assert asked
    assert {field["type"] for field in asked} <= {"input", "textarea", "dropdown"}
    ids = [field["id"] for field in asked]
    assert len(set(ids)) == len(ids)
    for field in asked:
        assert field["attributes"]["label"]
        assert (field["type"] == "dropdown") == ("options" in field["attributes"])
    for field in content["body"]:
        assert field["type"] != "markdown" or set(field["attributes"]) == {"value"}


def test_the_report_of_a_bug_can_name_each_dialect() -> None:
    options = {
        field["id"]: field["attributes"]["options"]
        for field in load(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"]
        if field["type"] == "dropdown"
    }
    faces = sorted(name for name, known in DIALECTS.items() if known.face is not None)
    clients = sorted(name for name, known in DIALECTS.items() if known.client is not None)
    # GitHub keeps `none` for itself.
    assert options == {"frontend": [*faces, "no frontend"], "backend": [*clients, "no backend"]}


def test_an_issue_begins_with_a_form() -> None:
    assert load(GITHUB / "ISSUE_TEMPLATE" / "config.yml") == {"blank_issues_enabled": "false"}
    assert {form.stem for form in FORMS} == {"bug", "dialect", "feature"}


# The map of folders


def mapped(package: str) -> set[str]:
    """Return the names in the first column of the table of a package."""
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (rows,) = re.findall(rf"^\| `{package}/` \|.*\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    return {name for row in rows.splitlines() for name in re.findall(r"`(.*?)`", row.split("|")[1])}


@pytest.mark.parametrize("package", ["adapters", "proxy"])
def test_the_map_has_each_folder_and_each_module_beside_them(package: str) -> None:
    present = {
        entry.name
        for entry in (REPOSITORY / package).iterdir()
        if entry.suffix == ".py" or (entry.is_dir() and any(entry.rglob("*.py")))
    }
    assert mapped(package) == present - {"__init__.py", "__main__.py"}


def test_the_commands_of_the_page_are_those_of_the_makefile() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:ALL=1 )?make ([a-z-]+)", page))
    assert {"install", "lint", "test"} <= named
    assert named <= make_targets()


def test_the_page_is_read_in_a_few_minutes() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page.count("\n") <= 90
