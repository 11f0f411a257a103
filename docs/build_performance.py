"""Make docs/performance.md and its plots from docs/performance.json (`make performance`).

Our figures come from `pagedlab bench kernels --json docs/performance.json` on a GPU; those of others are constants of
`pagedlab.bench.kernels`, which says where they were measured; the text at the end is docs/performance-notes.md.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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
    lines = [
        "# Speed of the kernels and of the whole engine",
        "",
        f"{data['machine']}, {data['date']}.",
        "`pagedlab bench kernels --json docs/performance.json` on a GPU measures it again, `make performance` makes",
        "this page of it. The host's side alone is in [performance-host.md](performance-host.md).",
        "",
        "## Slot mapping",
        "",
        f"![{slot_summary(data)}](images/performance-slots.png)",
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
        f"![{attention_summary(data)}](images/performance-attention.png)",
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
        f"![{step_summary(data)}](images/performance-step.png)",
        "",
        *table(
            ["", "tokens/s", *(f"`{part}`, µs" for part in STEP_PARTS)],
            [
                [
                    words,
                    f"{engine[way]['tokens_per_s']:,}",
                    *(number(engine[way]["step_us"][part]) for part in STEP_PARTS),
                ]
                for way, words in WAYS.items()
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


# --- what a plot says, in words -----------------------------------------------------------------------------------


def slot_summary(data: dict[str, Any]) -> str:
    """Say what the plot of slot mapping shows."""
    rows = [row for row in rows_of(data, "slot_mapping") if "a program a request" in row["others"]]
    times = [row["others"]["vLLM 0.25.1"] / row["microseconds"] for row in rows]
    return (
        f"Slot mapping in {len(rows)} cases, microseconds on a logarithmic axis: pagedlab takes "
        f"{number(min(row['microseconds'] for row in rows))} to {number(max(row['microseconds'] for row in rows))}, "
        f"between {min(times):.1f} and {max(times):.0f} times less than vLLM 0.25.1"
    )


def attention_summary(data: dict[str, Any]) -> str:
    """Say what the plot of attention shows."""
    speeds = [row["gb_per_s"] for row in rows_of(data, "paged_attention") if "gb_per_s" in row]
    copy = rows_of(data, "copy")[0]["gb_per_s"]
    return (
        f"Paged decode attention in {len(speeds)} cases, GB/s of keys and values: {number(min(speeds))} to "
        f"{number(max(speeds))}, beside {number(copy)} of a large copy"
    )


def step_summary(data: dict[str, Any]) -> str:
    """Say what the plot of a step shows."""
    sums = {way: sum(data["engine"][way]["step_us"].values()) for way in WAYS}
    forward = {way: data["engine"][way]["step_us"]["forward"] for way in WAYS}
    return "A step of 256 decodes in microseconds: " + "; ".join(
        f"{words}: {number(sums[way])}, of which forward {number(forward[way])}" for way, words in WAYS.items()
    )


# --- plots --------------------------------------------------------------------------------------------------------


def figures(data: dict[str, Any]) -> dict[str, Any]:
    """Return the plotly figures by name."""
    import plotly.graph_objects as go

    from pagedlab.teaching.charts import COLORS, FONT, GROUND, INK

    layout = {
        "paper_bgcolor": GROUND,
        "plot_bgcolor": GROUND,
        "font": {"size": FONT, "color": INK},
        "width": 960,
        "height": 460,
        "margin": {"l": 70, "r": 40, "t": 80, "b": 60},
        "legend": {"orientation": "h", "y": 1.05, "yanchor": "bottom", "traceorder": "normal"},
    }
    slots = [row for row in rows_of(data, "slot_mapping") if "a program a request" in row["others"]]
    cases = [row["case"] for row in slots]
    slot_figure = go.Figure(layout={**layout, "barmode": "group", "height": 560})
    for name, values, color, pattern in (
        ("pagedlab", [row["microseconds"] for row in slots], COLORS[0], ""),
        ("vLLM 0.25.1", [row["others"]["vLLM 0.25.1"] for row in slots], COLORS[1], "/"),
    ):
        slot_figure.add_bar(
            name=name, y=cases, x=values, orientation="h", marker={"color": color, "pattern_shape": pattern}
        )
    floors = [max(row["launch_floor"], row["bytes_floor"]) for row in slots]
    slot_figure.add_scatter(
        name="floor: launch or bytes",
        y=cases,
        x=floors,
        mode="markers",
        marker={"symbol": "line-ns", "size": 26, "line": {"width": 3, "color": INK}},
    )
    slot_figure.update_xaxes(type="log", title="µs a launch", gridcolor="#dddddd", dtick=1)
    slot_figure.update_yaxes(autorange="reversed", automargin=True)

    decodes = [row for row in rows_of(data, "paged_attention") if "gb_per_s" in row]
    names = [row["case"].removeprefix("decode, ") for row in decodes]
    attention = go.Figure(layout={**layout, "barmode": "group"})
    others = ("vLLM 0.33.0, unified", "dense SDPA")
    for index, name in enumerate(("pagedlab", *others)):
        speeds = [
            row["gb_per_s"]
            if name == "pagedlab"
            else row["gb_per_s"] * row["microseconds"] / row["others"][name]
            if name in row.get("others", {})
            else None
            for row in decodes
        ]
        marker = {"color": COLORS[index], "pattern_shape": ("", "/", ".")[index]}
        attention.add_bar(name=name, x=names, y=speeds, marker=marker)
    copy = rows_of(data, "copy")[0]["gb_per_s"]
    attention.add_hline(y=copy, line={"dash": "dash", "color": INK}, annotation_text=f"a large copy: {copy:,.0f}")
    attention.update_yaxes(title="GB/s of keys and values", gridcolor="#dddddd")

    step = go.Figure(layout={**layout, "barmode": "stack", "height": 360})
    patterns = ("", "/", ".", "x", "-", "+", "\\")
    for index, part in enumerate(STEP_PARTS):
        step.add_bar(
            name=part,
            y=[words.replace(", ", ",<br>") for words in WAYS.values()],
            x=[data["engine"][way]["step_us"][part] for way in WAYS],
            orientation="h",
            marker={"color": COLORS[index], "pattern_shape": patterns[index]},
        )
    step.update_xaxes(title="µs in a step of 256 decodes", gridcolor="#dddddd")
    step.update_yaxes(autorange="reversed", automargin=True)
    return {"slots": slot_figure, "attention": attention, "step": step}


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
    """Return the page that docs/performance.json and the notes make."""
    data = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    return page(data, (DOCS / "performance-notes.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    (DOCS / "performance.md").write_text(build(), encoding="utf-8")
    save_images(json.loads((DOCS / "performance.json").read_text(encoding="utf-8")))
