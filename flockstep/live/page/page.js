"use strict";
// Asks for the state once a second, and shows it. Nothing is asked while nobody can see the page.
(() => {
  const at = (id) => document.getElementById(id);
  const KINDS = ["computing", "waiting", "talking"];
  const SHOWN = ["computing", "talking", "waiting"];
  const AXES = { seconds: ["seconds of the run", "s"], step: ["steps of the node", ""], bytes: ["bytes the node sent", "B"] };
  const PAUSE = 1000;
  const chosen = { axis: "seconds", window: "60" };
  let mark = "", state = null, zoomed = null, failures = 0, looks = 0;

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  };
  const figure = (x, digits = 4) => (x === null || x === undefined ? "–" : Number(x.toPrecision(digits)).toString());
  const clock = (time) => (time < 120 ? Math.max(0, time).toFixed(1) + " s" : Charts.seconds(time));
  const percent = (share) => Math.round(100 * share) + "%";
  const nodes = (count) => count + (count === 1 ? " node" : " nodes");
  const named = (node) => (node.state === "here" ? "" + node.rank : node.rank + " (" + node.state + ")");
  const notice = (words) => { at("notice").hidden = !words; at("notice").textContent = words; };

  const summary = () => {
    const count = {};
    state.nodes.forEach((node) => { count[node.state] = (count[node.state] || 0) + 1; });
    return nodes(state.nodes.length) + ": " + Object.entries(count).map(([name, many]) => many + " " + name).join(", ") + ".";
  };
  const showHeadline = () => {
    at("headline").textContent = summary() + (state.ended ? " Ended after " : " Running for ") + clock(state.seconds) + "."
      + (state.spread === null ? "" : " Spread of the models: " + figure(state.spread, 3) + ".");
    at("drift").hidden = !state.drift;
    at("drift").textContent = state.drift ? "Attention: " + state.drift + "." : "";
    // Read out only when somebody comes or goes, not every second.
    if (at("said").textContent !== summary()) at("said").textContent = summary();
  };

  // Nodes.
  const shares = (node) => {
    const bar = element("span", { class: "shares", "aria-hidden": "true" });
    SHOWN.forEach((kind) => {
      const part = element("i", { "data-kind": kind });
      part.style.width = 100 * node.share[kind] + "%";
      bar.append(part);
    });
    return element("span", {}, bar, SHOWN.map((kind) => percent(node.share[kind])).join(" / "));
  };
  const nodeRow = (node) => {
    const cell = (name, ...children) => element("td", { "data-name": name }, ...children);
    const swatch = element("span", { class: "swatch" });
    swatch.style.setProperty("--of", "var(--s" + (node.rank % 8) + ")");
    const name = element("span", { class: "name" }, "node " + node.rank);
    const who = element("span", {}, swatch, name, node.incarnation ? ", life " + (node.incarnation + 1) : "");
    const told = element("span", {}, element("span", { class: "state" }, node.state), node.why ? " " : "", element("span", { class: "why" }, node.why));
    const row = element("tr", { "data-rank": node.rank, "data-state": node.state }, cell("node", who), cell("state", told));
    row.lastChild.classList.add("words");
    if (node.state === "awaited") return row;
    row.append(cell("steps", node.steps.toLocaleString("en")), cell("steps/s", figure(node.rate, 3)), cell("loss", figure(node.loss)),
      cell("sent", Charts.bytes(node.sent)), cell("time", shares(node)),
      cell("last spoke to", node.last_to === null ? "nobody" : "node " + node.last_to));
    return row;
  };
  const table = (heads, rows) => element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows));
  const showNodes = () => {
    const made = table(["node", "state", "steps", "steps/s", "loss", "sent", "computing / talking / waiting", "last spoke to"], state.nodes.map(nodeRow));
    made.querySelectorAll("th")[1].className = "words";
    at("nodes").replaceChildren(made);
  };
  const showTalks = () => {
    const rows = state.talks.slice(0, 60).map((talk) => element("tr", {},
      element("td", {}, "node " + talk.from + " to node " + talk.to),
      element("td", {}, state.ended ? "at " + clock(talk.at) : clock(talk.ago) + " ago"),
      element("td", {}, Charts.bytes(talk.bytes))));
    at("talks").replaceChildren(rows.length ? table(["who", "when", "bytes in all"], rows) : element("p", { class: "quiet" }, "Nobody has spoken yet."));
  };
  const showEvents = () => at("events").replaceChildren(...state.events.slice(0, 100).map((event) => element("li", {},
    element("span", { class: event.what }, "node " + event.rank + ": " + event.what), element("span", { class: "quiet" }, clock(event.at)))));
  // In an elastic run.
  const changeLine = (change) => element("li", {}, element("span", {}, change.what + "; " + change.members.length + " take part"),
    element("span", { class: "quiet" }, "waited " + clock(change.waited) + ", at " + clock(change.at)));
  const showView = () => {
    at("view").hidden = !state.view;
    if (!state.view) return;
    at("taking-part").textContent = (state.ended ? "At the end: " : "Now: ") + state.view.who
      + " (" + state.view.members.length + " of " + nodes(state.nodes.length) + ").";
    at("changes").replaceChildren(...state.view.changes.map(changeLine));
  };

  // Pictures.
  const drawLosses = () => {
    const curves = Object.entries(state.rows).map(([rank, rows]) => ({
      index: Number(rank), label: "node " + rank, gone: state.nodes[rank].state === "gone",
      points: { x: rows.map((row) => row[chosen.axis]), middle: rows.map((row) => row.loss) },
    }));
    at("losses").hidden = !curves.length;
    at("no-losses").hidden = curves.length > 0;
    const [title, unit] = AXES[chosen.axis];
    return curves.length && Charts.drawLosses(at("losses"), { curves, unit, title, target: null, logX: false, logY: at("log-loss").checked });
  };
  const drawTimeline = () => {
    const lanes = state.nodes.map(() => ({ kinds: "", begin: [], end: [] }));
    state.spans.forEach(([rank, kind, begin, end]) => {
      lanes[rank].kinds += KINDS[kind][0];
      lanes[rank].begin.push(begin);
      lanes[rank].end.push(end);
    });
    const followed = state.since > 0 ? [state.since, state.seconds] : null;
    return Timelines.drawTimeline(at("timeline"), { index: 0, lanes, seconds: Math.max(1, state.seconds), names: state.nodes.map(named) }, {
      range: zoomed || followed, onRange: (range) => { zoomed = range; }, tell: (text) => { if (text) at("readout").textContent = text; },
    });
  };
  const drawMatrix = () => {
    const any = state.talks.length > 0, few = state.nodes.length <= 4;
    at("matrix").hidden = !any;
    at("no-bytes").hidden = any;
    return any && Charts.drawMatrix(at("matrix"), { index: 0, bytes: state.matrix, names: state.nodes.map(few ? named : (node) => "" + node.rank) });
  };
  const draw = async () => {
    if (typeof Plotly === "undefined") {
      notice("The pictures need plotly where flockstep watch runs: pip install \"flockstep[compare]\"");
      return;
    }
    await drawLosses();
    await drawTimeline();
    await drawMatrix();
  };

  const show = async () => {
    if (!state.nodes.length) return;
    document.title = state.strategy + ": flockstep watch";
    at("title").textContent = state.strategy;
    showHeadline();
    at("run").hidden = false;
    showNodes();
    showTalks();
    showEvents();
    showView();
    await draw();
    looks += 1;
    document.body.dataset.looks = looks;
  };
  const ask = async () => {
    const query = new URLSearchParams({ known: mark });
    if (chosen.window) query.set("window", chosen.window);
    let reply;
    try {
      reply = await fetch("/state.json?" + query, { cache: "no-store" });
    } catch {
      failures += 1;
      const ended = state && state.ended ? "The run has ended; this is its end." : "Nobody answers any more; this is the last that was known.";
      if (failures > 1) notice(ended);
      return;
    }
    if (failures) notice("");
    failures = 0;
    if (reply.status !== 200) return;
    state = await reply.json();
    mark = state.mark;
    await show();
  };
  const look = async () => {
    try { if (!document.hidden) await ask(); } finally { setTimeout(look, PAUSE); }
  };

  const choose = (group, name, change) => at(group).addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    [...at(group).children].forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    chosen[name] = button.dataset[name];
    change();
  });
  choose("axes", "axis", () => state && drawLosses());
  at("log-loss").addEventListener("change", () => state && drawLosses());
  choose("windows", "window", () => { mark = ""; zoomed = null; ask(); });
  Theme.button(at("theme"));
  document.addEventListener("themechange", () => { if (state && state.nodes.length) draw(); });
  look();
})();
