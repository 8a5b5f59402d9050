"""A run as one HTML file that opens from disk, without a network and without a server.

It is the page itself: the same template, styles and ES modules, all of them inside the file. Modules become
`data:` URLs of an import map under bare names, for relative imports do not work between them; two of them,
the websocket and the HTTP API, are replaced by ones that read the trace in the file (static/report/). A
content security policy in the file forbids any connection.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from app.analysis import analyse
from app.resources import PlotlyScript, resource_dir, templates, version
from app.runs import RunStore
from app.settings import default_data_dir
from ddtree.settings import Settings
from ddtree.trace import Trace
from ddtree.trace_file import load_trace

REPLACED = {"core/api.js": "report/api.js", "core/socket.js": "report/socket.js"}
"""Modules of the page, and what stands in their place in a report; an import of ORIGINAL + name gets the
page's own."""
ORIGINAL = "original:"

_IMPORT = re.compile(r'(?m)(\bfrom\s+|^import\s+)"([^"\n]+\.js)"')
_STYLE = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">')
_SCRIPT = re.compile(r'<script src="/static/theme\.js"></script>')


def find_run(name: str, data: str | None) -> tuple[Trace, str]:
    """The trace of a file, or of a run in the store of the folder `data`, and the run's id (of a file: its
    name). Raises ValueError with one sentence that names both places."""
    file = Path(name)
    if file.is_file():
        try:
            return load_trace(file.read_bytes()), file.stem
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    folder = default_data_dir() if data is None else Path(data)
    place = folder / "runs.sqlite3"
    if not place.is_file():
        raise ValueError(
            f"{name} is no file, and there are no stored runs in {folder}: name its --data folder"
        )
    store = RunStore(folder, serving=False)
    try:
        row = store.run(name)
        if row is None:
            raise ValueError(f"{name} is neither a file nor a run stored in {place}")
        return load_trace("".join(store.trace_parts(row)).encode()), row.run_id
    finally:
        store.close()


def report(trace: Trace, run_id: str) -> str:
    """The HTML of a run."""
    static = resource_dir("static")
    context = {
        "version": version(),
        "plotly_url": "",
        "settings_schema": Settings.model_json_schema(),
        "settings_defaults": Settings().model_dump(mode="json"),
        "report": {"facts": described(trace)},
    }
    page = templates().get_template("index.html").render(context)
    page = _STYLE.sub(lambda found: _style(static / found[1]), page)
    page = _SCRIPT.sub(lambda _: f"<script>{(static / 'theme.js').read_text('utf-8')}</script>", page)
    head, mark, body = page.partition("<!-- report -->")
    assert mark, "templates/index.html has no place for a report's scripts"
    return head + _scripts(static, trace, run_id) + body


def _style(file: Path) -> str:
    return f"<style>{file.read_text(encoding='utf-8')}</style>"


def _scripts(static: Path, trace: Trace, run_id: str) -> str:
    """Policy, data, plotting library, modules: in that order."""
    policy = (
        "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:"
    )
    steps = list(trace.steps)
    found = analyse(run_id, steps, 0, len(steps) - 1).model_dump(mode="json") if steps else None
    imports = {name: _data_url(text) for name, text in modules(static).items()}
    return "\n".join(
        [
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f'<script type="application/json" id="report-run">{_in_script(json.dumps(run_id))}</script>',
            f'<script type="application/json" id="report-trace">{_in_script(trace.to_json())}</script>',
            f'<script type="application/json" id="report-analysis">{_in_script(json.dumps(found))}</script>',
            f"<script>{PlotlyScript().text()}</script>",
            f'<script type="importmap">{json.dumps({"imports": imports})}</script>',
            '<script type="module">import "main.js";</script>',
        ]
    )


def modules(static: Path) -> dict[str, str]:
    """The modules that main.js needs, by bare name, with every import by such a name."""
    made: dict[str, str] = {}
    wanted = ["main.js"]
    while wanted:
        name = wanted.pop()
        if name in made:
            continue
        own = name.removeprefix(ORIGINAL)
        source = REPLACED.get(own, own) if own == name else own
        made[name] = _bare(source, (static / source).read_text(encoding="utf-8"), wanted)
    return made


def _bare(name: str, text: str, wanted: list[str]) -> str:
    """The module's text with bare names; they are appended to `wanted`."""

    def renamed(found: re.Match[str]) -> str:
        given = found[2]
        target = given if given.startswith(ORIGINAL) else _resolved(PurePosixPath(name).parent / given)
        wanted.append(target)
        return f'{found[1]}"{target}"'

    return _IMPORT.sub(renamed, text)


def _resolved(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _data_url(text: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(text.encode()).decode()


def _in_script(text: str) -> str:
    """JSON that no HTML parser finds an end tag or a comment in."""
    return text.replace("<", "\\u003c")


def described(trace: Trace) -> list[tuple[str, Any]]:
    """What the head of a report says: [(name, value)]."""
    settings = trace.settings
    return [
        ("prompt", trace.prompt.text),
        ("method", settings.method),
        ("drafter", settings.drafter or "none"),
        ("budget", settings.budget),
        ("temperature", f"{settings.temperature:g}"),
        ("seed", settings.seed),
        ("made", trace.created_at[:16].replace("T", " ") + " UTC"),
    ]
