"""What a comparison found, and the words that cases are spoken of in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagedlab.batch import BatchUpdate

Case = Mapping[str, Any]
"""One golden case, as ``FORMAT.md`` says."""

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Ours and theirs, field by field."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that is not as vLLM had it."""

    case: str
    step: int
    field: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return (
            f"case {self.case}, step {self.step}, {self.field}:\n"
            f"  ours   {json.dumps(self.ours)}\n  theirs {json.dumps(self.theirs)}"
        )


@dataclass(slots=True)
class Report:
    """What was compared.

    Attributes
    ----------
    num_cases, num_steps : int
        Compared to their ends, or up to the difference.
    fields : Counter of str
        How often each field was compared.
    not_compared : Counter of str
        Cases of kinds that are not known, by kind.
    difference : Difference or None
    """

    num_cases: int = 0
    num_steps: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    not_compared: Counter[str] = field(default_factory=Counter)
    difference: Difference | None = None

    def __str__(self) -> str:
        left_out = "".join(f"\n{count} cases of kind {kind}: not compared" for kind, count in self.not_compared.items())
        if self.difference is not None:
            return f"{self.difference}{left_out}"
        if self.num_cases == 0:
            return f"nothing was compared{left_out}"
        return f"{self.num_cases} cases, {self.num_steps} steps: all equal{left_out}"

    @property
    def passed(self) -> bool:
        """Whether something was compared, all of it was equal, and nothing was left uncompared."""
        return self.num_cases > 0 and self.difference is None and not self.not_compared


def update_fields(update: BatchUpdate | None) -> dict[str, Any] | None:
    """Return what changed in the batch as a golden case holds it."""
    if update is None:
        return None
    return {
        "removed": list(update.removed),
        "added": [added.row for added in update.added],
        "moved": [[moved.source, moved.target, moved.direction.value] for moved in update.moved],
    }
