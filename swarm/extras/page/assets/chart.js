// A line chart of up to three series, updated in index; pointer and arrow keys read its values.
import { el, figure, svg } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 130;
const LEFT = 46;
const BOTTOM = 18;
const TOP = 8;
const MIDDLE = (TOP + HEIGHT - BOTTOM) / 2;
const KINDS = ["one", "two", "three"];
const FEW = 12; // points that are drawn as such: a line alone would look like a trend
const SMOOTHED = 0.1; // part of a curve's points in a mean, as in the report
const NOISE = 1e-6; // of a scale: what is below comes from the floats

export class Chart {
  // `series`: [name of the curve, label]; `format` writes a value, `where` a place on the horizontal axis: a round's number.
  constructor(title, series, format = figure, where = (round) => `round ${round}`) {
    this.series = series;
    this.format = format;
    this.where = where;
    this.curves = [];
    this.paths = series.map((_, index) => svg("path", { class: KINDS[index] }));
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.labels = [0, 1, 2, 3, 4].map(() => svg("text"));
    this.dots = svg("g");
    this.index = null; // index into the first curve with points; null: the last
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" },
      svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
      svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: TOP, y2: TOP }),
      svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: MIDDLE, y2: MIDDLE }),
      this.paths, this.dots, this.cursor, this.labels);
    this.readout = el("div", { class: "readout" });
    this.title = title;
    this.node = el("figure", {}, el("figcaption", {}, title), this.readout, this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.read(null));
    this.picture.addEventListener("blur", () => this.read(null));
    this.picture.addEventListener("keydown", (event) => this.step(event));
  }

  // `all`: [round, value] pairs by the curve's name. Hidden without any. All charts show the rounds `first` to `last`.
  update(all, first, last) {
    this.curves = this.series.map(([name]) => smooth(all[name] ?? []));
    const points = this.curves.flat();
    this.node.hidden = points.length === 0;
    if (points.length === 0) return;
    const values = points.map(([, value]) => value);
    this.first = first;
    this.last = last;
    this.low = Math.min(0, ...values);
    this.high = Math.max(...values);
    if (this.low > -NOISE) this.low = 0;
    if (this.high - this.low < NOISE) this.high = this.low + 1;
    this.curves.forEach((curve, index) => this.paths[index].setAttribute("d", this.line(curve)));
    this.dots.replaceChildren(...this.curves.flatMap((curve, index) => (curve.length > FEW ? [] : curve.map(([round, value]) => svg("circle", { class: KINDS[index], cx: this.x(round), cy: this.y(value), r: 2.5 })))));
    const [high, low, left, right, middle] = this.labels;
    this.label(middle, 0, MIDDLE + 4, this.format((this.high + this.low) / 2), "start");
    this.label(high, 0, TOP + 9, this.format(this.high), "start");
    this.label(low, 0, HEIGHT - BOTTOM, this.format(this.low), "start");
    this.label(left, LEFT, HEIGHT - 4, this.where(this.first).replace("round ", ""), "start");
    this.label(right, WIDTH, HEIGHT - 4, this.where(this.last).replace("round ", ""), "end");
    this.read(this.index);
  }

  label(node, x, y, text, anchor) {
    node.setAttribute("x", x);
    node.setAttribute("y", y);
    node.setAttribute("text-anchor", anchor);
    if (node.textContent !== text) node.textContent = text;
  }

  x(round) {
    return LEFT + ((WIDTH - LEFT - 4) * (round - this.first)) / Math.max(1, this.last - this.first);
  }

  y(value) {
    return TOP + ((HEIGHT - BOTTOM - TOP) * (this.high - value)) / (this.high - this.low);
  }

  line(curve) {
    // A single value would be an invisible line: it gets a short one.
    if (curve.length === 1) return `M${this.x(curve[0][0])} ${this.y(curve[0][1]).toFixed(1)}h4`;
    return curve.map(([round, value], index) => `${index ? "L" : "M"}${this.x(round).toFixed(1)} ${this.y(value).toFixed(1)}`).join("");
  }

  // The longest curve, along which one moves.
  guide() {
    return this.curves.reduce((longest, curve) => (curve.length > longest.length ? curve : longest), []);
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const distances = this.guide().map(([round]) => Math.abs(this.x(round) - x));
    this.read(distances.indexOf(Math.min(...distances)));
  }

  step(event) {
    const end = this.guide().length - 1;
    const now = this.index ?? end;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: end }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.read(Math.min(end, Math.max(0, next)));
  }

  // Write the values at a index of the guide; null: the latest.
  read(index) {
    const guide = this.guide();
    if (guide.length === 0) return;
    this.index = index === null ? null : Math.min(index, guide.length - 1);
    const round = guide[this.index ?? guide.length - 1][0];
    this.cursor.setAttribute("visibility", this.index === null ? "hidden" : "visible");
    this.cursor.setAttribute("x1", this.x(round));
    this.cursor.setAttribute("x2", this.x(round));
    const parts = this.curves.map((curve, series) => {
      const point = curve.findLast(([at]) => at <= round) ?? curve[0];
      return point ? el("span", { class: KINDS[series] }, `${this.series[series][1]} ${this.format(point[1])}`) : null;
    });
    this.readout.replaceChildren(...parts.filter(Boolean), this.index === null ? "" : this.where(round));
    const words = parts.filter(Boolean).map((part) => part.textContent).join(", ");
    this.picture.setAttribute("aria-label", `${this.title}, ${this.where(round)} of ${this.where(this.first)} to ${this.where(this.last)}: ${words}`);
  }
}

// Centred means over about a tenth of the points; few points stay as they are.
function smooth(curve) {
  if (curve.length <= FEW) return curve;
  const half = Math.floor((SMOOTHED * curve.length) / 2);
  return curve.map(([round], index) => {
    const near = curve.slice(Math.max(0, index - half), index + half + 1);
    return [round, near.reduce((sum, [, value]) => sum + value, 0) / near.length];
  });
}

// A small curve beside a figure.
export function spark(points) {
  if (points.length < 2) return null;
  const values = points.map(([, value]) => value);
  const high = Math.max(...values, 1e-9);
  const first = points[0][0];
  const span = points.at(-1)[0] - first;
  const line = points.map(([round, value], index) => `${index ? "L" : "M"}${((108 * (round - first)) / span + 1).toFixed(1)} ${(20 - (18 * value) / high).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 110 22", class: "spark", "aria-hidden": "true" }, svg("path", { class: "one", d: line.join("") }));
}
