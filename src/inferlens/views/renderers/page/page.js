"use strict";
// What a page can do with its own tables and pictures: sort, filter, choose columns, fold trees, hide series, copy.
const made = (name, words, more) => Object.assign(document.createElement(name), { textContent: words, ...more });
const MOST = 300; // rows of a table that are shown until all are asked for
const number = (cell) => {
  const words = cell.textContent.trim().replace(/,/g, "");
  const found = parseFloat(words.replace(/^[±<>~]/, ""));
  return Number.isNaN(found) ? null : found;
};

function sortable(table) {
  const body = table.tBodies[0];
  if (table.querySelector("tr[data-depth]") || body.rows.length < 3 || body.rows[0].cells.length < 3) return;
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    if (!head.textContent.trim()) return;
    const button = made("button", "", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keys = new Map([...body.rows].map((row) => {
        const cell = row.cells[place];
        return [row, head.classList.contains("number") ? number(cell) : number(cell) ?? cell.textContent];
      }));
      const order = (a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        if (x === null || y === null) return (x === null) - (y === null); // what is not there comes last
        const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? less : -less;
      };
      const sums = [...body.rows].filter((row) => row.classList.contains("sums"));
      body.append(...[...body.rows].filter((row) => !sums.includes(row)).sort(order), ...sums);
      table.dispatchEvent(new Event("sorted"));
    });
  });
}

// Long tables have a filter; of those that are very long the first rows are shown.
function filterable(table, tools) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 9 || rows[0].cells.length < 3) return;
  let [words, most, texts] = [[""], MOST, null];
  const box = made("input", "", { type: "search", placeholder: "filter rows" });
  box.setAttribute("aria-label", "filter rows");
  const more = made("button", "", { type: "button" });
  const show = () => {
    let [fit, shown] = [0, 0];
    for (const row of table.tBodies[0].rows) {
      const fits = words.every((word) => !word || texts.get(row).includes(word));
      fit += fits;
      row.hidden = !fits || shown >= most;
      shown += !row.hidden;
    }
    more.hidden = shown === fit;
    more.textContent = `show all ${fit.toLocaleString("en")} rows`;
  };
  box.addEventListener("input", () => {
    texts ??= new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    words = box.value.toLowerCase().split(/\s+/);
    show();
  });
  more.addEventListener("click", () => { most = Infinity; show(); });
  table.addEventListener("sorted", show);
  show();
  tools.append(box, more);
}

// Says of what is wider than the page that it goes on.
function sideways(frame, inside) {
  const hint = made("span", "scroll it sideways →", { className: "soft", hidden: true });
  hint.setAttribute("role", "status");
  new ResizeObserver(() => {
    hint.hidden = frame.scrollWidth <= frame.clientWidth;
    frame.tabIndex = hint.hidden ? -1 : 0; // for the keys that scroll
  }).observe(inside);
  return hint;
}

// Of tables that hide some columns every one can be shown or hidden, one by one or all of them.
function widened(table, tools) {
  const heads = [...table.tHead.rows[0].cells];
  if (!heads.some((head) => head.classList.contains("extra"))) return;
  const boxes = heads.map((head) => made("input", "", { type: "checkbox", checked: !head.classList.contains("extra") }));
  const turn = (place, on) => {
    boxes[place].checked = on;
    for (const row of table.rows) row.cells[place].classList.toggle("extra", !on);
  };
  const all = made("button", "all columns", { type: "button" });
  const first = boxes.map((box) => box.checked);
  all.setAttribute("aria-pressed", "false");
  all.addEventListener("click", () => {
    const on = all.getAttribute("aria-pressed") !== "true";
    all.setAttribute("aria-pressed", String(on));
    heads.forEach((_, place) => turn(place, on || first[place]));
  });
  tools.append(all);
  const list = made("details", "", { className: "columns" });
  const choice = made("div", "");
  boxes.forEach((box, place) => {
    if (!place || !heads[place].textContent) return;
    const label = made("label", "");
    box.addEventListener("change", () => turn(place, box.checked));
    label.append(box, heads[place].textContent);
    choice.append(label);
  });
  list.append(made("summary", "columns"), choice);
  list.addEventListener("keydown", (event) => { if (event.key === "Escape") list.open = false; });
  tools.append(list);
}

function foldable(table, tools) {
  const rows = [...table.tBodies[0].rows];
  const depth = (row) => Number(row?.dataset.depth ?? -1);
  const parents = rows.filter((row, place) => row.dataset.depth && depth(rows[place + 1]) > depth(row));
  if (!parents.length) return;
  const show = () => {
    let hidden = Infinity;
    for (const row of rows) {
      if (depth(row) <= hidden) hidden = Infinity;
      row.classList.toggle("folded", depth(row) > hidden);
      if (hidden === Infinity && row.dataset.closed) hidden = depth(row);
    }
  };
  const turn = (row, closed) => {
    if (closed) row.dataset.closed = "1"; else delete row.dataset.closed;
    row.querySelector(".fold-row").textContent = closed ? "▸" : "▾";
    row.querySelector(".fold-row").setAttribute("aria-expanded", String(!closed));
  };
  for (const row of parents) {
    const button = made("button", "▾", { type: "button", className: "fold-row" });
    button.setAttribute("aria-label", "fold " + row.cells[0].textContent);
    row.cells[0].prepend(button);
    button.addEventListener("click", () => { turn(row, !row.dataset.closed); show(); });
    turn(row, rows.length > 40 && depth(row) > 0);
  }
  show();
  const all = made("button", "fold all", { type: "button" });
  all.addEventListener("click", () => {
    const closed = all.textContent === "fold all";
    parents.forEach((row) => turn(row, closed));
    all.textContent = closed ? "unfold all" : "fold all";
    show();
  });
  tools.append(all);
}

// Names in a chart's legend hide and show what is drawn of them; colours and axes stay.
function hideable(svg) {
  const value = (part) => part.slice(part.indexOf(": ") + 2);
  const marks = [...svg.querySelectorAll("[role='graphics-symbol'][aria-label]:not(.role-legend, [aria-roledescription='axis'])")]
    .map((mark) => [mark, mark.getAttribute("aria-label").split("; ").map(value)]);
  const off = new Set();
  for (const words of svg.querySelectorAll(".role-legend-label")) {
    const [name, entry] = [words.textContent, words.parentElement.parentElement];
    if (!marks.some(([, values]) => values.includes(name))) continue;
    const turn = () => {
      if (!off.delete(name)) off.add(name);
      entry.setAttribute("aria-pressed", String(!off.has(name)));
      for (const [mark, values] of marks) mark.classList.toggle("off", values.some((each) => off.has(each)));
    };
    const about = { role: "button", tabindex: "0", "aria-pressed": "true", "aria-label": name, "data-tip": `hide or show ${name}` };
    for (const [key, each] of Object.entries(about)) entry.setAttribute(key, each);
    words.closest(".role-legend").setAttribute("role", "group");
    entry.addEventListener("click", turn);
    entry.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn();
    });
  }
}

// What a chart draws as JSON too, made of the CSV when it is asked for.
function asJson(link) {
  const also = made("a", link.textContent.replace(/csv$/, "json"), { href: "#", download: link.download.replace(/csv$/, "json") });
  also.addEventListener("click", () => {
    const lines = [[]];
    const text = decodeURIComponent(link.href.slice(link.href.indexOf(",") + 1));
    for (const [, field, end] of text.matchAll(/("(?:[^"]|"")*"|[^,\r\n]*)(,|\r\n|$)/g)) {
      lines.at(-1).push(field.startsWith('"') ? field.slice(1, -1).replaceAll('""', '"') : field);
      if (end === "\r\n") lines.push([]);
    }
    const [names, ...rows] = lines.filter((line) => line.length > 1 || line[0]);
    const value = (field) => (field === "" ? null : /^(true|false|-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?)$/.test(field) ? JSON.parse(field) : field);
    const found = rows.map((row) => Object.fromEntries(names.map((name, place) => [name, value(row[place])])));
    also.href = "data:application/json," + encodeURIComponent(JSON.stringify(found));
  });
  link.after(" ", also);
}

document.querySelectorAll("figure svg.marks").forEach(hideable);
for (const words of document.querySelectorAll("figcaption")) words.append(" ", sideways(words.parentElement, words.parentElement));
document.querySelectorAll("figcaption a[download$='.csv']").forEach(asJson);
for (const table of document.querySelectorAll("table")) {
  const tools = made("div", "", { className: "tools" });
  sortable(table);
  filterable(table, tools);
  widened(table, tools);
  foldable(table, tools);
  tools.append(sideways(table.parentElement, table));
  table.parentElement.before(tools);
}

for (const line of document.querySelectorAll(".command")) {
  const words = line.textContent.slice(line.textContent.search(/inferlens[ .]/));
  const button = made("button", "copy", { type: "button", className: "copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(words);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(line); // where the clipboard is not allowed, as from some files
    }
  });
  line.append(" ", button);
}

const tip = made("div", "", { id: "tip", hidden: true });
document.body.append(tip);
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("figure svg [data-tip], figure svg [aria-label]:not([role='graphics-object'])");
  tip.hidden = !mark || mark.getAttribute("aria-roledescription") === "axis";
  if (tip.hidden) return;
  tip.textContent = (mark.dataset.tip ?? mark.getAttribute("aria-label")).replaceAll("; ", "\n");
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
});

const nav = document.querySelector("nav");
if (nav) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = made("button", "", { type: "button" });
  const name = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const said = () => { theme.textContent = name() === "dark" ? "light theme" : "dark theme"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = name() === "dark" ? "light" : "dark";
    said();
  });
  dark.addEventListener("change", said);
  said();
  nav.append(theme);
}

addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details:not(.columns)")) each.open = true;
});
