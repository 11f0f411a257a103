"""What tests of several parts share: a small exact model, a browser, and ranks in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

# Tests run side by side, each on a core: a second thread would only wait for it, and waiting costs as much as work.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for what tests start

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def script() -> Callable[[Path], ModuleType]:
    """Import a script that is part of no package, such as those that build pages of the docs."""

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


_SLOW = ("browser", "lessons", "teaching", "widgets")
"""Folders whose files may take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the slow files over the run: two at a time are slower than one after the other, the last one is alone."""
    files = list(dict.fromkeys(item.path for item in items))
    place = {}
    for is_slow in (True, False):
        alike = [path for path in files if (path.parent.name in _SLOW) == is_slow]
        place |= {path: (at + 0.5 * (not is_slow)) / len(alike) for at, path in enumerate(alike)}
    items.sort(key=lambda item: place[item.path])


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


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, list[dict[str, Any]]]]:
    """Run an engine on each of several ranks, every one a process (`rank_process.py`)."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")

    def run(
        requests: Mapping[str, tuple[str, int]],
        world_size: int,
        interleave: int = 1,
        *,
        budget: int = 64,
        backend: str = "torch",
        records: bool = False,
    ) -> tuple[Path, list[dict[str, Any]]]:
        """Return the folder of the traces, and what each rank printed."""
        folder = tmp_path_factory.mktemp("ranks")
        settings = {
            "folder": str(folder), "world_size": world_size, "interleave": interleave, "budget": budget,
            "backend": backend, "records": records, "requests": dict(requests),
        }  # fmt: skip
        script = str(Path(__file__).with_name("rank_process.py"))
        ranks = [
            subprocess.Popen(
                [sys.executable, script, json.dumps({**settings, "rank": rank})], stdout=subprocess.PIPE, text=True
            )
            for rank in range(world_size)
        ]
        try:
            outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * world_size, outputs
        return folder, [json.loads(output.splitlines()[-1]) for output in outputs]

    return run
