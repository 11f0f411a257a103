"""Make docs/performance.md and its plots from pagedlab/bench/recorded/kernels.json (`make performance`).

Our figures come from `pagedlab bench kernels --json pagedlab/bench/recorded/kernels.json` on a GPU; those of others
are constants of `pagedlab.bench.kernels`, which says where they were measured; the text at the end is
docs/performance-notes.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pagedlab import charts
from pagedlab.bench.recorded import recorded_kernels

DOCS = Path(__file__).parent
STEP_PARTS = (
    "schedule",
    "update_states",
    "prepare_inputs",
    "forward",
    "sample",
    "bookkeeping",
    "update_from_output",
)
WAYS = {
    "graphs": "Triton attention, CUDA graphs",
    "eager": "Triton attention, launched by the host",
    "torch": "torch attention, launched by the host",
}


def page(data: dict[str, Any], notes: str) -> str:
    """Return the page as Markdown."""
    engine = data["engine"]
    words = {name: charts.summary(figure) for name, figure in figures(data).items()}
    lines = [
        "# Speed of the kernels and of the whole engine",
        "",
        f"{data['machine']}, {data['date']}.",
        "`pagedlab bench kernels --json pagedlab/bench/recorded/kernels.json` on a GPU measures it again,",
        "`make performance` makes this page of it. The host's side alone is in",
        "[performance-host.md](performance-host.md).",
        "",
        "## Slot mapping",
        "",
        f"![{words['slots']}](images/performance-slots.png)",
        "",
        *table(
            ["case", "µs", "launch floor", "bytes floor", "vLLM 0.25.1", "one program a request"],
            [
                [
                    row["case"],
                    number(row["microseconds"]),
                    number(row.get("launch_floor")),
                    number(row.get("bytes_floor")),
                    number(row["others"].get("vLLM 0.25.1")),
                    number(row["others"].get("a program a request")),
                ]
                for row in rows_of(data, "slot_mapping")
            ],
        ),
        *(
            f"Slots of several KV cache groups, {row['case']}: {number(row['microseconds'])} µs; a launch a group "
            f"takes {number(row['others']['a launch a group'])} µs.\n"
            for row in rows_of(data, "slot_mapping_groups")
        ),
        "## Commit of block tables",
        "",
        *table(
            ["case", "µs", "full copy", "vLLM 0.25.1 (a full copy)"],
            [
                [
                    row["case"],
                    number(row["microseconds"]),
                    number(row["others"]["full copy"]),
                    number(row["others"]["full copy, vLLM 0.25.1"]),
                ]
                for row in rows_of(data, "commit")
            ],
        ),
        "## Writing keys and values",
        "",
        *table(
            ["case", "µs", "bytes floor", "GB/s, read and written"],
            [
                [row["case"], number(row["microseconds"]), number(row["bytes_floor"]), number(row["gb_per_s"])]
                for row in rows_of(data, "kv_cache_write")
            ],
        ),
        "## Paged attention",
        "",
        "bfloat16 unless it says otherwise, 32 query heads, 8 KV heads of 128, blocks of 16 in random order. GB/s",
        "counts keys and values.",
        "",
        f"![{words['attention']}](images/performance-attention.png)",
        "",
        *table(
            ["case", "µs", "GB/s", "bytes floor", "error", "others, µs"],
            [
                [
                    row["case"],
                    number(row["microseconds"]),
                    number(row.get("gb_per_s")),
                    number(row.get("bytes_floor")),
                    f"{row['error']:.1e}",
                    "; ".join(f"{name} {number(value)}" for name, value in row.get("others", {}).items()) or "-",
                ]
                for row in rows_of(data, "paged_attention")
            ],
        ),
        "## The whole engine",
        "",
        f"{engine['requests']} requests of {engine['max_tokens']} tokens with the shipped model, {engine['dtype']}, "
        "prompts included.",
        "",
        f"![{words['step']}](images/performance-step.png)",
        "",
        *table(
            ["", "tokens/s", *(f"`{part}`, µs" for part in STEP_PARTS)],
            [
                [
                    called,
                    f"{engine[way]['tokens_per_s']:,}",
                    *(number(engine[way]["step_us"][part]) for part in STEP_PARTS),
                ]
                for way, called in WAYS.items()
            ],
        ),
        notes.rstrip(),
    ]
    return "\n".join(lines) + "\n"


def rows_of(data: dict[str, Any], kernel: str) -> list[dict[str, Any]]:
    """Return the rows of one kernel."""
    return [row for row in data["rows"] if row["kernel"] == kernel]


def number(value: float | None) -> str:
    """Return a figure as a table shows it."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """Return a Markdown table and an empty line."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)] + [""]


# --- plots --------------------------------------------------------------------------------------------------------


def figures(data: dict[str, Any]) -> dict[str, Any]:
    """Return the plotly figures by name."""
    slots = [row for row in rows_of(data, "slot_mapping") if "a program a request" in row["others"]]
    decodes = [
        {**row, "case": row["case"].removeprefix("decode, ")}
        for row in rows_of(data, "paged_attention")
        if "gb_per_s" in row
    ]
    return {
        "slots": charts.kernel_bars(slots, others=["vLLM 0.25.1"]),
        "attention": charts.kernel_bars(decodes, measure="gb_per_s"),
        "step": charts.step_parts(
            {called: data["engine"][way]["step_us"] for way, called in WAYS.items()}, step="a step of 256 decodes"
        ),
    }


def save_images(data: dict[str, Any]) -> None:
    """Take a picture of each plot with Chromium."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        tab = browser.new_page(viewport={"width": 1000, "height": 700})
        for name, figure in figures(data).items():
            tab.set_content(figure.to_html(include_plotlyjs=True, config={"staticPlot": True}))
            tab.wait_for_selector(".main-svg")
            tab.locator(".plot-container").first.screenshot(path=DOCS / "images" / f"performance-{name}.png")
        browser.close()


def build() -> str:
    """Return the page that pagedlab/bench/recorded/kernels.json and the notes make."""
    data = recorded_kernels()
    return page(data, (DOCS / "performance-notes.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    (DOCS / "performance.md").write_text(build(), encoding="utf-8")
    save_images(recorded_kernels())
