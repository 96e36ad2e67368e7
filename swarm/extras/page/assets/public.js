// The page for everybody: all of it from the data inside.
import { Chart } from "./chart.js";
import { byId, count, duration, el, percent, setText, table } from "./dom.js";
import { credit, kinds, leaders } from "./members.js";

const DAY_S = 86400;
const LATE = 3; // intervals without a new page, after which this one says that it is old
const data = JSON.parse(byId("frozen").textContent);
const when = (unix) => new Date(1000 * unix).toISOString().slice(0, 16).replace("T", " ");

function age(seconds) {
  return seconds >= 2 * DAY_S ? `${Math.floor(seconds / DAY_S)} days` : duration(seconds);
}

const tasks = (run) => (run.tasks.join(", ") || "none") + (run.more_tasks ? ` and ${count(run.more_tasks)} more` : "");

function section(title, level, ...children) {
  return el("section", {}, el(level, {}, title), ...children);
}

function box(label, ...children) {
  return el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

function shell(line) {
  return el("pre", { tabindex: "0", class: "command", "aria-label": "command" }, line);
}

function tile(what, value) {
  return el("div", { class: "tile" }, el("div", { class: "note" }, what), el("div", { class: "value" }, value));
}

function charts(run, history) {
  const byRound = [["reward", "Reward"], ["accuracy", "Accuracy on held-out questions", percent]].map(([name, title, format]) => [new Chart(title, [[name, "mean of the nodes here"]], format), run.curves, name]);
  const byTime = [["members", "Members"], ["accuracy", "Mean accuracy of the nodes here", percent], ["credit", "Mean credit"]].map(([name, title, format]) => [new Chart(title, [[name, "now"]], format, when), history, name]);
  const known = [...byRound, ...byTime].filter(([, curves, name]) => curves[name]?.length > 1);
  for (const [chart, curves, name] of known) chart.update(curves, curves[name][0][0], curves[name].at(-1)[0]);
  return known.length ? el("div", { class: "charts" }, known.map(([chart]) => chart.node)) : null;
}

function details(run) {
  const best = run.credit[0];
  return [
    section(`Join ${run.name}`, "h2",
      run.join ? [el("p", {}, "With swarm installed, on any machine:"), shell(run.join)] : el("p", {}, "No address of this run is known."),
      run.give ? [el("p", {}, "A machine that cannot train gives answers of its own model server:"), shell(`${run.give} --endpoint URL --model NAME`)] : null,
      el("p", { class: "note" }, `Run ${run.run}, founded ${when(run.founded)} UTC by ${run.founder}: ${run.terms}; tasks: ${tasks(run)}.`)),
    section(`How ${run.name} is`, "h2",
      el("div", { class: "tiles" }, tile("members known", count(run.members)), best ? tile("highest credit", best.worth.toFixed(2)) : null),
      charts(run, data.history[run.run] ?? {})),
    section("Leaderboard, as members measured", "h2", el("p", { class: "note" }, data.about_credit), box("Credit", credit(run.credit))),
    section("All members", "h2", el("p", { class: "note" }, data.claims), box("Leaderboard", leaders(run.leaders)), box("Versions", kinds(run.kinds))),
  ];
}

function open(runs) {
  return section("Open runs", "h2",
    el("p", { class: "note" }, "Signed by their founders; members and models are claims."),
    box("Open runs", table([
      ["run", (run) => run.name],
      ["founder", (run) => run.founder],
      ["tasks", tasks, "some"],
      ["models", (run) => run.models.join(", "), "some"],
      ["members", (run) => count(run.members), "number"],
      ["founded", (run) => `${age(Math.max(0, data.made - run.founded))} ago`],
      ["terms", (run) => run.terms, "some"],
      ["join with", (run) => (run.join ? el("code", { class: "command" }, run.join) : "–"), "wide"],
    ], runs)));
}

const detailed = data.runs.filter((run) => run.leaders);
const old = Date.now() / 1000 - data.made;
const late = data.every !== null && old > LATE * data.every;
setText(byId("title"), detailed.length === 1 ? `Swarm: ${detailed[0].name}` : "Swarm");
document.title = byId("title").textContent;
setText(byId("connection"), `as of ${when(data.made)} UTC${late ? `, ${age(old)} ago: it is renewed no more` : ""}`);
byId("connection").classList.toggle("lost", late);
byId("runs").append(...detailed.flatMap(details), open(data.runs));
