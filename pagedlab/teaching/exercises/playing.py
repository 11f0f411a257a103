"""Yours beside the reference, played from the last moment at which both were the same.

`Played` holds both recordings of one input; `Played.scene` makes a `pagedlab.scenes.Scene` of them.

vLLM has no counterpart.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagedlab.teaching.exercises.encoding import encode
from pagedlab.teaching.exercises.exercise import RETURNED, Exercise, Inputs
from pagedlab.teaching.exercises.recording import Step, record
from pagedlab.teaching.exercises.sandbox import Submission

if TYPE_CHECKING:
    from pagedlab.scenes.scene import Scene


def reference_steps(exercise: Exercise, inputs: Inputs) -> tuple[Step, ...]:
    """Record the reference; nothing where it is not there and its steps on these inputs were not recorded."""
    if exercise.recorded is not None:
        return exercise.recorded.steps(inputs)
    reference = exercise.reference
    return record(reference, copy.deepcopy(dict(inputs)), exercise.watched, reference.__code__.co_filename)


@dataclass(frozen=True)
class Played:
    """Both recordings.

    Attributes
    ----------
    exercise : Exercise
    submission : Submission
    inputs : mapping
    yours, reference : sequence of Step
        The first step of each is the start.
    ending : str
        How yours ended, if it raised an exception; else empty.
    """

    exercise: Exercise
    submission: Submission
    inputs: Inputs
    yours: Sequence[Step]
    reference: Sequence[Step]
    ending: str = ""

    @functools.cached_property
    def last_common(self) -> tuple[int, int]:
        """The last steps, of yours and of the reference, at which both have the same in all that counts.

        Each goes its own way: one may write a name first, the other a number. So a moment counts as common if both
        come to it, whatever lies between.
        """
        theirs = [self._seen(step) for step in self.reference]
        common = (0, 0)
        for at, step in enumerate(self.yours):
            mine = self._seen(step)
            if (
                later := next((place for place in range(common[1], len(theirs)) if theirs[place] == mine), None)
            ) is not None:
                common = (at, later)
        return common

    def scene(self) -> Scene:
        """Return the scene."""
        from pagedlab.teaching.exercises.stage import side_by_side

        return side_by_side(self)

    def _seen(self, step: Step) -> Any:
        """What counts at a moment, in a form that can be compared."""
        values: Mapping[str, Any] = step.values
        if set(self.exercise.changes) <= set(values):
            (values,) = self.exercise.seen({**values, RETURNED: None})
        return encode(dict(values))
