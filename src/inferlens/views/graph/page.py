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
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
html, body {{ margin: 0; height: 100%; background: #FFFFFF; }}
#sheet {{ height: 100%; overflow: hidden; touch-action: none; cursor: grab; }}
#sheet.held {{ cursor: grabbing; }}
#sheet > svg {{ width: 100%; height: 100%; display: block; }}
.node:hover > rect:first-of-type, .edge:hover > path, .region:hover > rect {{ stroke: #0072B2; stroke-width: 2; }}
.edge > path {{ pointer-events: stroke; }}
#keys {{ position: fixed; right: 12px; bottom: 12px; padding: 6px 10px; border: 1px solid #D0D7DE; border-radius: 6px;
  background: #FFFFFFE6; color: #59636E; font: 12px Helvetica, Arial, 'Liberation Sans', sans-serif; }}
#keys button {{ font: inherit; min-width: 28px; margin-left: 4px; }}
</style>
</head>
<body>
<div id="sheet" tabindex="0">{svg}</div>
<div id="keys">drag to move, wheel to zoom
<button id="in" title="larger (+)">+</button><button id="out" title="smaller (-)">−</button>
<button id="fit" title="all of it (0)">all</button><button id="wide" title="full width (1)">width</button></div>
<script>{script}</script>
</body>
</html>
"""
_SCRIPT = """
const sheet = document.getElementById("sheet");
const svg = sheet.querySelector("svg");
const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
svg.setAttribute("preserveAspectRatio", "xMidYMin meet");
let view = {x: 0, y: 0, scale: 1};
function show() {
  const box = sheet.getBoundingClientRect();
  svg.setAttribute("viewBox", [view.x, view.y, box.width / view.scale, box.height / view.scale].join(" "));
}
function zoom(factor, x, y) {
  const box = sheet.getBoundingClientRect();
  const old = view.scale;
  const at = [x ?? box.width / 2, y ?? box.height / 2];
  view.scale = Math.min(Math.max(old * factor, 0.01), 20);
  view.x += at[0] / old - at[0] / view.scale;
  view.y += at[1] / old - at[1] / view.scale;
  show();
}
function fit(whole) {
  const box = sheet.getBoundingClientRect();
  view.scale = Math.min(box.width / width, whole ? box.height / height : 1.25);
  view.x = (width - box.width / view.scale) / 2;
  view.y = 0;
  show();
}
let held = null;
sheet.addEventListener("pointerdown", event => {
  held = [event.clientX, event.clientY];
  sheet.setPointerCapture(event.pointerId);
  sheet.classList.add("held");
});
sheet.addEventListener("pointermove", event => {
  if (!held) return;
  view.x -= (event.clientX - held[0]) / view.scale;
  view.y -= (event.clientY - held[1]) / view.scale;
  held = [event.clientX, event.clientY];
  show();
});
for (const end of ["pointerup", "pointercancel"]) {
  sheet.addEventListener(end, () => { held = null; sheet.classList.remove("held"); });
}
sheet.addEventListener("wheel", event => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.clientX, event.clientY);
}, {passive: false});
const does = {"+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": () => fit(true),
  "1": () => fit(false), "ArrowUp": () => { view.y -= 80 / view.scale; show(); },
  "ArrowDown": () => { view.y += 80 / view.scale; show(); }, "ArrowLeft": () => { view.x -= 80 / view.scale; show(); },
  "ArrowRight": () => { view.x += 80 / view.scale; show(); }};
document.addEventListener("keydown", event => {
  if (does[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); does[event.key](); }
});
for (const [id, key] of [["in", "+"], ["out", "-"], ["fit", "0"], ["wide", "1"]]) {
  document.getElementById(id).addEventListener("click", does[key]);
}
window.addEventListener("resize", show);
fit(false);
"""


def page(svg: str, title: str) -> str:
    """The file.

    Args:
        svg: a drawing whose ``viewBox`` says how large it is.
        title: of the page.
    """
    digest = f"sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}"
    return _PAGE.format(digest=digest, title=html.escape(f"{title} – Inferlens"), svg=svg, script=_SCRIPT)
