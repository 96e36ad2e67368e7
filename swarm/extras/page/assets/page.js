// Shows what the stream says. Every event replaces what was there, so that an open page does not grow.
import { Chart, spark } from "./chart.js";
import { byId, clock, count, duration, el, figure, percent, setText, show, size, table } from "./dom.js";
import { credit, interval, kinds, leaders } from "./members.js";
import { gifts, legend, picture, relays } from "./picture.js";

const perSecond = (bytes) => `${size(bytes)}/s`;
const whole = (value) => count(Math.round(value));
const LEARNING = [
  new Chart("Reward", [["reward", "this node"], ["control", "control"], ["all nodes", "mean of nodes"]]),
  new Chart("Accuracy on held-out questions", [["accuracy", "this node"], ["control accuracy", "control"]], percent),
];
const CHARTS = [
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
  new Chart("Version of weights", [["weights", "installed"]], whole),
  new Chart("Bandwidth of groups", [["bytes sent per second", "sent"], ["bytes received per second", "received"]], perSecond),
];
const RETRY_MS = 5000;
const MAX_EARLY = 6;
const ENDED = /^(done|failed|interrupted)/;
const OUTCOMES = { used_local: "used", used_external: "used", no_signal: "no signal", unused: "unused", refused: "refused" };

const frozen = JSON.parse(byId("frozen")?.textContent ?? "null"); // the data of a report, which has no server
let chosen = 0;
let stream = null;
let samples = [];
let read = null; // the node whose samples were read at once

function connect() {
  if (frozen) {
    overview(frozen.overview);
    detail(frozen.details[chosen] ?? null);
    connection(`report of ${frozen.made}${unfinished(frozen.overview.nodes)}`);
    return;
  }
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

function unfinished(nodes) {
  const early = nodes.filter((node) => node.state !== "done").map((node) => `${node.name} (${node.state}, round ${count(node.round)})`);
  return early.length ? `; incomplete: ${early.slice(0, MAX_EARLY).join(", ")}${early.length > MAX_EARLY ? ` and ${early.length - MAX_EARLY} more` : ""}` : "";
}

function connection(words, lost = false) {
  setText(byId("connection"), words);
  byId("connection").classList.toggle("lost", lost);
}

function overview(state) {
  const answer = state.answer;
  setText(byId("answer-words"), answer.word);
  setText(byId("answer-why"), answer.why);
  setText(byId("answer-how"), answer.how);
  byId("answer").className = answer.standing;
  show(byId("tiles"), [["per round", answer.per_round], ["in the same time", answer.in_time], ["for the same processor time", answer.in_processor_time]], tiles);
  show(byId("alarms"), state.alarms, (alarms) => alarms.map((alarm) => alertBox(alarm, alarm.name)));
  if (state.nodes.length && state.nodes.every((node) => ENDED.test(node.state))) connection("all nodes have ended");
  show(byId("nodes"), [state.nodes, chosen], nodeTable);
  show(byId("sharing"), state.sharing, picture);
  setText(byId("legend"), legend(state.sharing));
  show(byId("gifts"), state.sharing, gifts);
  show(byId("relays"), state.sharing, relays);
  setText(byId("claims"), state.swarm.claims);
  show(byId("leaders"), state.swarm.leaders, leaders);
  setText(byId("about-credit"), state.swarm.credit.length ? state.swarm.about_credit : "");
  show(byId("credit"), state.swarm.credit, credit);
  show(byId("kinds"), state.swarm.kinds, kinds);
}

function tiles(ratios) {
  return ratios.filter(([, value]) => value).map(([what, value]) => {
    const [number, interval] = value.split(" (");
    return el("div", { class: "tile" }, el("div", { class: "note" }, what), el("div", { class: "value" }, number),
      el("div", { class: "note" }, interval ? `95% interval: ${interval.slice(0, -1)}` : ""));
  });
}

const decimals = (value) => (value === null ? "–" : value.toFixed(3));

function nodeTable([nodes]) {
  if (nodes.length === 0) return el("p", { class: "note" }, "No node has started yet.");
  const columns = [
    ["name", (node) => nameButton(node)],
    ["", (node) => (node.control ? "control" : node.role === "peer" ? "" : node.role)],
    ["state", (node) => el("span", { class: stateClass(node.state) }, node.state)],
    ["alerts", (node) => (node.alerts ? el("span", { class: node.errors ? "bad" : "care" }, `${node.alerts}${node.errors ? " serious" : ""}`) : "none")],
    ["round", (node) => count(node.round) + (node.rounds ? ` of ${count(node.rounds)}` : ""), "number"],
    ["reward", (node) => (node.reward === null ? "–" : `${decimals(node.reward_first)} → ${decimals(node.reward)}`), "number"],
    ["held-out accuracy", (node) => [node.accuracy_before && percent(node.accuracy_before[0]), node.accuracy && interval(node.accuracy)].filter(Boolean).join(" → ") || "–"],
    ["peers", (node) => count(node.peers), "number"],
    ["tokens/s", (node) => (node.tokens_per_s === null ? "–" : whole(node.tokens_per_s)), "number"],
  ];
  if (nodes.some((node) => node.help)) {
    columns.push(["its estimate per round", (node) => node.help]);
    columns.push(["in the same time", (node) => node.help_in_time]);
  }
  if (nodes.some((node) => node.version !== null)) columns.push(["version of weights", (node) => count(node.version), "number"]);
  return table(columns, nodes, (node) => (node.index === chosen ? "chosen" : null));
}

function nameButton(node) {
  const button = el("button", { type: "button", class: "name", "aria-pressed": String(node.index === chosen), "data-key": node.index }, node.name);
  button.addEventListener("click", () => choose(node.index));
  return button;
}

function choose(index) {
  chosen = index;
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
  const restarts = state.restarts && `restarted ${state.restarts} times`;
  const work = state.tokens && `${count(state.tokens)} tokens in ${duration(state.seconds)} of training`;
  const facts = [state.peer && `peer ${state.peer}`, state.model && `model ${state.model}`, state.run && `run ${state.run}`, work, restarts, state.folder];
  setText(byId("node-facts"), facts.filter(Boolean).join(" · "));
  setText(byId("pause"), state.pause);
  document.title = `Swarm: ${state.name}`;
  byId("alerts-section").hidden = state.alerts.length === 0;
  show(byId("alerts"), state.alerts, (alerts) => alerts.map((alert) => alertBox(alert)));
  const rounds = Object.values(state.curves).flat().map(([round]) => round);
  [...LEARNING, ...CHARTS].forEach((chart) => chart.update(state.curves, Math.min(...rounds), Math.max(...rounds)));
  show(byId("learner"), state.learning, learner);
  show(byId("tasks"), state.tasks, tasks);
  byId("suites-section").hidden = state.suites.length === 0;
  show(byId("suites"), state.suites, suites);
  setText(byId("traffic"), traffic(state.traffic));
  if (frozen) show(byId("figures"), [state.figures, Math.min(...rounds), Math.max(...rounds)], figures);
  show(byId("groups"), [state.groups, state.given], ([groups, given]) => groupBoxes(groups, given));
  show(byId("mix"), state.mix, mix);
  show(byId("peers"), state.peers, peers);
  if (read !== chosen) {
    read = chosen;
    readSamples();
  }
  show(byId("moments"), state.moments, (moments) => (moments.length ? moments.map(moment) : el("p", { class: "note" }, "Nothing yet.")));
}

// Words between backticks are code.
function marked(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

function learner(rows) {
  if (rows.length === 0) return null;
  return table([["learner and workers", (row) => row[0]], ["measured", (row) => figure(row[1]), "number"], ["predicted or allowed", (row) => figure(row[2]), "number"]], rows);
}

function suites(rows) {
  const estimate = (found) => (found ? `${decimals(found.value)} (${decimals(found.low)} to ${decimals(found.high)})` : "–");
  return table([
    ["figure", (row) => row.figure],
    ["before", (row) => estimate(row.before)],
    ["latest", (row) => estimate(row.latest)],
    ["after round", (row) => count(row.round), "number"],
    ["questions", (row) => count(row.questions), "number"],
  ], rows);
}

function traffic(moved) {
  const parts = Object.entries(moved).map(([name, each]) => `${size(each.bytes)} ${name}${each.a_day === null ? "" : ` (${size(each.a_day)} a day)`}`);
  return parts.length ? `Records, each counted once, without snapshots and without what is passed on: ${parts.join(", ")}.` : "";
}

// Every figure of a report's node, and the values of those that never change.
function figures([all, first, last]) {
  const moves = ([, points]) => points.some(([, value]) => value !== points[0][1]);
  const charts = Object.entries(all).filter(moves).map(([name]) => new Chart(name, [[name, "mean"]]));
  charts.forEach((chart) => chart.update(all, first, last));
  const still = Object.entries(all).filter((each) => !moves(each)).map(([name, points]) => `${name} ${figure(points[0][1])}`);
  return [el("div", { class: "charts" }, charts.map((chart) => chart.node)), still.length ? el("p", { class: "note" }, `The same in all rounds: ${still.join(", ")}.`) : null];
}

function alertBox(alert, name = "") {
  return el("div", { class: `alert ${alert.level}` },
    el("p", {}, el("span", { class: "level" }, `${name ? `${name}, ` : ""}${alert.level === "error" ? "serious: " : "warning: "}`), marked(alert.text)),
    el("p", {}, marked(alert.advice), " ", frozen ? el("code", {}, `swarm docs ${alert.page}`) : el("a", { href: `/docs/${alert.page}`, target: "_blank", rel: "noopener" }, `docs/${alert.page}`)));
}

function tasks(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "No task has been asked yet.");
  return table([
    ["task", (row) => row.task],
    ["reward", (row) => figure(row.reward), "number"],
    ["by round", (row) => sparks(row.points)],
    ["held-out before", (row) => interval(row.before)],
    ["after", (row) => interval(row.after)],
  ], rows);
}

function sparks(points) {
  if (points.length < 2) return "";
  const highest = figure(Math.max(...points.map(([, value]) => value)));
  return [spark(points), el("p", { class: "note" }, `rounds ${points[0][0]} to ${points.at(-1)[0]}, at most ${highest}`)];
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
    ? `Nodes on this machine received them ${count(given.received)} times (${given.takers === 1 ? "one node" : `${count(given.takers)} nodes, each counts`}), and used ${count(given.used)}.`
    : "No other node on this machine received any; other machines do not report.";
  return el("div", { class: "columns" },
    el("div", {},
      el("p", {}, `Own: ${count(groups.generated)} generated, ${count(groups.used_local)} used here, ${count(groups.shared)} shared. ${fate}`),
      reasons("Own groups that were not used", groups.own_unused)),
    el("div", {},
      el("p", {}, `Received: ${count(groups.received)} = ${count(groups.used_external)} used + ${count(spare)} not needed + ${count(refused)} refused + ${count(groups.pool + groups.pending)} waiting${groups.lost ? ` + ${count(groups.lost)} lost in a restart` : ""}.${usedOf(groups)}`),
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

// Shares of the received and of the graded groups that an update used.
function usedOf(groups) {
  const shares = [["received", groups.received], ["checked", groups.checked]].filter(([, number]) => number > 0);
  return shares.length ? ` Used: ${shares.map(([words, number]) => `${percent(groups.used_external / number)} of those ${words}`).join(", ")}.` : "";
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
    ["name", (row) => row.name || "–"],
    ["peer id", (row) => row.peer],
    ["connection", (row) => el("span", { class: row.standing === "isolated" ? "bad" : null }, row.standing)],
    ["received", (row) => count(row.received), "number"],
    ["=\u00a0used", (row) => count(row.used), "number"],
    ["+\u00a0not\u00a0used", (row) => count(row.unused), "number"],
    ["complaints", (row) => row.complaints, "some"],
    ["worth, in own groups", (row) => row.worth],
    ...(rows.some((row) => row.teaches) ? [["as a teacher", (row) => row.teaches || "–"]] : []),
    ["sent", (row) => size(row.bytes), "number"],
    ["reputation", (row) => row.reputation.toFixed(2), "number"],
    ["role", (row) => row.role],
    ["model", (row) => row.model],
    ["version", (row) => row.version],
  ], rows);
}

function moment(each) {
  const kind = { error: "bad", warning: "care" }[each.level];
  return el("p", { class: "moment" }, el("time", {}, clock(each.time)), el("span", { class: kind }, each.text));
}

async function readSamples() {
  const found = frozen ? frozen.samples[chosen] : await fetched(chosen);
  if (!found) return;
  samples = found.groups;
  show(byId("answers"), found.answers, answers);
  showSamples(true);
}

async function fetched(index) {
  const answer = await fetch(`/samples?node=${index}`).catch(() => null); // the connection's state says why
  return answer?.ok && index === chosen ? answer.json() : null;
}

function answers(rows) {
  if (rows.length === 0) return null;
  const answer = (each) => [each.text || "(nothing)", el("p", { class: each.correct ? "good" : "bad" }, each.correct ? "right" : `wrong${each.why ? `: ${each.why}` : ""}`)];
  return table([
    ["held-out question", (row) => [pictures(row.pictures, "of the question"), row.question, row.expected ? el("p", { class: "note" }, `expected: ${row.expected}`) : ""], "wide"],
    ["before training", (row) => answer(row.before), "wide"],
    ["now", (row) => answer(row.now), "wide"],
  ], rows);
}

function showSamples(read = false) {
  const whose = byId("samples-whose").value;
  const outcome = byId("samples-outcome").value;
  const rows = samples.filter((each) => (!outcome || each.outcome === outcome) && (!whose || each.own === (whose === "own")));
  const none = samples.length ? "None of the latest samples is of this kind." : read ? "This node has kept no samples yet." : "";
  show(byId("samples"), [rows, none], () => (rows.length ? rows.map(sample) : el("p", { class: "note" }, none)));
}

function sample(each) {
  const known = each.completions.map((completion) => completion.reward).filter((reward) => reward !== null);
  const plain = known.length > 0 && known.every((reward) => reward === 0 || reward === 1);
  const rewards = plain
    ? `${known.filter((reward) => reward === 1).length} of ${known.length} right`
    : `rewards ${known.map((reward) => figure(reward, 2)).join(", ") || "not known"}`;
  const kind = each.outcome === "refused" ? "bad" : each.outcome.startsWith("used") ? "good" : "note";
  const from = each.own ? "this node" : each.sender;
  const box = el("details", {}, el("summary", {}, el("span", { class: kind }, OUTCOMES[each.outcome] ?? each.outcome),
    ` · ${each.task} · from ${from} · round ${count(each.round)} · ${rewards}`));
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

byId("learning").append(...LEARNING.map((chart) => chart.node));
byId("curves").append(...CHARTS.map((chart) => chart.node));
[...LEARNING, ...CHARTS].forEach((chart) => { chart.node.hidden = true; });
if (frozen) {
  setText(byId("title"), `Swarm report${frozen.details[0]?.run ? `: ${frozen.details[0].run}` : ""}`);
  byId("samples-read").hidden = true;
  byId("report").hidden = false;
  for (const name of ["config", "versions"]) byId(name).append(table([["", ([key]) => key], ["", ([, value]) => value, "wide"]], frozen[name]));
}
byId("samples-read").addEventListener("click", readSamples);
byId("samples-whose").addEventListener("change", () => showSamples(samples.length > 0));
byId("samples-outcome").addEventListener("change", () => showSamples(samples.length > 0));
connect();
