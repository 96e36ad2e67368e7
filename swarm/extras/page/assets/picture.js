// The swarm as a picture: members on a circle, in a crowd with the nodes of this machine inside it, and lines from who
// gives groups to who uses them.
import { count, el, percent, svg, table } from "./dom.js";

const CENTRE = 230;
const MAX_LABELS = 24;
const MAX_ROWS = 40;
const MARKS = { here: "on this machine", connected: "connected", away: "away", isolated: "in quarantine" };

export function picture(state) {
  if (state.members.length < 2) return el("p", { class: "note" }, "Nobody else is known yet.");
  const labelled = state.members.length <= MAX_LABELS;
  const points = labelled ? ring(state.members.length, 150) : crowd(state.members);
  const most = Math.max(1, ...state.gifts.map((gift) => gift.used));
  return svg("svg", { viewBox: labelled ? "-50 40 560 380" : "10 10 440 440", role: "img", "aria-label": inWords(state) },
    svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 6 6", refX: "6", refY: "3", markerWidth: "9", markerHeight: "9", orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" }, svg("path", { d: "M0 0 6 3 0 6Z", fill: "currentColor" }))),
    state.gifts.map((gift) => arrow(gift, points, most, labelled)),
    state.relays.map((relay) => path("relay", relay, points, labelled)),
    state.members.map((member, index) => mark(member, points[index], labelled, state.members.length)));
}

function ring(number, radius) {
  return Array.from({ length: number }, (_, index) => {
    const angle = (2 * Math.PI * index) / number - Math.PI / 2;
    return [CENTRE + radius * Math.cos(angle), CENTRE + radius * Math.sin(angle), angle];
  });
}

function crowd(members) {
  // Those of this machine come first.
  const here = members.filter((member) => member.standing === "here").length;
  return [...ring(here, here > 1 ? 70 : 0), ...ring(members.length - here, 205)];
}

function inWords(state) {
  const used = state.gifts.reduce((sum, gift) => sum + gift.used, 0);
  return `${state.members.length} members; ${count(used)} groups of others used on this machine. The table beside it has all figures.`;
}

function arrow(gift, points, most, labelled) {
  if (gift.used === 0) return path("idle", gift, points, labelled);
  return path("gift", gift, points, labelled, (1 + 4 * Math.sqrt(gift.used / most)).toFixed(1));
}

function path(kind, gift, points, labelled, width = null) {
  const [x1, y1] = points[gift.giver];
  const [x2, y2] = points[gift.taker];
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const gap = labelled ? 11 : 5;
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  // Bent to one side, so that the two directions between two members are two arrows.
  const bend = 14;
  const middle = [(x1 + x2) / 2 - uy * bend, (y1 + y2) / 2 + ux * bend];
  const d = `M${x1 + ux * gap} ${y1 + uy * gap}Q${middle[0]} ${middle[1]} ${x2 - ux * gap} ${y2 - uy * gap}`;
  return svg("path", { class: kind, d, "stroke-width": width, "marker-end": labelled && kind !== "idle" ? "url(#tip)" : null });
}

function mark(member, [x, y, angle], labelled, number) {
  const small = labelled ? 7 : Math.max(2.5, 400 / number);
  const r = member.standing === "here" ? Math.min(9, 3 * small) : small;
  const name = called(member);
  const about = [name, MARKS[member.standing], member.role, member.model, member.version].filter(Boolean).join(", ");
  const group = svg("g", {}, svg("title", {}, about), svg("circle", { class: member.standing, cx: x, cy: y, r }));
  if (labelled) {
    const side = Math.cos(angle);
    const anchor = Math.abs(side) < 0.3 ? "middle" : side > 0 ? "start" : "end";
    const short = name.length > 12 ? `${name.slice(0, 11)}…` : name;
    group.append(svg("text", { x: x + 14 * Math.sign(Math.round(side * 3)), y: y + (Math.abs(side) < 0.3 ? (Math.sin(angle) < 0 ? -14 : 24) : 4), "text-anchor": anchor }, short));
  }
  return group;
}

function called(member) {
  return member.name || (member.role && member.role !== "peer" ? member.role : member.peer);
}

export function legend(state) {
  if (state.members.length < 2) return "";
  const numbers = Object.entries(MARKS).map(([standing, words]) => [words, state.members.filter((member) => member.standing === standing).length]);
  const parts = numbers.filter(([, number]) => number > 0).map(([words, number]) => `${number} ${words}`);
  const more = state.num_omitted ? `; ${count(state.num_omitted)} more are not drawn` : "";
  return `${parts.join(", ")}${more}. A line leads from giver to taker, the wider the more groups were used; filled: on this machine.${state.relays.length ? " Dashed arrows: a learner's snapshot on its way." : ""}`;
}

export function relays(state) {
  if (state.relays.length === 0) return null;
  return table([
    ["snapshot from", (relay) => called(state.members[relay.giver])],
    ["to", (relay) => called(state.members[relay.taker])],
    ["version", (relay) => count(relay.version), "number"],
    ["there", (relay) => percent(relay.fraction), "number"],
  ], state.relays.slice(0, MAX_ROWS));
}

export function gifts(state) {
  const rows = state.gifts.filter((gift) => gift.received > 0).sort((one, other) => other.used - one.used);
  if (rows.length === 0) return el("p", { class: "note" }, "No groups of others have arrived yet.");
  const columns = [
    ["from", (gift) => called(state.members[gift.giver])],
    ["to", (gift) => called(state.members[gift.taker])],
    ["received", (gift) => count(gift.received), "number"],
    ["used", (gift) => count(gift.used), "number"],
  ];
  const rest = rows.length > MAX_ROWS ? el("p", { class: "note" }, `and ${count(rows.length - MAX_ROWS)} more`) : null;
  return [table(columns, rows.slice(0, MAX_ROWS)), rest];
}
