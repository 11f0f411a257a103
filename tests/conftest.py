"""What tests of several parts share: a small exact model, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # Playwright runs once at a time in a process
def browser() -> Iterator[Browser]:
    """Chromium. Without it the test is skipped, except in CI, where it fails."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = _chromium(playwright)
        if path is None:
            message = "no Chromium: on Debian, apt install chromium; else set CHROMIUM to its path"
            pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


def _chromium(playwright: Playwright) -> str | None:
    """Return where Chromium is: what CHROMIUM says, or the system's, or Playwright's own."""
    if wanted := os.environ.get("CHROMIUM"):
        return shutil.which(wanted)
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    own = playwright.chromium.executable_path
    return next(filter(None, found), own if Path(own).exists() else None)


@pytest.fixture(scope="session")
def tiny_model() -> Decoder:
    """A random decoder in float64: exact enough that two ways of computing one thing choose the same token."""
    torch.manual_seed(7)
    config = DecoderConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=96,
        eos_token_id=63,
    )
    model = Decoder(config).double().eval().requires_grad_(False)
    for parameter in model.parameters():  # far from the init's near-uniform logits, so that argmax is never a toss-up
        if parameter.dim() > 1:
            parameter.normal_(std=0.3)
    return model
