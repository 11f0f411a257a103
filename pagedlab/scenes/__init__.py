"""Scenes: a trace, made visible. Each is a pure function of a trace, and needs neither torch nor Jupyter.

    scene = scenes.step(trace, step=0)       # one whole step through its four beats
    scene = scenes.condense(trace)           # rows of the persistent batch leave, arrive and move
    scene.questions                          # predictions to make; the answers come from the trace

`pagedlab.widgets` plays them.
"""

from pagedlab.scenes.engine_step import step
from pagedlab.scenes.persistent_batch import condense
from pagedlab.scenes.questions import row_moves, slot_of_token, tokens_granted, who_runs
from pagedlab.scenes.scene import Actor, Arrow, Frame, Part, Question, Scene, Source

__all__ = [
    "Actor",
    "Arrow",
    "Frame",
    "Part",
    "Question",
    "Scene",
    "Source",
    "condense",
    "row_moves",
    "slot_of_token",
    "step",
    "tokens_granted",
    "who_runs",
]
