// Tables of a run's members.
import { count, el, percent, table } from "./dom.js";

export const interval = (found) => (found ? `${percent(found[0])} (${percent(found[1])} to ${percent(found[2])})` : "–");

export function leaders(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No node has finished a round yet.");
  const arrived = rows.some((row) => row.received_here > 0);
  return table([
    ["member", (row) => row.name || row.peer],
    ["source", (row) => el("span", { class: row.claimed ? "care" : "good" }, row.claimed ? "its own claim" : "measured here")],
    ["accuracy", (row) => interval(row.accuracy) + (row.accuracy ? ` at round ${count(row.evaluated_at)}` : "")],
    ["rounds", (row) => count(row.rounds), "number"],
    ["gave", (row) => count(row.given), "number"],
    ["used of others", (row) => count(row.used), "number"],
    ...(arrived ? [["received here", (row) => (row.claimed ? count(row.received_here) : "–"), "number"]] : []),
    ...(arrived ? [["used here", (row) => (row.claimed ? count(row.used_here) : "–"), "number"]] : []),
    ["model", (row) => row.model],
  ], rows);
}

export function credit(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "Nobody's credit is known yet: members have measured too little.");
  return table([
    ["member", (row) => row.name || row.peer],
    ["credit", (row) => `${row.worth.toFixed(2)} (${count(row.members)})`, "number"],
    ["role", (row) => row.role],
    ["model", (row) => row.model],
  ], rows);
}

export function kinds(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No other member is known yet.");
  return table([
    ["members", (row) => count(row.members), "number"],
    ["role", (row) => row.role],
    ["model", (row) => row.model],
    ["version of swarm", (row) => row.version],
    ...(rows.some((row) => row.weights !== null) ? [["version of weights", (row) => count(row.weights), "number"]] : []),
  ], rows);
}
