"""A question about a scene: predict, then reveal.

>>> asked = Question("Which block is taken?", "pick", "7", (), {"0": "The null block."}, "Block 7.", 0, 1, fact="block")
>>> Question.from_json(asked.to_json()) == asked
True

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedlab.scenes.scene import Scene


@dataclass(frozen=True)
class Question:
    """Predict, then reveal: the scene stops before an event and asks; the answer was computed from the trace.

    Attributes
    ----------
    prompt : str
        The question.
    kind : {"choice", "number", "pick"}
        A pick is answered by a click on an object of the stage.
    answer : str
        The right choice, the number in decimal digits, or the fact that the right object has.
    choices : tuple of str
        For a choice: what to choose from, the answer among them. Else empty.
    reasons : mapping of str to str
        Why each wrong choice is wrong; for a number or a pick, why some likely ones are (the player has a word for the
        others).
    explanation : str
        What to say to the right answer, and to whoever asks to be shown it.
    ask_frame, frame : int
        Where the scene stops to ask, and the frame that shows the answer.
    scene : Scene or None
        Where it is played.
    fact : str
        For a pick: which fact of an object is the answer (``block``, say; see `Actor.data`, `Grid.noun`). Else empty.

    Raises
    ------
    ValueError
        If the kind is none of these, or a part is missing or too much for it.
    """

    prompt: str
    kind: str
    answer: str
    choices: tuple[str, ...]
    reasons: Mapping[str, str]
    explanation: str
    ask_frame: int
    frame: int
    scene: Scene | None = field(default=None, repr=False, compare=False)
    fact: str = ""

    def __post_init__(self) -> None:
        if self.kind not in {"choice", "number", "pick"}:
            raise ValueError(f"a question is a 'choice', a 'number' or a 'pick', not {self.kind!r}")
        if (self.kind == "pick") != bool(self.fact):
            raise ValueError(f"a pick names the fact that is asked for, and only a pick: {self.kind}, {self.fact!r}")
        if self.kind == "choice":
            if self.answer not in self.choices or len(set(self.choices)) != len(self.choices):
                raise ValueError(
                    f"the choices {self.choices} must differ, and the answer {self.answer!r} be one of them"
                )
            if missing := [choice for choice in self.choices if choice != self.answer and choice not in self.reasons]:
                raise ValueError(f"no reason why {missing[0]!r} is wrong: {self.prompt}")
        if self.answer in self.reasons:
            raise ValueError(f"{self.answer!r} is the answer; it needs no reason for being wrong: {self.prompt}")

    def to_json(self) -> dict[str, Any]:
        """Return the question, without its scene, as JSON-ready data."""
        return {
            "prompt": self.prompt,
            "kind": self.kind,
            "answer": self.answer,
            "choices": list(self.choices),
            "reasons": dict(self.reasons),
            "explanation": self.explanation,
            "ask_frame": self.ask_frame,
            "frame": self.frame,
            **({"fact": self.fact} if self.fact else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Question:
        """Read what `to_json` wrote."""
        fields = dict(data)
        return cls(**{**fields, "choices": tuple(fields["choices"])})
