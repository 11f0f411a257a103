"""The shipped model is small enough to ship, and writes English."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from pagedlab.model.decoder import DenseAttention
from pagedlab.model.loading import WEIGHTS, LoadedModel, load_model

FOLDER = WEIGHTS / "quill"
COMMON_WORDS = set((Path(__file__).parent / "common_words.txt").read_text(encoding="ascii").split())
PROMPTS = ["To be, or not to be", "In the beginning", "ROMEO.\n", "Please explain what a GPU is.\n", "日本 100% 🙂 "]


@pytest.fixture(scope="module")
def quill() -> LoadedModel:
    return load_model("quill")


@torch.inference_mode()
def write(quill: LoadedModel, prompt: str, temperature: float, max_tokens: int = 120) -> str:
    generator = torch.Generator().manual_seed(0)
    prompt_ids = quill.tokenizer.encode(prompt)
    ids = prompt_ids.copy()
    for _ in range(max_tokens):
        hidden = quill.model(torch.tensor(ids), torch.arange(len(ids)), DenseAttention(1))
        logits = quill.model.compute_logits(hidden[-1])
        probabilities = (logits / temperature).softmax(-1) if temperature else None
        token_id = (
            logits.argmax() if probabilities is None else torch.multinomial(probabilities, 1, generator=generator)
        )
        if int(token_id) == quill.tokenizer.eos_token_id:
            break
        ids.append(int(token_id))
    return quill.tokenizer.decode(ids[len(prompt_ids) :])


def test_it_has_one_to_two_million_parameters_in_under_four_megabytes(quill: LoadedModel) -> None:
    assert 1_000_000 <= sum(parameter.numel() for parameter in quill.model.parameters()) <= 2_000_000
    assert (FOLDER / "model.safetensors").stat().st_size < 4_000_000
    assert quill.model.max_model_len >= 1024


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 0.9), (0.8, 0.8)])
def test_it_writes_mostly_common_words_in_plain_characters(
    quill: LoadedModel, temperature: float, least: float
) -> None:
    words: list[str] = []
    for prompt in PROMPTS:
        text = write(quill, prompt, temperature)
        assert re.fullmatch(r"[ -~\n]*", text)
        words += re.findall(r"[a-z']+", text.lower())[1:-1]  # the first and the last may be parts of words
    assert len(words) >= 20 * len(PROMPTS) / 2
    assert sum(word in COMMON_WORDS for word in words) / len(words) >= least, words


def test_it_starts_a_text_after_the_separator(quill: LoadedModel) -> None:
    hidden = quill.model(torch.tensor([quill.tokenizer.bos_token_id]), torch.tensor([0]), DenseAttention(1))
    first = quill.tokenizer.token_text(int(quill.model.compute_logits(hidden)[0].argmax()))
    assert first.isupper()  # a heading, or the first letter of a poem


def test_it_holds_a_text_as_long_as_its_context(quill: LoadedModel) -> None:
    """Losses near the end of a full context are no worse than near its start: RoPE was trained up to there."""
    text = write(quill, "The king ", 0.8, max_tokens=60)
    ids = torch.tensor(quill.tokenizer.encode(text * 40)[: quill.model.max_model_len])
    hidden = quill.model(ids, torch.arange(len(ids)), DenseAttention(1))
    losses = torch.nn.functional.cross_entropy(quill.model.compute_logits(hidden[:-1]), ids[1:], reduction="none")
    assert len(ids) == quill.model.max_model_len
    assert losses[-200:].mean() < losses[:60].mean()  # by then it knows the repeated line


def test_its_record_belongs_to_its_weights(quill: LoadedModel) -> None:
    record = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    assert record["parameters"] == sum(parameter.numel() for parameter in quill.model.parameters())
    assert record["curve"][-1]["validation_loss"] < 1.1 < record["curve"][0]["validation_loss"]
    greedy = record["samples"][2]
    assert greedy["temperature"] == 0
    length = len(greedy["prompt"]) + 20  # further on, another machine's rounding may choose another word
    assert greedy["prompt"] + write(quill, greedy["prompt"], 0.0, 20) == greedy["text"][:length]
