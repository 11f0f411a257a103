"""Questions about a request that ranks share; the answers come from the ranks' traces.

vLLM has no counterpart.
"""

from __future__ import annotations

from pagedlab.scenes.context_parallel_state import SharedRequest, told_by_rank
from pagedlab.scenes.questions import in_place, reasons_but
from pagedlab.scenes.replay import PAD_SLOT
from pagedlab.scenes.scene import Question
from pagedlab.scenes.words import begin, counted, listed, name, vector

_MAX_CHOICES = 6


def rank_of_token(shared: SharedRequest, position: int) -> Question:
    """Ask which rank keeps a token."""
    sharing, who = shared.sharing, name(shared.request_id)
    world_size, interleave, run = sharing.world_size, sharing.interleave, sharing.run_of(position)
    right = sharing.rank_of(position)
    rule = f"{position} // {interleave} = {run} is the run, and {run} % {world_size} = {right} the rank."
    share = -(-shared.seq_len // world_size)
    offers = (
        (
            position // sharing.block_size % world_size,
            f"That deals whole blocks of {sharing.block_size} in turn. Here runs of {interleave} are dealt: a block of "
            "the table is spread over all ranks.",
        ),
        (position % world_size, f"That deals single tokens. Here {interleave} stay together: count runs."),
        (
            position // share,
            f"That cuts the request in {world_size} pieces of {share}. Then a short request would be on one rank, and "
            "each new token on the last.",
        ),
        (run // world_size, f"That is the round, {run} // {world_size}: how often this rank has been dealt a run."),
    )
    reasons: dict[str, str] = {}
    for rank, reason in offers:
        if rank != right and rank < world_size:
            reasons.setdefault(f"Rank {rank}", reason)
    for rank in range(world_size):
        if rank != right and len(reasons) < _MAX_CHOICES - 1:
            reasons.setdefault(f"Rank {rank}", f"Runs are dealt in turn: {rule}")
    choices = tuple(sorted([f"Rank {right}", *reasons], key=lambda choice: int(choice.split()[1])))
    runs = "one by one" if interleave == 1 else f"in runs of {interleave}"
    return Question(
        f"{world_size} ranks share {who}, whose tokens are dealt {runs}. Which rank keeps position {position}?",
        "choice",
        f"Rank {right}",
        choices,
        reasons,
        rule,
        0,
        0,
    )


def slot_on_rank(shared: SharedRequest, position: int) -> Question:
    """Ask in which slot a token lies, on the rank that keeps it."""
    sharing = shared.sharing
    rank, size, span = sharing.rank_of(position), sharing.block_size, sharing.span
    state = shared.ranks[rank]
    column, offset, slot = sharing.column_of(position), sharing.offset_of(position), state.slots[position]
    block = state.block_ids[column]
    place = position % span
    offers = [
        (PAD_SLOT, f"{PAD_SLOT} (PAD) is what the other ranks write. Rank {rank} keeps this token."),
        (
            block * size + position % size,
            f"{position} % {size} = {position % size} counts the tokens of other ranks too. Only those of rank {rank} "
            f"lie in its block: this one is at offset {offset}.",
        ),
        (block * size + place, f"{place} is the place among all {span} tokens of the column, on all ranks together."),
        (block * span + offset, f"A block has {size} slots on a rank, not {span}: each rank has a memory of its own."),
        (position, f"{position} is the position. Where its K and V lie is up to the block table."),
        (block * size, f"That is where block {block} begins. This token is at offset {offset}."),
        (block, f"{block} is the block. The slot is the block times {size}, plus the offset in it."),
    ]
    if (naive := position // size) < len(state.block_ids) and naive != column:
        offers.insert(
            1,
            (
                state.block_ids[naive] * size + position % size,
                f"Column {position} // {size} = {naive} would be right if one rank had all. A column stands for {span} "
                "tokens.",
            ),
        )
    rounds = f"{place} // {sharing.interleave * sharing.world_size}"
    return Question(
        f"Rank {rank} keeps {name(shared.request_id)}’s position {position}. Its block-table row is "
        f"{vector(state.block_ids)}; a block holds {size} tokens on each of the {sharing.world_size} ranks, in runs of "
        f"{sharing.interleave}. Which slot is it?",
        "number",
        str(slot),
        (),
        reasons_but(slot, offers),
        f"Column {position} // {span} = {column} says block {block}. {place} is its place in the column: offset "
        f"{rounds} · {sharing.interleave} + {position} % {sharing.interleave} = {offset}. "
        f"{block} · {size} + {offset} = {slot}.",
        0,
        0,
    )


def length_kept(shared: SharedRequest) -> Question:
    """Ask how many tokens of the request a rank keeps."""
    sharing, seq_len = shared.sharing, shared.seq_len
    counts = [shared.num_local(rank) for rank in range(sharing.world_size)]
    # The rank where the even share is most wrong; of several the last.
    rank = max(range(len(counts)), key=lambda at: (abs(counts[at] - seq_len / len(counts)), at))
    right, stripe = counts[rank], sharing.interleave * sharing.world_size
    whole, rest = seq_len // stripe, seq_len % stripe
    even = f"{seq_len} / {sharing.world_size}"
    offers = (
        (seq_len, "Those are all its tokens. Each is kept by one rank only."),
        (seq_len // sharing.world_size, f"{even}, rounded down: but whole runs are dealt, and the last may be cut."),
        (-(-seq_len // sharing.world_size), f"{even}, rounded up: but whole runs are dealt, and the last may be cut."),
        (
            whole * sharing.interleave,
            f"{whole} whole rounds give so many. It has more, of the {rest} tokens behind.",
        ),
        (
            (whole + 1) * sharing.interleave,
            f"The last round is not whole: {rest} tokens for {stripe} places, and rank 0 comes first.",
        ),
        (max(counts), f"Rank {counts.index(max(counts))} keeps so many. Rank {rank} comes later, and gets fewer."),
    )
    told = told_by_rank(counts, "keeps", "keep")
    return Question(
        f"{name(shared.request_id)} has {counted(seq_len, 'token')} now. How many does rank {rank} keep, of "
        f"{sharing.world_size} ranks with runs of {sharing.interleave}?",
        "number",
        str(right),
        (),
        reasons_but(right, offers),
        f"{whole} rounds of {stripe} tokens give each rank {whole * sharing.interleave}; the {rest} behind them fill "
        f"rank after rank. {begin(told)}.",
        0,
        0,
    )


def states_merged(shared: SharedRequest) -> Question:
    """Ask how the results of the ranks become one."""
    counts = [shared.num_local(rank) for rank in range(shared.sharing.world_size)]
    shares = listed([f"{count}/{shared.seq_len}" for count in counts if count])
    told = told_by_rank(counts, "has", "have")
    right = "Weighted by exp(lse): each rank’s share of the sum of all exponentiated scores"
    reasons = {
        "Their mean: every rank counts alike": (
            "A rank whose keys fit the query badly would count as much as one whose keys fit it well. In one softmax "
            "over all keys it would not."
        ),
        f"Weighted by the number of keys: {shares}": (
            "One key that fits the query can outweigh all others. What counts is the sum of exponentiated scores, and "
            "lse is its logarithm."
        ),
        "Added up": (
            "Each output is a mean already: its weights sum to 1. Added up, those of "
            f"{sum(count > 0 for count in counts)} ranks would sum to {sum(count > 0 for count in counts)}."
        ),
        "Laid side by side: each rank has other heads": (
            "That is tensor parallelism. Here each rank attends with the same heads, over another part of the tokens."
        ),
    }
    return Question(
        f"Of {shared.seq_len:,} keys {told}, and each attended to its own. How do their outputs become attention over "
        "all of them?",
        "choice",
        right,
        in_place(right, list(reasons)),
        reasons,
        "The softmax over all keys divides by one sum. Each rank divided by its own; exp(lseᵣ − lse) puts that right.",
        0,
        0,
    )
