"""The output side of a request: what its user is given, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedlab.errors import IntegrityError
from pagedlab.model.tokenizer import IncrementalDetokenizer
from pagedlab.request import Request
from pagedlab.scheduling.output import TokenLogprobs


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request has produced so far, and in this step.

    Attributes
    ----------
    prompt : str or None
        None if the prompt was given as token ids.
    text, new_text : str
        Without a tokenizer both are empty. ``new_text`` never ends inside a character: it may be empty although there
        is a new token.
    finish_reason : str or None
        ``"stop"``, ``"length"`` or ``"abort"``; None while the request goes on.
    logprobs, new_logprobs : tuple of TokenLogprobs or None
        One for each of ``output_token_ids`` and of ``new_token_ids``; None unless the request asked for them.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    new_token_ids: tuple[int, ...]
    text: str
    new_text: str
    finish_reason: str | None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    new_logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class Stream:
    """The output side of a live request: what its user has been given."""

    request: Request
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    detokenizer: IncrementalDetokenizer | None
    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    step: int = 0
    before: tuple[int, str] = (0, "")

    def take(
        self,
        step: int,
        new_token_ids: tuple[int, ...],
        new_logprobs: tuple[TokenLogprobs, ...],
        finish_reason: str | None,
    ) -> RequestOutput:
        """Take in what a step brought; until the step has ended, `start_anew` can take it back."""
        wants_logprobs = self.request.sampling_params.logprobs is not None
        if wants_logprobs and len(new_logprobs) != len(new_token_ids):
            raise IntegrityError(
                f"request {self.request.request_id!r} got {len(new_token_ids)} tokens and {len(new_logprobs)} logprobs"
            )
        self.before, self.step = (len(self.output_token_ids), self.text), step
        self.logprobs.extend(new_logprobs)
        self.output_token_ids.extend(new_token_ids)
        new_text = ""
        if self.detokenizer is not None:
            new_text = self.detokenizer.update(new_token_ids)
            if finish_reason is not None:
                new_text += self.detokenizer.finish()
        self.text += new_text
        return RequestOutput(
            self.request.request_id,
            self.prompt,
            self.prompt_token_ids,
            tuple(self.output_token_ids),
            new_token_ids,
            self.text,
            new_text,
            finish_reason,
            tuple(self.logprobs) if wants_logprobs else None,
            new_logprobs if wants_logprobs else None,
        )

    def start_anew(self, delivered_step: int) -> None:
        """Let the request go back to the tokens that its user has since ``delivered_step``, with nothing computed."""
        if self.step > delivered_step:
            num_tokens, self.text = self.before
            del self.output_token_ids[num_tokens:]
            if self.detokenizer is not None:
                self.detokenizer.restart(self.output_token_ids)
            self.step = delivered_step
        num_tokens = len(self.output_token_ids)
        del self.logprobs[num_tokens:]
        self.request.restart(num_tokens)
