"""The kernels of paged attention; `pagedlab.kernels.paged_attention` says what they compute and launches them.

    scores = queries · keys          a tile of keys at a time, for a tile of queries
    weights = 2^(scores - highest)   the running softmax, base 2: the machine's own exponential
    merged += weights · values       what was summed before is faded when the highest score rises

vLLM counterpart: see `pagedlab.kernels.paged_attention`.
"""

from __future__ import annotations

import math

from pagedlab.kernels import backend

if backend().has_triton:
    import triton
    import triton.language as tl

    from pagedlab.kernels.attention_work import find_work, keys_before
    from pagedlab.kernels.interpreting import loop_bound, matrix_operand

    LOG2_E = tl.constexpr(math.log2(math.e))
    # For float32 alone: tensor cores keep 10 bits of a factor (tf32), so each is multiplied in two parts, in three
    # products. On an H200 that is five times as fast as "ieee", without tensor cores, and no less exact.
    PRECISION = tl.constexpr("tf32x3")

    @triton.jit
    def _load_block_ids(blocks_ptr, tile, last_end, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
        """Return the block of each key of a tile; behind the last key there is nothing to look at."""
        keys_at = tile * KEYS + tl.arange(0, KEYS)
        return tl.load(blocks_ptr + keys_at // BLOCK_SIZE, mask=keys_at < last_end, other=0)

    @triton.jit
    def _attend(
        queries,  # [QUERY_ROWS, DIMS]
        merged,  # [QUERY_ROWS, DIMS] float32: sum of exponentials times values
        highest,  # [QUERY_ROWS] float32: of the scores so far, in units of log2
        total,  # [QUERY_ROWS] float32: sum of exponentials relative to it
        tile,
        block_ids,  # [KEYS]
        key_ptr,
        value_ptr,
        slot_stride,
        scale_log2,
        ends,  # [QUERY_ROWS]: queries see keys below
        last_end,
        window_starts,  # [QUERY_ROWS]: and from here on
        MASKED: tl.constexpr,  # whether some query does not see some key of this tile
        WINDOW: tl.constexpr,
        BLOCK_SIZE: tl.constexpr,
        KEYS: tl.constexpr,
        HEAD_DIM: tl.constexpr,
        DIMS: tl.constexpr,
    ):
        """Add a tile of keys to the running softmax."""
        keys_at = tile * KEYS + tl.arange(0, KEYS)
        dims = tl.arange(0, DIMS)
        slots = block_ids.to(tl.int64) * BLOCK_SIZE + keys_at % BLOCK_SIZE
        cells = slots[:, None] * slot_stride + dims[None, :]
        if MASKED or DIMS != HEAD_DIM:
            live = (keys_at < last_end)[:, None] & (dims < HEAD_DIM)[None, :]
            keys = tl.load(key_ptr + cells, mask=live, other=0.0)
            values = tl.load(value_ptr + cells, mask=live, other=0.0)
        else:
            keys = tl.load(key_ptr + cells)
            values = tl.load(value_ptr + cells)
        scores = tl.dot(queries, tl.trans(matrix_operand(keys)), input_precision=PRECISION) * scale_log2
        if MASKED:
            seen = keys_at[None, :] < ends[:, None]
            if WINDOW > 0:
                seen = seen & (keys_at[None, :] >= window_starts[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        base = new_highest
        if MASKED:
            base = tl.where(new_highest > -float("inf"), new_highest, 0.0)  # -inf - -inf would be NaN
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(highest - base)
        total = total * fade + tl.sum(weights, 1)
        weights = matrix_operand(weights.to(values.dtype))
        merged = tl.dot(weights, matrix_operand(values), merged * fade[:, None], input_precision=PRECISION)
        return merged, new_highest, total

    @triton.jit(do_not_specialize=["num_reqs", "num_tokens", "workers", "block_table_stride", "query_stride"])
    def paged_attention_kernel(
        query_ptr,
        key_ptr,
        value_ptr,
        query_start_loc_ptr,
        seq_lens_ptr,
        block_table_ptr,
        output_ptr,
        lse_ptr,
        partial_ptr,  # [places, NUM_KV_HEADS, QUERY_ROWS, HEAD_DIM] float32: results that wait to be merged
        partial_lse_ptr,  # [places, NUM_KV_HEADS, QUERY_ROWS] float32
        cuts_ptr,  # [1 + cuts, 4] int32: how many query tiles were cut; (row, query tile, splits, first place) of each
        num_reqs,
        num_tokens,
        workers,
        scale_log2,
        query_stride,  # from token to token
        block_table_stride,
        slot_stride,
        NUM_KV_HEADS: tl.constexpr,
        GROUP: tl.constexpr,  # query heads that share a KV head
        HEAD_DIM: tl.constexpr,
        DIMS: tl.constexpr,
        BLOCK_SIZE: tl.constexpr,
        WINDOW: tl.constexpr,
        CP_WORLD_SIZE: tl.constexpr,
        CP_RANK: tl.constexpr,
        CP_INTERLEAVE: tl.constexpr,
        ROWS: tl.constexpr,
        QUERY_ROWS: tl.constexpr,  # rows of a query tile: tokens * GROUP, and what is left over
        QUERIES: tl.constexpr,  # tokens of a query tile
        KEYS: tl.constexpr,
        ABOVE: tl.constexpr,
        UP_TO: tl.constexpr,
        HAS_LSE: tl.constexpr,
    ):
        """One program an item of work and KV head."""
        kv_head = tl.program_id(0) % NUM_KV_HEADS  # neighbours read the same blocks
        item = tl.program_id(0) // NUM_KV_HEADS
        tile_rows = tl.arange(0, QUERY_ROWS)
        dims = tl.arange(0, DIMS)
        has_dim = dims < HEAD_DIM
        heads = kv_head * GROUP + tile_rows % GROUP

        if ABOVE == 0:  # padding: zeros, shared by all programs of one launch
            first = tl.load(query_start_loc_ptr + num_reqs) + item
            for token in range(
                loop_bound(first), loop_bound(num_tokens), loop_bound(tl.num_programs(0) // NUM_KV_HEADS)
            ):
                places = tl.cast(token, tl.int64) * (NUM_KV_HEADS * GROUP) + heads
                owned = tile_rows < GROUP
                zeros = tl.zeros([QUERY_ROWS, DIMS], dtype=output_ptr.dtype.element_ty)
                cells = places[:, None] * HEAD_DIM + dims[None, :]
                tl.store(output_ptr + cells, zeros, mask=owned[:, None] & has_dim[None, :])
                if HAS_LSE:
                    tl.store(lse_ptr + places, tl.full([QUERY_ROWS], -float("inf"), tl.float32), mask=owned)

        row, query_tile, split, num_splits, place, cut, num_cuts = find_work(
            item,
            num_reqs,
            query_start_loc_ptr,
            seq_lens_ptr,
            workers,
            ROWS,
            QUERIES,
            KEYS,
            ABOVE,
            UP_TO,
            WINDOW,
            CP_WORLD_SIZE,
            CP_RANK,
            CP_INTERLEAVE,
        )
        if tl.program_id(0) == 0:
            tl.store(cuts_ptr, num_cuts)
        if row >= num_reqs:
            return

        query_start = tl.load(query_start_loc_ptr + row)
        query_len = tl.load(query_start_loc_ptr + row + 1) - query_start
        context_len = tl.load(seq_lens_ptr + row) - query_len
        first_query = query_tile * QUERIES
        last_query = tl.minimum(first_query + QUERIES, query_len) - 1
        owned = first_query + tile_rows // GROUP <= last_query
        query_at = tl.minimum(first_query + tile_rows // GROUP, last_query)  # rows left over repeat the last query
        tokens = (query_start + query_at).to(tl.int64)
        cells = tokens[:, None] * query_stride + heads[:, None] * HEAD_DIM + dims[None, :]
        queries = matrix_operand(tl.load(query_ptr + cells, mask=has_dim[None, :], other=0.0))

        # Keys are counted as they lie on this rank: a query sees those from `window_starts` up to `ends`.
        positions = context_len + query_at
        ends = keys_before(positions + 1, CP_WORLD_SIZE, CP_RANK, CP_INTERLEAVE)
        first_end = keys_before(context_len + first_query + 1, CP_WORLD_SIZE, CP_RANK, CP_INTERLEAVE)
        last_end = keys_before(context_len + last_query + 1, CP_WORLD_SIZE, CP_RANK, CP_INTERLEAVE)
        window_starts = positions + 1 - WINDOW
        first_tile = 0
        if WINDOW > 0:
            first_tile = tl.maximum(context_len + first_query + 1 - WINDOW, 0) // KEYS
        num_tiles = (last_end + KEYS - 1) // KEYS - first_tile
        begin = first_tile + num_tiles * split // num_splits
        end = first_tile + num_tiles * (split + 1) // num_splits
        masked_from = begin  # tiles before this one are seen whole by all queries
        if WINDOW == 0:
            masked_from = tl.minimum(tl.maximum(first_end // KEYS, begin), end)

        merged = tl.zeros([QUERY_ROWS, DIMS], dtype=tl.float32)
        highest = tl.full([QUERY_ROWS], -float("inf"), tl.float32)
        total = tl.zeros([QUERY_ROWS], dtype=tl.float32)
        blocks_ptr = block_table_ptr + row.to(tl.int64) * block_table_stride
        keys_ptr = key_ptr + kv_head * HEAD_DIM
        values_ptr = value_ptr + kv_head * HEAD_DIM
        # The block ids of the next tile are read ahead, so that its keys and values can be asked for in time.
        block_ids = _load_block_ids(blocks_ptr, begin, last_end, BLOCK_SIZE, KEYS)
        for tile in range(loop_bound(begin), loop_bound(masked_from)):
            next_ids = _load_block_ids(blocks_ptr, tile + 1, last_end, BLOCK_SIZE, KEYS)
            merged, highest, total = _attend(
                queries, merged, highest, total, tile, block_ids, keys_ptr, values_ptr, slot_stride, scale_log2,
                ends, last_end, window_starts, False, WINDOW, BLOCK_SIZE, KEYS, HEAD_DIM, DIMS,
            )  # fmt: skip
            block_ids = next_ids
        for tile in range(loop_bound(masked_from), loop_bound(end)):
            next_ids = _load_block_ids(blocks_ptr, tile + 1, last_end, BLOCK_SIZE, KEYS)
            merged, highest, total = _attend(
                queries, merged, highest, total, tile, block_ids, keys_ptr, values_ptr, slot_stride, scale_log2,
                ends, last_end, window_starts, True, WINDOW, BLOCK_SIZE, KEYS, HEAD_DIM, DIMS,
            )  # fmt: skip
            block_ids = next_ids

        has_keys = total > 0
        safe_total = tl.where(has_keys, total, 1.0)
        result = merged / safe_total[:, None]
        lse = tl.where(has_keys, highest / LOG2_E + tl.log(safe_total), -float("inf"))
        if num_splits == 1:
            places = tokens * (NUM_KV_HEADS * GROUP) + heads
            cells = places[:, None] * HEAD_DIM + dims[None, :]
            tl.store(output_ptr + cells, result.to(output_ptr.dtype.element_ty), mask=owned[:, None] & has_dim[None, :])
            if HAS_LSE:
                tl.store(lse_ptr + places, lse, mask=owned)
        else:
            places = (place * NUM_KV_HEADS + kv_head).to(tl.int64) * QUERY_ROWS + tile_rows
            cells = places[:, None] * HEAD_DIM + dims[None, :]
            tl.store(partial_ptr + cells, result, mask=owned[:, None] & has_dim[None, :])
            tl.store(partial_lse_ptr + places, lse, mask=owned)
            if (kv_head == 0) & (split == 0):
                tl.store(cuts_ptr + 4 * cut + 4, row)
                tl.store(cuts_ptr + 4 * cut + 5, query_tile)
                tl.store(cuts_ptr + 4 * cut + 6, num_splits)
                tl.store(cuts_ptr + 4 * cut + 7, place)

    @triton.jit
    def merge_splits_kernel(
        partial_ptr,
        partial_lse_ptr,
        cuts_ptr,
        query_start_loc_ptr,
        output_ptr,
        lse_ptr,
        NUM_KV_HEADS: tl.constexpr,
        GROUP: tl.constexpr,
        HEAD_DIM: tl.constexpr,
        DIMS: tl.constexpr,
        QUERY_ROWS: tl.constexpr,
        QUERIES: tl.constexpr,
        USED_ROWS: tl.constexpr,  # rows of a query tile that can hold a query
        SPLITS: tl.constexpr,  # read at a time
        HAS_LSE: tl.constexpr,
    ):
        """One program a query and head of a query tile that was cut; done at once where there are fewer of them."""
        tile_row = tl.program_id(0) % USED_ROWS
        kv_head = tl.program_id(0) // USED_ROWS % NUM_KV_HEADS
        cut = tl.program_id(0) // (USED_ROWS * NUM_KV_HEADS)
        if cut >= tl.load(cuts_ptr):
            return
        row = tl.load(cuts_ptr + 4 * cut + 4)
        query_at = tl.load(cuts_ptr + 4 * cut + 5) * QUERIES + tile_row // GROUP
        num_splits = tl.load(cuts_ptr + 4 * cut + 6)
        place = tl.load(cuts_ptr + 4 * cut + 7)
        token = tl.load(query_start_loc_ptr + row) + query_at
        if token >= tl.load(query_start_loc_ptr + row + 1):
            return
        first = (place * NUM_KV_HEADS + kv_head).to(tl.int64) * QUERY_ROWS + tile_row
        stride: tl.constexpr = NUM_KV_HEADS * QUERY_ROWS  # from split to split

        highest = -float("inf")
        for split in range(0, loop_bound(num_splits), 128):
            splits = split + tl.arange(0, 128)
            lses = tl.load(partial_lse_ptr + first + splits * stride, mask=splits < num_splits, other=-float("inf"))
            highest = tl.maximum(highest, tl.max(lses, 0))
        base = tl.where(highest > -float("inf"), highest, 0.0)  # -inf - -inf would be NaN

        dims = tl.arange(0, DIMS)
        has_dim = dims < HEAD_DIM
        total = 0.0
        merged = tl.zeros([DIMS], dtype=tl.float32)
        for split in tl.range(0, loop_bound(num_splits), SPLITS, num_stages=4):  # nothing waits: loads run ahead
            splits = split + tl.arange(0, SPLITS)
            inside = splits < num_splits
            places = first + splits * stride
            lses = tl.load(partial_lse_ptr + places, mask=inside, other=-float("inf"))
            cells = places[:, None] * HEAD_DIM + dims[None, :]
            outputs = tl.load(partial_ptr + cells, mask=inside[:, None] & has_dim[None, :], other=0.0)
            shares = tl.exp(lses - base)
            total += tl.sum(shares, 0)
            merged += tl.sum(outputs * shares[:, None], 0)
        safe_total = tl.where(total > 0, total, 1.0)
        merged = merged / safe_total
        result = token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + tile_row % GROUP
        tl.store(output_ptr + result * HEAD_DIM + dims, merged.to(output_ptr.dtype.element_ty), mask=has_dim)
        if HAS_LSE:
            tl.store(lse_ptr + result, tl.where(total > 0, highest + tl.log(safe_total), -float("inf")))
