"""Checks the plans of the encoders, or writes them: see `tests.plans`."""

from __future__ import annotations

import argparse
import json
import sys

from tests.plans import PLANS, changed, plans, stored


def main() -> int:
    """Check or write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.plans", description=__doc__)
    parser.add_argument("--write", action="store_true", help="add new logs, faces and versions")
    parser.add_argument(
        "--unreleased", action="store_true", help="replace plans of a version that is in no release"
    )
    options = parser.parse_args()
    now, before = plans(), stored()
    broken = changed(now, before)
    for name in broken:
        sys.stderr.write(f"{name}: the plan differs\n")
    if broken and not options.unreleased:
        sys.stderr.write("Raise the encoder's `version`, keep the old one in `Dialect.older`.\n")
        return 1
    if options.write or options.unreleased:
        PLANS.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    return 0


sys.exit(main())
