"""docs/performance.md is what pagedlab/bench/recorded/kernels.json and the notes make; nobody typed its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pagedlab import charts
from pagedlab.bench.recorded import recorded_kernels

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def builder(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(DOCS / "build_performance.py")


def test_the_page_is_made_from_the_measured_data(builder: ModuleType) -> None:
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == builder.build(), "run: make performance"


def test_every_plot_has_a_picture_and_says_in_words_what_it_shows(builder: ModuleType) -> None:
    data = recorded_kernels()
    for name, figure in builder.figures(data).items():
        assert (DOCS / "images" / f"performance-{name}.png").stat().st_size > 10_000
        assert f"![{charts.summary(figure)}](images/performance-{name}.png)" in builder.build()


def test_no_figure_is_far_from_what_was_promised_of_the_kernels() -> None:
    """The committed data hold the claims: slots not slower than vLLM's in any case, attention near the bandwidth."""
    data = recorded_kernels()
    rows = {(row["kernel"], row["case"]): row for row in data["rows"]}
    for (kernel, _), row in rows.items():
        if kernel == "slot_mapping":
            assert row["microseconds"] <= row["others"]["vLLM 0.25.1"]
        if "error" in row:
            assert row["error"] < (1e-5 if "float32" in row["case"] else 1e-2)
    for case, gb_per_s in (("64 x 4,096", 4150), ("256 x 1,024", 4050), ("8 x 32,768", 4150), ("1 x 131,072", 3850)):
        assert rows["paged_attention", f"decode, {case}"]["gb_per_s"] >= gb_per_s
    engine = data["engine"]
    assert engine["graphs"]["tokens_per_s"] > engine["eager"]["tokens_per_s"]
