"""The plot of what a language model's step costs, drawn from the measurements in ``language-cost.json``."""

import io
import json
from pathlib import Path

import matplotlib
from docutils import nodes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from sphinx.util.docutils import SphinxDirective

MEASURED = Path(__file__).parent / "language-cost.json"
TITLES = {
    "prompt": "tokens of a prompt",
    "group": "responses in a group",
    "response": "tokens of a response",
    "vocabulary": "tokens of the vocabulary",
}
GREY, TIME, MEMORY = "#808890", "#2f7fc4", "#c46a1f"


def cost_svg() -> str:
    """Return one SVG with a panel for each thing that grows: seconds and megabytes, both over those of the base."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "cost",
        "font.size": 11,
        "text.color": GREY,
        "axes.edgecolor": GREY,
    }
    with matplotlib.rc_context({**style, "xtick.color": GREY, "ytick.color": GREY, "axes.labelcolor": GREY}):
        figure = Figure(figsize=(9, 5.6))
        for axes, (name, rows) in zip(figure.subplots(2, 2).flat, measured["axes"].items(), strict=True):
            base = next(row for row in rows if row["value"] == measured["base"][name])
            at = [row["value"] for row in rows]
            for what, colour, mark in (("seconds", TIME, "o"), ("megabytes", MEMORY, "s")):
                axes.plot(at, [row[what] / base[what] for row in rows], color=colour, marker=mark, label=what)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xticks(at, [f"{value:,}" for value in at])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.set_xlabel(TITLES[name])
            axes.grid(color=GREY, alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, [f"{label}, over the base" for label in labels], loc="upper center", ncols=2, frameon=False
        )
        figure.tight_layout(rect=(0, 0, 1, 0.94))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Creator": None, "Date": None})
    svg = buffer.getvalue().decode()
    return svg[svg.index("<svg") :].replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)


class CostPlot(SphinxDirective):
    """Put the plot into a page."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(MEASURED))
        return [nodes.raw("", cost_svg(), format="html")]
