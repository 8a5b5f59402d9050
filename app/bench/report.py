"""The page of a bench: one HTML file with its data, style and plotting library inside, so that it opens
anywhere, without a network."""

from __future__ import annotations

import json
from typing import Any

from app.bench.results import table_cells
from app.resources import PlotlyScript, resource_dir, templates

PLOTS = (
    ("rate", "Speed", "Tokens a second of whole runs, with 95 % intervals."),
    ("ratio", "Speed against the autoregressive lane", "Paired on prompt and round, with 95 % intervals."),
    ("unconditional", "Accepted at each depth", "Of all steps: how many accepted a draft of this depth."),
    ("conditional", "Accepted of those that came so far", "Of the steps whose walk stood one depth above."),
    ("heatmap", "Depth and rank", "Accepted of the times the walk stood at the draft's parent."),
    ("stages", "Time of a step", "Mean milliseconds of each stage."),
    ("tau", "tau by category", "Committed tokens a step, pooled, bonus included."),
)  # fmt: skip


def report(found: dict[str, Any]) -> str:
    """The HTML of results.json's object."""
    heads, rows = table_cells(found)
    static = resource_dir("static")
    plan = found["plan"]
    engine = plan["engine"]
    kernels = f"{engine['kernels']} kernels"
    facts = [
        ("measured", found["created_at"].replace("T", " ").replace("+00:00", " UTC")),
        ("machine", plan["machine"]),
        ("engine", f"{engine['dtype']} on {engine['device']}, {kernels}"),
        ("threads", str(engine["threads"])),
        ("drafters", ", ".join(plan["drafters"])),
        ("prompts", str(len(plan["prompts"]))),
        ("rounds", str(plan["repeats"])),
        ("new tokens", str(plan["new_tokens"])),
    ]  # fmt: skip
    return (
        templates()
        .get_template("bench.html")
        .render(
            found=found,
            heads=heads,
            rows=rows,
            facts=facts,
            plots=PLOTS,
            data=_script_json(found),
            plotly=PlotlyScript().text(),
            tokens=(static / "tokens.css").read_text(encoding="utf-8"),
            style=(static / "bench" / "report.css").read_text(encoding="utf-8"),
            script=(static / "bench" / "report.js").read_text(encoding="utf-8"),
        )
    )


def _script_json(found: dict[str, Any]) -> str:
    """JSON that no HTML parser finds an end tag or a comment in."""
    return json.dumps(found, allow_nan=False).replace("<", "\\u003c")
