"use strict";
// What a page can do with its own tables and pictures: sort, filter, show all columns, fold trees, copy, explain marks.
const made = (name, words, more) => Object.assign(document.createElement(name), { textContent: words, ...more });
const number = (cell) => {
  const words = cell.textContent.trim().replace(/,/g, "");
  const found = parseFloat(words.replace(/^[±<>~]/, ""));
  return Number.isNaN(found) ? null : found;
};

function sortable(table) {
  const body = table.tBodies[0];
  if (table.querySelector("tr[data-depth]") || body.rows.length < 3) return;
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    if (!head.textContent.trim()) return;
    const button = made("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
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
    });
  });
}

function filterable(table, tools) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 13) return;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const box = made("input", "", { type: "search", placeholder: "filter rows" });
  box.setAttribute("aria-label", "filter rows");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    rows.forEach((row, place) => { row.hidden = !words.every((word) => texts[place].includes(word)); });
  });
  tools.append(box);
}

function widened(table, tools) {
  if (!table.querySelector("th.extra")) return;
  const button = made("button", "all columns", { type: "button" });
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(table.classList.toggle("all")));
  });
  tools.append(button);
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

for (const table of document.querySelectorAll("table")) {
  const tools = made("div", "", { className: "tools" });
  sortable(table);
  filterable(table, tools);
  widened(table, tools);
  foldable(table, tools);
  if (tools.children.length) table.parentElement.before(tools);
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
  const said = () => { theme.textContent = name() === "dark" ? "light" : "dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = name() === "dark" ? "light" : "dark";
    said();
  });
  dark.addEventListener("change", said);
  said();
  nav.append(theme);
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
