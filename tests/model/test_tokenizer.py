"""Bytes in, bytes out; a reader of the stream never sees a part of a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.errors import ModelError, RequestError
from pagedlab.model.tokenizer import ByteTokenizer, IncrementalDetokenizer

TOKENIZER = ByteTokenizer()
TEXT = st.text(st.characters(codec="utf-8"))
TOKEN_IDS = st.lists(st.integers(0, 256))


@given(TEXT)
def test_text_survives_the_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_bos=True)) == text


def test_a_start_token_comes_only_when_asked_for() -> None:
    assert TOKENIZER.encode("a") == [97]
    assert TOKENIZER.encode("a", add_bos=True) == [256, 97]


@given(TOKEN_IDS, st.integers(1, 5))
def test_streamed_text_joins_to_the_text_of_all_tokens(token_ids: list[int], size: int) -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    pieces = [detokenizer.update(token_ids[start : start + size]) for start in range(0, len(token_ids), size)]
    assert "".join(pieces) + detokenizer.finish() == TOKENIZER.decode(token_ids)


@given(TEXT)
def test_streamed_text_never_holds_part_of_a_character(text: str) -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    streamed = ""
    for token_id in TOKENIZER.encode(text):
        streamed += detokenizer.update([token_id])
        assert text.startswith(streamed)
    assert detokenizer.finish() == ""
    assert streamed == text


def test_a_request_that_ends_inside_a_character_owes_a_replacement() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert detokenizer.update([0xF0, 0x9F]) == ""
    assert detokenizer.finish() == "�"


def test_every_token_has_its_own_short_printable_label() -> None:
    labels = [TOKENIZER.token_text(token_id) for token_id in range(257)]
    assert len(set(labels)) == 257
    assert all(label.isprintable() and label.strip() == label and 1 <= len(label) <= 5 for label in labels)
    assert [labels[i] for i in (97, 32, 10, 0xC3, 256)] == ["a", "␠", "⏎", "\\xc3", "<end>"]


@pytest.mark.parametrize("token_id", [-1, 257])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    for call in (TOKENIZER.token_text, lambda i: TOKENIZER.decode([i]), lambda i: TOKENIZER.to_bytes([i])):
        with pytest.raises(ModelError, match=f"token id {token_id} is not in the vocabulary"):
            call(token_id)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match="at place 3, which is half a character"):
        TOKENIZER.encode("abc\ud83d")
