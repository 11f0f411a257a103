"""Scenes: a trace, made visible. Each is a pure function of a trace, and needs neither torch nor Jupyter.

    scene = scenes.step(trace, step=0)       # one whole step through its four beats
    scene = scenes.condense(trace)           # rows of the persistent batch leave, arrive and move
    scene = scenes.block_table(trace)        # rows of block ids grow and move; a commit sends what changed
    scene = scenes.slot_mapping(trace)       # position → table entry → block and offset → slot
    scene = scenes.timeline(a, b)            # requests × steps, seats and budget; engines on one time axis
    scene.questions                          # predictions to make; the answers come from the trace

`pagedlab.widgets` plays them.
"""

from pagedlab.scenes.block_table_scene import block_table
from pagedlab.scenes.engine_step import step
from pagedlab.scenes.persistent_batch import condense
from pagedlab.scenes.questions import row_moves, slot_of_token, tokens_granted, who_runs
from pagedlab.scenes.scene import Actor, Arrow, Frame, Part, Question, Scene, Source
from pagedlab.scenes.slot_mapping_scene import slot_mapping
from pagedlab.scenes.timeline_scene import timeline

__all__ = [
    "Actor",
    "Arrow",
    "Frame",
    "Part",
    "Question",
    "Scene",
    "Source",
    "block_table",
    "condense",
    "row_moves",
    "slot_mapping",
    "slot_of_token",
    "step",
    "timeline",
    "tokens_granted",
    "who_runs",
]
