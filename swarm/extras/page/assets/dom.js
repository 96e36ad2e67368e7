// Builds elements. A text becomes a text node and never markup, whoever wrote it.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

const shown = new WeakMap();

// Calls `make` for new contents of `box` only if `state` has changed since. The focused element keeps the
// focus if its `data-key` is still there.
export function show(box, state, make) {
  const text = JSON.stringify(state);
  if (shown.get(box) === text) return;
  shown.set(box, text);
  const key = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  box.replaceChildren(...[make(state)].flat().filter(Boolean));
  if (key !== undefined) box.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Rows of cells; a column is [heading, cell of row, class]. On narrow screens each row is a block whose cells have their
// headings before them.
export function table(columns, rows, rowClass = () => null) {
  const head = el("tr", {}, columns.map(([title, , kind]) => el("th", { scope: "col", class: kind }, title)));
  const cells = (row) => columns.map(([title, cell, kind]) => el("td", { class: kind, role: "cell", "data-title": title }, cell(row)));
  const body = rows.map((row) => el("tr", { class: rowClass(row), role: "row" }, cells(row)));
  return el("table", { role: "table" }, el("thead", {}, head), el("tbody", {}, body));
}

export function figure(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return Math.abs(value) >= 1000 ? count(Math.round(value)) : String(Number(value.toFixed(digits)));
}

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)}%`);

export function size(bytes) {
  for (const [unit, length] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= length) return `${(bytes / length).toFixed(1)} ${unit}`;
  }
  return `${Math.round(bytes)} B`;
}

export function duration(seconds) {
  for (const [unit, length] of [["h", 3600], ["min", 60]]) if (seconds >= 2 * length) return `${(seconds / length).toFixed(0)} ${unit}`;
  return `${seconds.toFixed(0)} s`;
}

export function clock(unix) {
  return new Date(1000 * unix).toLocaleTimeString("en-GB");
}
