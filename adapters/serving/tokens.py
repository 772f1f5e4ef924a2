"""Tokens: how many a stream has used, each call counted once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from adapters.model.events import StepEnded, UsageReported


@dataclasses.dataclass(slots=True)
class TokenTotals:
    """`totals` are the tokens of each model, under a protocol's names; `""` is a model that has no
    name. `told` is what the last call of the open step was said to have used."""

    told: dict[str, int] | None = None
    totals: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    def count(
        self,
        event: StepEnded | UsageReported,
        names: Mapping[str, str],
        model: str | None = None,
        *,
        sum_as: str = "",
    ) -> None:
        """Add the tokens of a call, unless they were just told: some backends tell them twice. A
        report about a whole turn or session counts nothing.

        `names` has a protocol's name for each field of `Usage`; under `sum_as` it has the sum of
        what went in and came out.
        """
        usage = event.usage
        if usage is None or (isinstance(event, UsageReported) and event.scope != "call"):
            return
        counts = ((name, getattr(usage, field)) for field, name in names.items())
        tokens: dict[str, int] = {name: count for name, count in counts if count is not None}
        if not tokens or tokens == self.told:
            self.told = None
            return
        self.told = tokens
        if sum_as:
            total = (usage.input_tokens or 0) + (usage.output_tokens or 0)
            tokens = {**tokens, sum_as: total}
        name = model or ""
        # The tokens of further models are counted under no name.
        if name not in self.totals and len(self.totals) >= 16:
            name = ""
        counted = self.totals.setdefault(name, {})
        for kind, count in tokens.items():
            counted[kind] = counted.get(kind, 0) + count
