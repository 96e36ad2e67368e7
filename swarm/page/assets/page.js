// Shows what the stream says. Every event replaces what was there, so that an open page does not grow.
import { Chart, spark } from "./chart.js";
import { byId, clock, count, el, figure, percent, setText, show, size, table } from "./dom.js";
import { gifts, legend, picture, relays } from "./picture.js";

const perSecond = (bytes) => `${size(bytes)}/s`;
const whole = (value) => count(Math.round(value));
const CHARTS = [
  new Chart("Reward", [["reward", "own"], ["accuracy", "held-out"], ["control", "control"]]),
  new Chart("Groups in an update", [["own groups", "own"], ["others' groups", "others'"]]),
  new Chart("Groups without signal", [["no signal", "of own"]], percent),
  new Chart("Entropy, nats per token", [["entropy", "entropy"]]),
  new Chart("KL, nats per token", [["KL to the sampler", "to the sampler"], ["KL to the reference", "to the reference"]]),
  new Chart("Gradient norm", [["gradient norm", "norm"]]),
  new Chart("Length, tokens", [["mean length", "mean"]], whole),
  new Chart("Completions cut off", [["cut off", "of own"]], percent),
  new Chart("Staleness, updates", [["mean lag", "mean"], ["largest lag", "largest"]]),
  new Chart("Tokens per second", [["tokens per second", "generated"]], whole),
  new Chart("Seconds per round", [["seconds per round", "a round"]]),
  new Chart("Bandwidth of groups", [["bytes sent per second", "sent"], ["bytes received per second", "received"]], perSecond),
];
const RETRY_MS = 5000;
const OUTCOMES = { used_local: "used", used_external: "used", no_signal: "no signal", unused: "unused", refused: "refused" };

let chosen = 0;
let stream = null;
let samples = [];

function connect() {
  if (stream) stream.close();
  stream = new EventSource(`/events?node=${chosen}`);
  stream.addEventListener("overview", (event) => overview(JSON.parse(event.data)));
  stream.addEventListener("detail", (event) => detail(JSON.parse(event.data)));
  stream.addEventListener("open", () => connection("live"));
  stream.addEventListener("error", lost);
}

// The browser connects again by itself, unless it was refused.
function lost() {
  connection("the page's process does not answer; trying again", true);
  if (stream.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
}

function connection(words, lost = false) {
  setText(byId("connection"), words);
  byId("connection").classList.toggle("lost", lost);
}

function overview(state) {
  setText(byId("answer-words"), state.answer.words);
  setText(byId("answer-how"), state.answer.how);
  byId("answer").className = state.answer.verdict;
  show(byId("nodes"), [state.nodes, chosen], nodeTable);
  show(byId("sharing"), state.sharing, picture);
  setText(byId("legend"), legend(state.sharing));
  show(byId("gifts"), state.sharing, gifts);
  show(byId("relays"), state.sharing, relays);
  setText(byId("claims"), state.swarm.claims);
  show(byId("leaders"), state.swarm.leaders, leaders);
  show(byId("kinds"), state.swarm.kinds, kinds);
}

function leaders(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No node has finished a round yet.");
  const accuracy = (row) => (row.accuracy ? `${percent(row.accuracy[0])} (${percent(row.accuracy[1])} to ${percent(row.accuracy[2])}) at round ${count(row.evaluated_at)}` : "–");
  return table([
    ["member", (row) => row.name || row.peer],
    ["says who", (row) => el("span", { class: row.claimed ? "care" : "good" }, row.claimed ? "its own claim" : "measured here")],
    ["accuracy", accuracy],
    ["rounds", (row) => count(row.rounds), "number"],
    ["gave", (row) => count(row.given), "number"],
    ["used of others", (row) => count(row.used), "number"],
    ["received here", (row) => (row.claimed ? count(row.received_here) : "–"), "number"],
    ["used here", (row) => (row.claimed ? count(row.used_here) : "–"), "number"],
    ["model", (row) => row.model],
  ], rows);
}

function kinds(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No other member is known yet.");
  return table([
    ["members", (row) => count(row.members), "number"],
    ["role", (row) => row.role],
    ["model", (row) => row.model],
    ["swarm", (row) => row.version],
    ["weights", (row) => count(row.weights), "number"],
  ], rows);
}

function nodeTable([nodes]) {
  if (nodes.length === 0) return el("p", { class: "note" }, "No node has started yet.");
  const columns = [
    ["name", (node) => nameButton(node)],
    ["", (node) => (node.control ? "control" : node.role === "peer" ? "" : node.role)],
    ["state", (node) => el("span", { class: stateClass(node.state) }, node.state)],
    ["alerts", (node) => (node.alerts ? el("span", { class: node.errors ? "bad" : "care" }, `${node.alerts} ${node.errors ? "serious" : ""}`) : "none")],
    ["round", (node) => count(node.round) + (node.rounds ? ` of ${count(node.rounds)}` : ""), "number"],
    ["reward", (node) => (node.reward === null ? "–" : node.reward.toFixed(3)), "number"],
    ["peers", (node) => count(node.peers), "number"],
    ["tokens/s", (node) => (node.tokens_per_s === null ? "–" : whole(node.tokens_per_s)), "number"],
  ];
  if (nodes.some((node) => node.help)) {
    columns.push(["progress over alone", (node) => node.help]);
    columns.push(["by the clock", (node) => node.help_in_time]);
  }
  if (nodes.some((node) => node.version !== null)) columns.push(["version", (node) => count(node.version), "number"]);
  return table(columns, nodes, (node) => (node.place === chosen ? "chosen" : null));
}

function nameButton(node) {
  const button = el("button", { type: "button", class: "name", "aria-pressed": String(node.place === chosen), "data-key": node.place }, node.name);
  button.addEventListener("click", () => choose(node.place));
  return button;
}

function choose(place) {
  chosen = place;
  samples = [];
  showSamples();
  connect();
}

function stateClass(state) {
  if (state === "failed" || state.startsWith("silent")) return "bad";
  return /^(alone|paused|restart|interrupted)/.test(state) ? "care" : "good";
}

function detail(state) {
  if (state === null) return;
  setText(byId("node-title"), state.control ? `${state.name}, the control` : state.name);
  const facts = [state.peer && `peer ${state.peer}`, state.model && `model ${state.model}`, state.run && `run ${state.run}`, state.folder];
  setText(byId("node-facts"), facts.filter(Boolean).join(" · ") + (state.answer ? `. ${state.answer.words}` : ""));
  setText(byId("pause"), state.pause);
  document.title = `Swarm: ${state.name}`;
  show(byId("alerts"), state.alerts, (alerts) => (alerts.length ? alerts.map(alertBox) : el("p", { class: "note" }, "Nothing is wrong.")));
  CHARTS.forEach((chart) => chart.update(state.curves));
  show(byId("tasks"), state.tasks, tasks);
  show(byId("groups"), [state.groups, state.given], ([groups, given]) => groupBoxes(groups, given));
  show(byId("mix"), state.mix, mix);
  show(byId("peers"), state.peers, peers);
  show(byId("moments"), state.moments, (moments) => (moments.length ? moments.map(moment) : el("p", { class: "note" }, "Nothing yet.")));
}

function alertBox(alert) {
  return el("div", { class: `alert ${alert.level}` },
    el("p", {}, el("span", { class: "level" }, alert.level === "error" ? "Serious: " : "Warning: "), alert.text),
    el("p", {}, alert.advice, " ", el("a", { href: `/docs/${alert.page}`, target: "_blank", rel: "noopener" }, `docs/${alert.page}`)));
}

function tasks(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No task has been asked yet.");
  const accuracy = (found) => (found ? `${percent(found[0])} (${percent(found[1])} to ${percent(found[2])})` : "–");
  return table([
    ["task", (row) => row.task],
    ["reward", (row) => figure(row.reward), "number"],
    ["by round", (row) => spark(row.points)],
    ["held-out before", (row) => accuracy(row.before)],
    ["after", (row) => accuracy(row.after)],
  ], rows);
}

function groupBoxes(groups, given) {
  const spare = groups.dropped.filter((drop) => !drop.loss).reduce((sum, drop) => sum + drop.count, 0);
  const refused = groups.dropped.filter((drop) => drop.loss).reduce((sum, drop) => sum + drop.count, 0);
  const parts = [["used", groups.used_external], ["spare", spare], ["refused", refused], ["waiting", groups.pool + groups.pending]];
  const bar = el("div", { class: "bar", "aria-hidden": "true" }, parts.filter(([, number]) => number > 0).map(([kind, number]) => {
    const piece = el("div", { class: kind });
    piece.style.flexGrow = number;
    return piece;
  }));
  const fate = given.takers
    ? `Nodes on this machine received ${count(given.received)} of them, counted once for each of ${count(given.takers)}, and used ${count(given.used)}.`
    : "No other node on this machine received any; other machines do not report.";
  return el("div", { class: "columns" },
    el("div", {},
      el("p", {}, `Own: ${count(groups.generated)} generated, ${count(groups.used_local)} used here, ${count(groups.shared)} shared. ${fate}`),
      reasons("Own groups that were not used", groups.own_unused)),
    el("div", {},
      el("p", {}, `Received: ${count(groups.received)}; ${count(groups.used_external)} used, ${count(spare)} not needed, ${count(refused)} refused, ${count(groups.pool + groups.pending)} waiting.`),
      bar,
      reasons("Received groups that were not used", groups.dropped)));
}

function reasons(title, rows) {
  if (rows.length === 0) return null;
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table([
    ["groups", (row) => count(row.count), "number"],
    ["reason", (row) => row.reason],
    ["", (row) => row.means, "wide"],
  ], rows));
}

function mix(decisions) {
  if (decisions.length === 0) return el("p", { class: "note" }, "This node does not mix: it follows a learner, or has not trained yet.");
  return decisions.map((each) => el("p", { class: "moment" },
    el("time", {}, `from round ${count(each.round)}`),
    `${each.local} own + ${each.external} of others by ${each.policy}${each.reason ? `: ${each.reason}` : ""}`));
}

function peers(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No peer is known yet.");
  return table([
    ["peer", (row) => row.peer],
    ["name", (row) => row.name],
    ["is", (row) => el("span", { class: row.standing === "isolated" ? "bad" : null }, row.standing)],
    ["used", (row) => count(row.used), "number"],
    ["received", (row) => count(row.received), "number"],
    ["dropped", (row) => count(row.dropped), "number"],
    ["mostly", (row) => row.mostly],
    ["worth, in own groups", (row) => row.worth],
    ["sent", (row) => size(row.bytes), "number"],
    ["reputation", (row) => row.reputation.toFixed(2), "number"],
    ["role", (row) => row.role],
    ["model", (row) => row.model],
    ["swarm", (row) => row.version],
  ], rows);
}

function moment(each) {
  const kind = { error: "bad", warning: "care" }[each.level];
  return el("p", { class: "moment" }, el("time", {}, clock(each.time)), el("span", { class: kind }, each.text));
}

async function readSamples() {
  const place = chosen;
  const answer = await fetch(`/samples?node=${place}`).catch(() => null); // the connection's state says why
  if (!answer?.ok || place !== chosen) return;
  samples = await answer.json();
  showSamples(true);
}

function showSamples(read = false) {
  const whose = byId("samples-whose").value;
  const outcome = byId("samples-outcome").value;
  const rows = samples.filter((each) => (!outcome || each.outcome === outcome) && (!whose || each.own === (whose === "own")));
  const none = samples.length ? "None of the latest samples is of this kind." : read ? "This node has kept no samples yet." : "";
  show(byId("samples"), [rows, none], () => (rows.length ? rows.map(sample) : el("p", { class: "note" }, none)));
}

function sample(each) {
  const rewards = each.completions.map((completion) => (completion.reward === null ? "?" : figure(completion.reward, 2))).join(", ");
  const kind = each.outcome === "refused" ? "bad" : each.outcome.startsWith("used") ? "good" : "care";
  const from = each.own ? "this node" : each.sender;
  const box = el("details", {}, el("summary", {}, el("span", { class: kind }, OUTCOMES[each.outcome] ?? each.outcome),
    ` · ${each.task} · from ${from} · round ${count(each.round)} · rewards ${rewards || "none"}`));
  // Most are never opened: their texts become elements only then.
  box.addEventListener("toggle", () => {
    if (box.open && box.childElementCount === 1) box.append(...opened(each));
  });
  return box;
}

function opened(each) {
  const left = each.num_completions - each.completions.reduce((sum, completion) => sum + completion.count, 0);
  return [
    each.why ? el("p", { class: "note" }, each.why) : "",
    el("p", { class: "note" }, `${each.policy}, version ${each.version}, ${clock(each.time)}`),
    pictures(each.pictures, "of the question"),
    el("pre", { tabindex: "0", "aria-label": "question" }, each.question || "(question not made here)"),
    each.expected ? el("p", { class: "note" }, `expected: ${each.expected}`) : "",
    ...each.completions.flatMap((completion) => [
      el("p", { class: "note" }, rewardWords(completion)),
      el("pre", { tabindex: "0", "aria-label": "completion" }, completion.text || "(nothing)"),
      pictures(completion.pictures, "between the turns"),
    ]),
    left > 0 ? el("p", { class: "note" }, `and ${left} more completions`) : "",
  ];
}

function pictures(addresses, where) {
  if (addresses.length === 0) return "";
  return el("p", { class: "pictures" }, addresses.map((src, k) => el("img", { src, alt: `picture ${k + 1} ${where}` })));
}

function rewardWords(completion) {
  const own = completion.reward === null ? "not graded here" : `reward ${figure(completion.reward)}`;
  const parts = Object.entries(completion.parts).map(([name, value]) => `${name} ${figure(value)}`).join(", ");
  const claim = completion.claimed === null || completion.claimed === completion.reward ? "" : `, its sender says ${figure(completion.claimed)}`;
  const times = completion.count > 1 ? `${completion.count} × ` : "";
  const why = completion.why ? `; ${completion.why}` : "";
  return `${times}${own}${parts ? ` (${parts})` : ""}${claim}, ended by ${completion.ended}${why}`;
}

byId("curves").append(...CHARTS.map((chart) => chart.node));
CHARTS.forEach((chart) => { chart.node.hidden = true; });
byId("samples-read").addEventListener("click", readSamples);
byId("samples-whose").addEventListener("change", () => showSamples(samples.length > 0));
byId("samples-outcome").addEventListener("change", () => showSamples(samples.length > 0));
connect();
