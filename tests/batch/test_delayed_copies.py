"""A copy to the device only begins when it is asked for (bug report D6): here copies really are late.

`Stream` puts off whatever the device is asked to do until the host waits for it, as a busy GPU does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

import pagedlab.batch.commit as commit_module
from pagedlab.batch import CpuGpuBuffer, Fence
from pagedlab.batch.commit import CellSender
from pagedlab.conformance import smallest_model
from pagedlab.kvcache import FullAttentionSpec
from pagedlab.request import SamplingParams
from pagedlab.runner import GPUModelRunner
from pagedlab.scheduling.output import CachedRequestData, NewRequestData, SchedulerOutput

CPU = torch.device("cpu")


class Stream:
    """What the device still has to do, in order; `waits` False: a fence that nobody honours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> None:
        self._work: list[Callable[[], object]] = []
        self._num_done = 0
        marks: dict[int, int] = {}
        send = CpuGpuBuffer.send
        commit = commit_module.commit_numpy

        def late_send(buffer: CpuGpuBuffer, n: int | None = None) -> None:
            self.do(lambda: send(buffer, n))

        def late_commit(packed: npt.NDArray[np.int32], table: npt.NDArray[np.int32]) -> None:
            self.do(lambda: commit(packed, table))

        def record(fence: Fence) -> None:
            marks[id(fence)] = self._num_done + len(self._work)

        def wait(fence: Fence) -> None:
            if waits:
                self.finish(marks.get(id(fence), 0))

        monkeypatch.setattr(CpuGpuBuffer, "send", late_send)
        monkeypatch.setattr(commit_module, "commit_numpy", late_commit)
        monkeypatch.setattr(Fence, "record", record)
        monkeypatch.setattr(Fence, "wait", wait)

    def do(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def finish(self, mark: int | None = None) -> None:
        """Do what was asked for before ``mark`` (None: all of it)."""
        while self._work and (mark is None or self._num_done < mark):
            self._work.pop(0)()
            self._num_done += 1


@pytest.mark.parametrize(("waits", "seen"), [(True, [1, 2]), (False, [3, 4])])
def test_d6_a_buffer_that_is_written_again_too_early_sends_what_is_then_in_it(
    waits: bool, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report's own example; what `Stream` does, and what a fence is for."""
    stream = Stream(monkeypatch, waits=waits)
    buffer, fence = CpuGpuBuffer((2,), torch.int32, CPU), Fence(CPU)
    of_step: list[list[int]] = []
    for values in ([1, 2], [3, 4]):
        fence.wait()
        buffer.np[:] = values
        buffer.send()
        stream.do(lambda: of_step.append(buffer.gpu.tolist()))
        fence.record()
    stream.finish()
    assert of_step == [seen, [3, 4]]


@pytest.mark.parametrize("waits", [True, False])
def test_d6_a_sender_writes_to_a_staging_buffer_only_when_its_copy_has_run(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(monkeypatch, waits=waits)
    memory = CpuGpuBuffer((8,), torch.int32, CPU)
    sender = CellSender(memory, "numpy")
    of_step: list[list[int]] = []
    steps = [([0, 1], [1, 2]), ([2, 3], [3, 4]), ([4, 5], [5, 6]), ([6, 7], [7, 8])]
    for cells, values in steps * 2:  # first the buffers are made, then they are used again
        memory.np[cells] = values
        sender.send(np.array(cells))
        stream.do(lambda: of_step.append(memory.gpu.tolist()))
    stream.finish()
    if waits:
        assert of_step[:4] == [[*range(1, 2 * n + 1)] + [0] * (8 - 2 * n) for n in range(1, 5)]
    else:
        assert of_step[0] != [1, 2, 0, 0, 0, 0, 0, 0]


def test_a_sender_has_two_buffers_so_that_two_steps_need_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, waits=True)
    memory = CpuGpuBuffer((4,), torch.int32, CPU)
    sender = CellSender(memory, "numpy")
    for cell in range(2):
        memory.np[cell] = 5 + cell
        sender.send(np.array([cell]))
    assert memory.gpu.tolist() == [0, 0, 0, 0]  # nobody waited: all work is still to be done
    memory.np[2] = 7
    sender.send(np.array([2]))
    assert memory.gpu.tolist()[1:] == [0, 0, 0]  # for the first step's copy at most
    stream.finish()
    assert memory.gpu.tolist() == [5, 6, 7, 0]


def make_runner(commit_mode: str = "changed") -> GPUModelRunner:
    return GPUModelRunner(
        smallest_model(16),
        max_num_reqs=2,
        max_model_len=16,
        max_num_batched_tokens=4,
        num_blocks=9,
        specs=[FullAttentionSpec(4)],
        commit_mode=commit_mode,
    )


def two_steps() -> list[SchedulerOutput]:
    """One request with the prompt [1, 2], then another with [3, 4] in its row."""
    params = SamplingParams(temperature=1.0, top_k=3)
    first = NewRequestData("A", (1, 2), (), params, ((1,),), 0)
    second = NewRequestData("B", (3, 4), (), params, ((5,),), 0)
    return [
        SchedulerOutput((("A", 2),), (first,), CachedRequestData(), total_num_scheduled_tokens=2),
        SchedulerOutput((("B", 2),), (second,), CachedRequestData(), frozenset("A"), total_num_scheduled_tokens=2),
    ]


@pytest.mark.parametrize(("waits", "seen"), [(True, [1, 2]), (False, [3, 4])])
def test_d6_the_runner_writes_a_steps_inputs_only_when_those_of_the_last_are_there(
    waits: bool, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(monkeypatch, waits=waits)
    runner = make_runner()
    of_step: list[list[int]] = []
    slots: list[list[int]] = []
    for output in two_steps():
        inputs = runner.prepare(output)
        assert inputs is not None
        stream.do(lambda ids=inputs.input_ids: of_step.append(ids.tolist()))
        stream.do(lambda mapping=inputs.slot_mapping: slots.append(mapping.tolist()))
    stream.finish()
    assert of_step == [seen, [3, 4]]
    assert slots == [[4, 5] if waits else [20, 21], [20, 21]]


def three_steps() -> list[SchedulerOutput]:
    """A begins; B joins it; B goes on in A's row."""
    params = SamplingParams(temperature=0.5, allowed_token_ids=(3, 4))
    a = NewRequestData("A", (1, 2, 3), (), params, ((1,),), 0)
    b = NewRequestData("B", (7, 8, 9, 1), (), SamplingParams(), ((5,),), 1)
    a_goes_on = CachedRequestData(("A",), frozenset(), (("A", ((2,),)),), (2,), (0,))
    b_goes_on = CachedRequestData(("B",), frozenset(), (("B", ((6,),)),), (4,), (0,))
    return [
        SchedulerOutput((("A", 2),), (a,), CachedRequestData(), total_num_scheduled_tokens=2),
        SchedulerOutput((("A", 1), ("B", 3)), (b,), a_goes_on, total_num_scheduled_tokens=4),
        SchedulerOutput((("B", 1),), (), b_goes_on, frozenset("A"), total_num_scheduled_tokens=1),
    ]


def seen_by_kernels(commit_mode: str, stream: Stream | None) -> list[list[object]]:
    """Return what the kernels of each step find on the device when they run."""
    runner = make_runner(commit_mode)
    seen: list[list[object]] = []
    for output in three_steps():
        inputs = runner.prepare(output)
        assert inputs is not None
        common, sampling = inputs.attention[0], inputs.sampling
        tensors = [inputs.input_ids, common.positions, common.seq_lens, common.query_start_loc, common.slot_mapping]
        tensors += [inputs.block_table, sampling.temperature, sampling.allowed_token_ids_mask]

        def look(tensors: list[torch.Tensor | None] = tensors) -> None:
            seen.append([None if tensor is None else tensor.tolist() for tensor in tensors])

        stream.do(look) if stream is not None else look()
        runner.bookkeep(inputs, [3] * len(inputs.req_ids))
    if stream is not None:
        stream.finish()
    return seen


@pytest.mark.parametrize("commit_mode", ["changed", "full"])
@pytest.mark.parametrize("waits", [True, False])
def test_d6_every_array_of_a_step_arrives_whatever_the_next_step_writes(
    waits: bool, commit_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = seen_by_kernels(commit_mode, None)
    assert (seen_by_kernels(commit_mode, Stream(monkeypatch, waits=waits)) == at_once) == waits
