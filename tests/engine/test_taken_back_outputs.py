"""A step that is interrupted while its outputs are collected has not happened: nothing of it is lost or said twice."""

from __future__ import annotations

import pytest

from pagedlab import LLMEngine, RequestOutput, SamplingParams, SchedulerConfig
from pagedlab.outputs import Stream


def served(at: str | None, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, RequestOutput], dict[str, str]]:
    """Run two requests; interrupt the first step that takes request ``at``; return last outputs and streamed text."""
    engine = LLMEngine("quill", scheduler_config=SchedulerConfig(16, max_num_seqs=4), max_model_len=64)
    for name, max_tokens in (("A", 1), ("B", 5)):
        engine.add_request(name, "To be", SamplingParams(max_tokens=max_tokens, temperature=0, logprobs=1))
    take = Stream.take
    interrupted: list[str | None] = []

    def disturbed(self: Stream, *arguments: object) -> RequestOutput:
        output = take(self, *arguments)  # type: ignore[arg-type]
        if self.request.request_id == at and not interrupted:
            interrupted.append(at)
            raise KeyboardInterrupt
        return output

    last: dict[str, RequestOutput] = {}
    streamed = {"A": "", "B": ""}
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "take", disturbed)
        while engine.has_unfinished_requests():
            try:
                outputs = engine.step()
            except KeyboardInterrupt:
                engine.check_integrity()
                continue
            for output in outputs:
                last[output.request_id] = output
                streamed[output.request_id] += output.new_text
    engine.check_integrity()
    assert interrupted == ([] if at is None else [at])
    return last, streamed


@pytest.mark.parametrize("at", ["A", "B"])
def test_an_interrupt_while_outputs_are_collected_loses_nothing(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want, want_text = served(None, monkeypatch)
    got, got_text = served(at, monkeypatch)
    assert {name: output.output_token_ids for name, output in got.items()} == {
        name: output.output_token_ids for name, output in want.items()
    }
    assert got_text == want_text
    for name, output in got.items():
        assert output.text == got_text[name]
        assert output.finish_reason == "length"
        assert output.logprobs is not None
        assert [record.token_id for record in output.logprobs] == list(output.output_token_ids)
