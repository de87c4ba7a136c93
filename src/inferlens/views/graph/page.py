"""One HTML file with a drawing in it that can be moved and enlarged, offline.

The drawing is escaped already. A content security policy forbids every request, and every script but the one here.
"""

from __future__ import annotations

import base64
import hashlib
import html

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src '{digest}'">
<title>{title}</title>
<style>
html, body {{ margin: 0; height: 100%; overflow: hidden; }}
body > svg {{ width: 100%; height: 100%; cursor: grab; touch-action: none; }}
.node:hover {{ filter: drop-shadow(0 0 3px #0072B2); }}
.edge:hover path, .cluster:hover path {{ stroke: #0072B2; stroke-width: 2; }}
p {{ position: fixed; right: 12px; bottom: 0; color: #59636E; font: 12px Helvetica, Arial, sans-serif; }}
</style>
</head>
<body>
{svg}<p>drag to move, wheel to zoom, double click to see all</p>
<script>{script}</script>
</body>
</html>
"""
_SCRIPT = """
const svg = document.querySelector("svg");
const [width, height] = ["width", "height"].map(name => Number(svg.getAttribute(name)));
svg.setAttribute("preserveAspectRatio", "xMidYMin meet");
let x, y, scale, held = null;
function show() {
  svg.setAttribute("viewBox", [x, y, svg.clientWidth / scale, svg.clientHeight / scale].join(" "));
}
function fit(whole) {
  scale = Math.min(svg.clientWidth / width, whole ? svg.clientHeight / height : 1.25);
  [x, y] = [(width - svg.clientWidth / scale) / 2, 0];
  show();
}
svg.addEventListener("pointerdown", event => { held = [event.clientX, event.clientY]; });
window.addEventListener("pointerup", () => { held = null; });
window.addEventListener("pointermove", event => {
  if (!held) return;
  x -= (event.clientX - held[0]) / scale;
  y -= (event.clientY - held[1]) / scale;
  held = [event.clientX, event.clientY];
  show();
});
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const old = scale;
  scale = Math.min(Math.max(old * Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), 0.01), 20);
  x += event.clientX / old - event.clientX / scale;
  y += event.clientY / old - event.clientY / scale;
  show();
}, {passive: false});
svg.addEventListener("dblclick", () => fit(true));
window.addEventListener("resize", show);
fit(false);
"""


def page(svg: str, title: str) -> str:
    """The file.

    Args:
        svg: a drawing whose ``width`` and ``height`` say how large it is.
        title: of the page.
    """
    digest = f"sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}"
    return _PAGE.format(digest=digest, title=html.escape(f"{title} – Inferlens"), svg=svg, script=_SCRIPT)
