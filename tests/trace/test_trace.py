"""Recording and the file format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig, record
from pagedlab.errors import TraceError
from pagedlab.events import (
    BEATS,
    BeatStarted,
    Event,
    InputsPrepared,
    RequestScheduled,
    RowAdded,
    RowMoved,
    RowRemoved,
    SlotsComputed,
    TokenAccepted,
    TokenSampled,
    event_from_dict,
    event_to_dict,
)
from pagedlab.model.decoder import Decoder
from pagedlab.trace import Trace


@pytest.fixture(scope="module")
def trace(tiny_model: Decoder) -> Trace:
    engine = LLMEngine(
        tiny_model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3),
        cache_config=CacheConfig(block_size=4, num_blocks=20),
    )
    recorder = record(engine)
    for name, length, max_tokens in (("A", 3, 2), ("B", 9, 6), ("C", 2, 7), ("D", 5, 3)):
        engine.add_request(name, [length] * length, SamplingParams(max_tokens=max_tokens, temperature=0))
    while engine.has_unfinished_requests():
        engine.step()
    return recorder.stop()


def lit_line(trace: Trace, event: type[Event]) -> set[str]:
    """The source lines of all events of one kind, as text."""
    lines = set()
    for record_ in trace:
        if isinstance(record_.event, event):
            assert record_.source is not None, record_
            function = trace.sources[record_.source.function]
            lines.add(function.lines[record_.source.line - function.first_line].strip())
    return lines


def test_each_event_names_the_line_that_asked_for_it(trace: Trace) -> None:
    assert lit_line(trace, RowMoved) == {"self._move_row(last, hole)"}
    assert lit_line(trace, RowAdded) == {"batch.add_request(state)"}
    assert lit_line(trace, RowRemoved) == {"batch.remove_request(req_id)"}
    assert lit_line(trace, TokenSampled) == {"sampled, logprobs = self.sample(inputs, logits)"}
    assert lit_line(trace, TokenAccepted) == {"self._accept(request, token_id)"}


def test_source_lines_are_those_of_the_files(trace: Trace) -> None:
    root = Path(sys.modules["pagedlab"].__file__ or "").parents[1]
    for function in trace.sources.values():
        text = (root / function.file).read_text(encoding="utf-8").splitlines()
        assert text[function.first_line - 1].strip() == function.lines[0].strip()


def test_steps_have_four_beats_in_order(trace: Trace) -> None:
    for step in range(trace.num_steps):
        beats = [record.event.beat for record in trace.of_step(step) if isinstance(record.event, BeatStarted)]
        assert tuple(beats) == BEATS
        for record_ in trace.of_step(step):
            if isinstance(record_.event, RequestScheduled):
                assert record_.beat == "schedule"
            if isinstance(record_.event, InputsPrepared | SlotsComputed):
                assert record_.beat == "prepare"


def test_a_trace_survives_its_file(trace: Trace, tmp_path: Path) -> None:
    assert Trace.load(trace.save(tmp_path / "trace.jsonl")) == trace
    for record_ in trace:
        assert event_from_dict(event_to_dict(record_.event)) == record_.event


def test_odd_request_ids_and_texts_survive(tmp_path: Path) -> None:
    from pagedlab.events import RequestAborted
    from pagedlab.trace import Record

    odd = 'a"\n\u2028</script>\x85é\ud800'
    trace = Trace.from_records([Record(0, None, RequestAborted(odd), None)], vocabulary={1: odd})
    assert Trace.load(trace.save(tmp_path / "t")) == trace


HEADER = '{"format":"pagedlab-trace","version":3,"num_records":1,"sources":{},"vocabulary":{},"settings":{}}\n'


def record_line(**changes: object) -> str:
    line = {"step": 0, "beat": None, "source": None, "event": {"kind": "StepStarted", "index": 0}} | changes
    return HEADER + json.dumps(line) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 is not JSON"),
        ("nonsense\n", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("[]\n", "not the header"),
        ('{"format": "pagedlab-trace", "version": 99}\n', "version 99 is not supported"),
        ('{"format": "pagedlab-trace", "version": 3}\n', "header is damaged"),
        (HEADER.replace('"settings":{}', '"settings":[1]'), "header is damaged"),
        (HEADER, "the trace is cut: it should have 1 records and has 0"),
        (HEADER + "{}\n", "line 2 is damaged"),
        (record_line(event={"kind": "Nope"}), "line 2 is damaged.*unknown event kind"),
        (record_line(event={"kind": "StepStarted", "index": "abc"}), "index is 'abc'"),
        (record_line(event={"kind": "StepStarted"}), "has the fields index"),
        (record_line(step="x"), "line 2 is damaged"),
        (record_line(beat="rest"), "no beat 'rest'"),
        (record_line(source="ab"), "line 2 is damaged"),
        (record_line(source=["f", "one"]), "line 2 is damaged"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=words):
        Trace.load(file)


def test_a_step_that_is_not_there_says_which_are(trace: Trace) -> None:
    with pytest.raises(TraceError, match=r"no step 99: it has steps -1 to \d+"):
        trace.of_step(99)
    with pytest.raises(TraceError, match="it is empty"):
        Trace.from_records([]).of_step(0)


def test_nobody_watches_after_stop(tiny_model: Decoder) -> None:
    engine = LLMEngine(tiny_model)
    with record(engine) as recorder:
        engine.add_request("A", [1], SamplingParams(max_tokens=3, temperature=0))
        engine.step()
    before = len(recorder.trace)
    engine.step()
    assert engine.observer is None
    assert len(recorder.trace) == before


def test_reading_a_trace_needs_neither_torch_nor_numpy(trace: Trace, tmp_path: Path) -> None:
    file = trace.save(tmp_path / "trace.jsonl")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        f"from pagedlab.trace import Trace; print(Trace.load({str(file)!r}).num_steps)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == trace.num_steps


def test_recorders_can_be_nested_and_the_users_observer_comes_back(tiny_model: Decoder) -> None:
    engine = LLMEngine(tiny_model)
    seen: list[Event] = []
    engine.observer = seen.append
    engine.add_request("A", [1], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    outer = record(engine)
    engine.step()
    with record(engine) as inner:
        engine.step()
    engine.step()
    trace = outer.stop()
    assert engine.observer is not None
    engine.step()
    assert trace.num_steps == 3
    assert inner.trace.num_steps == 1
    assert [record_.event for record_ in inner.trace] == [record_.event for record_ in trace.of_step(1)]
    assert inner.trace.of_step(1) == trace.of_step(1)  # source lines too
    assert sum(event.kind == "StepStarted" for event in seen) == 4


def test_a_recorder_that_is_wrapped_names_the_same_lines(tiny_model: Decoder) -> None:
    engine = LLMEngine(tiny_model)
    recorder = record(engine)
    engine.observer = lambda event: recorder(event)
    engine.add_request("A", [1], SamplingParams(max_tokens=1, temperature=0))
    engine.step()
    assert lit_line(recorder.trace, RowAdded) == {"batch.add_request(state)"}


def test_saving_never_leaves_half_a_file(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = trace.save(tmp_path / "trace.jsonl")
    monkeypatch.setattr(Trace, "dumps", lambda self: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        trace.save(file)
    assert Trace.load(file) == trace
