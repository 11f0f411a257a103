"""Text to token ids and back, one token per UTF-8 byte.

A byte tokenizer needs no vocabulary file and has no unknown words: any text of any language is some bytes. It is also
the honest way to meet a problem that every streaming server has: one character can take several tokens, so the text of
a token alone may not exist yet.

>>> tokenizer = ByteTokenizer()
>>> tokenizer.encode("né")
[110, 195, 169]
>>> tokenizer.decode([110, 195, 169])
'né'
>>> detokenizer = IncrementalDetokenizer(tokenizer)
>>> [detokenizer.update([token_id]) for token_id in (110, 195, 169)]
['n', '', 'é']

vLLM counterpart: ``vllm/tokenizers/`` and ``vllm/v1/engine/detokenizer.py`` (``IncrementalDetokenizer``) at 0.25.1.
What differs: a token is a byte, so holding back an unfinished character is the work of Python's incremental UTF-8
decoder; and there are no stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from pagedlab.errors import ModelError, RequestError

END_OF_TEXT = "<|endoftext|>"
"""What separates two texts in training: it ends one and starts the next."""

_SYMBOLS = {ord(" "): "␠", ord("\n"): "⏎", ord("\t"): "⇥", ord("\r"): "␍"}


class ByteTokenizer:
    """Token id = byte value, and one id more for the end of a text."""

    eos_token_id = 256
    bos_token_id = 256
    vocab_size = 257

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Turn text into ids, after a start token if ``add_bos``.

        Raises
        ------
        RequestError
            If the text holds half of a surrogate pair, which has no UTF-8 form.
        """
        try:
            ids = list(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds {text[error.start]!r} at place {error.start}, which is half a character: "
                "decode the text's source as UTF-8 or UTF-16 first"
            ) from None
        return [self.bos_token_id, *ids] if add_bos else ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Turn ids into text: special tokens give none, bytes that are no UTF-8 give U+FFFD.

        Raises
        ------
        ModelError
            If an id is not in the vocabulary.
        """
        return self.to_bytes(token_ids).decode(errors="replace")

    def to_bytes(self, token_ids: Iterable[int]) -> bytes:
        """Turn ids into the bytes they stand for, passing over special tokens."""
        token_ids = [self._check(token_id) for token_id in token_ids]
        return bytes(token_id for token_id in token_ids if token_id != self.eos_token_id)

    def token_text(self, token_id: int) -> str:
        r"""Give a short printable label for one token.

        >>> [ByteTokenizer().token_text(token_id) for token_id in (97, 32, 10, 0xC3, 256)]
        ['a', '␠', '⏎', '\\xc3', '<end>']
        """
        if self._check(token_id) == self.eos_token_id:
            return "<end>"
        if token_id in _SYMBOLS:
            return _SYMBOLS[token_id]
        return chr(token_id) if 0x20 < token_id < 0x7F else f"\\x{token_id:02x}"

    def _check(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise ModelError(f"token id {token_id} is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}")
        return token_id


class IncrementalDetokenizer:
    """The text of one request as its tokens arrive; never a part of a character.

    What `update` returned so far, plus `finish`, is what `ByteTokenizer.decode` gives for all the tokens at once.

    Parameters
    ----------
    tokenizer : ByteTokenizer
        Whose ids they are.
    """

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def update(self, new_token_ids: Iterable[int]) -> str:
        """Take new tokens; return the text that is now complete, which may be empty."""
        return self._decoder.decode(self._tokenizer.to_bytes(new_token_ids))

    def restart(self, token_ids: Iterable[int]) -> None:
        """Go back to where it stood after ``token_ids``, all that came before."""
        self._decoder.reset()
        self.update(token_ids)

    def finish(self) -> str:
        """Return what a request that ended inside a character still owes: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
