"""Scenes: a trace, made visible. Each is a pure function of a trace, and needs neither torch nor Jupyter.

    scene = scenes.step(trace, step=0)       # one whole step through its four beats
    scene = scenes.condense(trace)           # rows of the persistent batch leave, arrive and move
    scene = scenes.block_table(trace)        # rows of block ids grow and move; a commit sends what changed
    scene = scenes.block_pool(trace)         # allocate, hit, free, evict: all blocks, and the free queue in order
    scene = scenes.prefix_tree(trace)        # cached blocks as a tree of hashes: lookups, hits, evictions
    scene = scenes.preemption(trace)         # the pool runs dry: who is evicted, recomputed, resumed
    scene = scenes.slot_mapping(trace)       # position → table entry → block and offset → slot
    scene = scenes.paged_attention(trace)    # which blocks a query reads, in which order, and what it sees
    scene = scenes.context_parallel(ranks)   # one trace a rank: who keeps which token, attention merged
    scene = scenes.timeline(a, b)            # requests × steps, seats and budget; engines on one time axis
    scene.questions                          # predictions to make; the answers come from the trace

`pagedlab.widgets` plays them.
"""

from pagedlab.scenes.block_pool_scene import block_pool
from pagedlab.scenes.block_table_scene import block_table
from pagedlab.scenes.context_parallel_scene import context_parallel
from pagedlab.scenes.engine_step import step
from pagedlab.scenes.paged_attention_scene import paged_attention
from pagedlab.scenes.persistent_batch import condense
from pagedlab.scenes.preemption_scene import preemption
from pagedlab.scenes.prefix_tree_scene import prefix_tree
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
    "block_pool",
    "block_table",
    "condense",
    "context_parallel",
    "paged_attention",
    "preemption",
    "prefix_tree",
    "row_moves",
    "slot_mapping",
    "slot_of_token",
    "step",
    "timeline",
    "tokens_granted",
    "who_runs",
]
