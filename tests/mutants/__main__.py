"""Change one line at a time and see whether a test notices; run it again until it is through."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import tomllib
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutants.changes import Change, Sample, modules
from tests.mutants.seen import CACHE, Seen, Test, has_servers, record
from tests.mutants.trial import ROOT, Copy, copied

# What issue 2 of the project demands: the share of the sample that the tests have to catch.
GOAL = 0.95
SURVIVORS = Path(__file__).with_name("survivors.toml")
_CAUGHT = {"failed", "timeout"}
# First the tests that are likely to see a change: so many of a file, so many recorded seconds of
# all files.
_LIKELY_OF_A_FILE, _LIKELY_SECONDS = 15, 2.5
# Then all others, as far as they are quick. These bounds keep a survivor below two minutes.
_QUICK_TEST, _OTHER_SECONDS = 6.0, 75.0
# A loaded machine is several times as slow as while recording; an endless loop waits this long.
_SLOWER, _START_SECONDS = 6.0, 40.0
# After so many caught changes the tests that caught them have to pass on unchanged code.
_VERIFY_EVERY = 25

_Result = dict[str, Any]


class Results:
    """The results of earlier slices, in a file."""

    def __init__(self, path: Path, seed: int) -> None:
        """Read the file; it may hold the results of other seeds too."""
        self._path = path
        self.found: dict[str, _Result] = json.loads(path.read_text()) if path.exists() else {}
        self.seed = seed

    def add(self, results: dict[str, _Result]) -> None:
        """Store results: at once and whole, a kill in between loses nothing."""
        self.found.update(results)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(self.found, indent=1, ensure_ascii=False))
        written.replace(self._path)


def _words(path: str) -> set[str]:
    return set(re.split(r"[/._]", path)) - {"tests", "test", "py", "adapters", "proxy"}


def plan(change: Change, tests: Iterable[Test], unreliable: set[str]) -> list[list[Test]]:
    """Return the tests to try in one or two runs: the module's own first, the quickest first."""
    about = _words(change.path)
    files: dict[str, list[Test]] = {}
    for test in sorted(tests, key=lambda test: test.seconds):
        if test.seconds <= _QUICK_TEST and test.name not in unreliable:
            files.setdefault(test.file, []).append(test)
    order = sorted(files, key=lambda file: (-len(about & _words(file)), has_servers(file), file))
    likely: list[Test] = []
    spent = 0.0
    for file in order:
        for test in files[file][:_LIKELY_OF_A_FILE]:
            if not likely or spent + test.seconds <= _LIKELY_SECONDS:
                likely.append(test)
                spent += test.seconds
    chosen = set(likely)
    others: list[Test] = []
    spent = 0.0
    for test in sorted(
        (test for tests in files.values() for test in tests), key=lambda test: test.seconds
    ):
        if test not in chosen and spent + test.seconds <= _OTHER_SECONDS:
            others.append(test)
            spent += test.seconds
    others.sort(key=lambda test: (order.index(test.file), test.seconds))
    return [tests for tests in (likely, others) if tests]


class Slice:
    """One slice: tries changes in a copy until all are tried or the time is over."""

    def __init__(self, copy: Copy, sample: Sample, results: Results, end: float) -> None:
        """Take what was found so far; `end` is the time on the monotonic clock to stop at."""
        self._copy, self._sample, self._results, self._end = copy, sample, results, end
        self._seen = Seen(copy)
        self._unreliable: set[str] = set()
        self._reliable: set[str] = set()
        # Caught by a test that has not passed on unchanged code in this copy yet.
        self._unverified: dict[str, tuple[Change, _Result]] = {}

    def run(self) -> None:
        """Try what has no result."""
        total = len(self._sample.changes)
        todo = deque(
            change for change in self._sample.changes if change.key not in self._results.found
        )
        at = total - len(todo)
        while todo or self._unverified:
            if todo and time.monotonic() < self._end:
                change, begun = todo.popleft(), time.monotonic()
                result = self._try(change)
                at += 1
                took = time.monotonic() - begun
                print(f"{at:4}/{total} {result['status']:8} {took:5.1f} s  {change}", flush=True)
                if result["status"] in _CAUGHT and result["test"] not in self._reliable:
                    self._unverified[change.key] = (change, result)
                else:
                    self._results.add({change.key: result})
                if len(self._unverified) < _VERIFY_EVERY:
                    continue
            again = self._verify()
            at -= len(again)
            todo.extend(again)
            if time.monotonic() >= self._end:
                return

    def _try(self, change: Change) -> _Result:
        result: _Result = {"status": "unseen", "test": "", "change": str(change)}
        runs = plan(change, self._seen.tests(change.path, change.line), self._unreliable)
        with self._copy.changed(change.path, change.apply(self._sample.sources[change.path])):
            for tests in runs:
                expected = sum(test.seconds for test in tests)
                outcome = self._copy.run(
                    [test.name for test in tests], expected * _SLOWER + _START_SECONDS
                )
                result["status"] = {"passed": "survived", "none": "unseen"}.get(
                    outcome.status, outcome.status
                )
                if outcome.status in _CAUGHT:
                    # Without a failed test the import failed or the first test never ended.
                    result["test"] = outcome.test or tests[0].name
                    break
        return result

    def _verify(self) -> list[Change]:
        """Run the catching tests on unchanged code; return the changes whose test fails even so."""
        tests = sorted({result["test"] for _, result in self._unverified.values()})
        outcome = self._copy.run(tests, 60 + 30 * len(tests), keep_going=True)
        passed = {name for name, _, ok in (outcome.report or {"tests": []})["tests"] if ok}
        self._reliable |= passed
        again = []
        for key, (change, result) in self._unverified.items():
            if result["test"] in passed:
                self._results.add({key: result})
            else:
                again.append(change)
        self._unreliable |= set(tests) - passed
        self._unverified.clear()
        for test in sorted(set(tests) - passed):
            print(f"     not used any more, fails on unchanged code: {test}", flush=True)
        return again


def explained(path: Path = SURVIVORS) -> dict[tuple[str, ...], str]:
    """Return the reasons why changes may survive, by path, function, line and what was changed."""
    listed = tomllib.loads(path.read_text("utf-8")).get("survivor", [])
    return {
        tuple(entry[name] for name in ("path", "function", "line", "before", "after")): entry["why"]
        for entry in listed
    }


def report(sample: Sample, results: Results) -> int:
    """Print what was found; return the exit status: 0 goal reached, 1 missed, 3 not through yet."""
    reasons = explained()
    counts: dict[str, Counter[str]] = {}
    survivors, unexplained = [], 0
    for change in sample.changes:
        group = "/".join(change.path.split("/")[:2])
        status = results.found.get(change.key, {"status": "open"})["status"]
        counts.setdefault(group, Counter())[status] += 1
        if status in {"survived", "unseen"}:
            known = (change.path, change.function, change.text, change.before, change.after)
            survivors.append(f"  {status}: {change}\n    {reasons.get(known, 'NOT EXPLAINED')}")
            unexplained += reasons.pop(known, None) is None
    total = sum(counts.values(), Counter[str]())
    caught, tried = total["failed"] + total["timeout"], total.total() - total["open"]
    for group, counted in sorted(counts.items()):
        print(
            f"{group:24}",
            ", ".join(f"{number} {status}" for status, number in sorted(counted.items())),
        )
    print("survivors:", *survivors, sep="\n") if survivors else print("no survivors")
    lines = {(change.path, change.function, change.text) for change in sample.changes}
    for path, function, text, *_ in reasons:
        if path in sample.sources and (path, function, text) not in lines:
            print(f"explained, but not in this sample: {path} {function}: {text}")
    share = caught / tried if tried else 0.0
    print(
        f"seed {sample.seed}: {caught} of {tried} caught, {share:.1%} (goal {GOAL:.0%});"
        f" {unexplained} survivors without a reason in {SURVIVORS.relative_to(ROOT)};"
        f" {total['open']} of {total.total()} not tried yet"
    )
    if total["open"]:
        print("not through yet: run it again to go on")
        return 3
    return int(share < GOAL or unexplained > 0)


def main() -> int:
    """Run one slice and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="draws the sample (default 1)")
    parser.add_argument("--count", type=int, default=200, help="how many changes (default 200)")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="length of the slice (default 8)"
    )
    parser.add_argument(
        "--results", type=Path, default=CACHE / "results.json", help="where results are kept"
    )
    parser.add_argument(
        "--only", default="", help="modules whose path begins so, such as adapters/eve"
    )
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    parser.add_argument("--list", action="store_true", help="print the sample, try nothing")
    parser.add_argument("--report", action="store_true", help="print what was found, try nothing")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    results = Results(options.results, options.seed)

    def sample(root: Path) -> Sample:
        sources = {path: (root / path).read_bytes() for path in modules(root, options.only)}
        return Sample(sources, options.seed, options.count)

    if options.list:
        print(*sample(ROOT).changes, sep="\n")
        return 0
    if options.report:
        return report(sample(ROOT), results)
    if options.again:
        results.found = {
            key: found for key, found in results.found.items() if found["status"] in _CAUGHT
        }
    with copied() as copy:
        for progress in record(copy):
            print(f"recording {progress}", flush=True)
            if time.monotonic() >= end:
                print("not through yet: run it again to go on")
                return 3
        drawn = sample(copy.root)
        Slice(copy, drawn, results, end).run()
    return report(drawn, results)


if __name__ == "__main__":
    sys.exit(main())
