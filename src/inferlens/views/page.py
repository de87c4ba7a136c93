"""One HTML file that draws a chart offline: the libraries are inside, and the page may load nothing.

Data goes in as JSON in which no ``<`` is left, so that no name can close the script it stands in. A content security
policy forbids every request, every script but the two that are here, and making code of text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src {hashes}; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ margin: 0; padding: 16px; background: {light}; }}
#chart {{ max-width: 100%; overflow-x: auto; }}
@media (prefers-color-scheme: dark) {{ body {{ background: {dark}; }} }}
</style>
<script>{libraries}</script>
</head>
<body>
<div id="chart"></div>
<noscript>This chart is drawn by JavaScript, which is inside this file; nothing is loaded.</noscript>
<script>{drawing}</script>
</body>
</html>
"""
# "ast" has expressions interpreted, so that the page needs no permission to make code of text.
_DRAWING = """
const charts = %s;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function draw() {
  vegaEmbed("#chart", dark.matches ? charts.dark : charts.light, {renderer: "svg", actions: false, ast: true});
}
dark.addEventListener("change", draw);
draw();
"""


def page(light: dict[str, Any], dark: dict[str, Any], title: str, libraries: str) -> str:
    """The file.

    Args:
        light: the chart for light pages, a Vega-Lite document.
        dark: the one for dark pages.
        title: of the page.
        libraries: JavaScript that defines ``vegaEmbed``.
    """
    charts = json.dumps({"light": light, "dark": dark}, sort_keys=True).replace("<", "\\u003c")
    scripts = {"libraries": libraries.replace("</script", "<\\/script"), "drawing": _DRAWING.replace("%s", charts)}
    return _PAGE.format(
        title=html.escape(title),
        light=light["config"]["background"],
        dark=dark["config"]["background"],
        hashes=" ".join(_digest(script) for script in scripts.values()),
        **scripts,
    )


def _digest(script: str) -> str:
    """A script as the policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
