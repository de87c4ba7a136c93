const svg = document.querySelector("figure svg");
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
