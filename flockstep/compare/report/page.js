"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const UNITS = { seconds: "s", bytes: "B", samples: "" };
  const hidden = new Set();
  const scales = { seconds: false, bytes: false, samples: false };

  const element = (kind, text, more = {}) => {
    const made = Object.assign(document.createElement(kind), more);
    made.textContent = text;
    return made;
  };
  const swatch = (index) => {
    const made = element("span", "", { className: "swatch" });
    made.style.setProperty("--of", "var(--s" + (index % 8) + ")");
    return made;
  };

  // Losses.
  const axis = () => document.querySelector("input[name=axis]:checked").value;
  const drawLosses = () => Charts.drawLosses(at("losses"), {
    curves: data.strategies.map((strategy, index) => ({ index, label: strategy.label, points: data.losses[axis()][index] }))
      .filter((curve) => !hidden.has(curve.index)),
    target: data.target, unit: UNITS[axis()], title: data.axes[axis()], logX: at("log-axis").checked, logY: at("log-loss").checked,
  });
  data.strategies.forEach((strategy, index) => {
    const chip = element("button", "", { type: "button" });
    chip.append(swatch(index), strategy.label);
    chip.setAttribute("aria-pressed", "true");
    chip.addEventListener("click", () => {
      if (!hidden.delete(index)) hidden.add(index);
      chip.setAttribute("aria-pressed", String(!hidden.has(index)));
      drawLosses();
    });
    at("chips").append(chip);
  });
  document.querySelectorAll("input[name=axis]").forEach((input) => input.addEventListener("change", () => {
    at("log-axis").checked = scales[axis()];
    at("axis-name").textContent = input.nextElementSibling.textContent;
    drawLosses();
  }));
  at("log-axis").addEventListener("change", () => { scales[axis()] = at("log-axis").checked; drawLosses(); });
  at("log-loss").addEventListener("change", drawLosses);
  at("log-loss").checked = data.log_losses;
  at("log-loss").disabled = !data.positive;

  // Pictures that are far down are drawn when one comes near them, or prints the page.
  const waiting = new Map();
  const drawNow = (div) => { const draw = waiting.get(div); waiting.delete(div); seer.unobserve(div); if (draw) draw(); };
  const seer = new IntersectionObserver((seen) => seen.forEach((entry) => { if (entry.isIntersecting) drawNow(entry.target); }),
    { rootMargin: "400px" });
  const later = (div, draw) => { waiting.set(div, draw); seer.observe(div); };
  // Not by the library's own resizing, which waits a while: by then the sheet is printed.
  const fit = () => document.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.relayout(plot, { autosize: true }));
  addEventListener("beforeprint", () => { document.body.classList.add("printing"); [...waiting.keys()].forEach(drawNow); fit(); });
  addEventListener("afterprint", () => { document.body.classList.remove("printing"); fit(); });

  const card = (place, index, kind, caption) => {
    const made = element("div", "", { className: "card" }), title = element("h3", "");
    title.append(swatch(index), data.strategies[index].label);
    const plot = element("div", "", { className: "plot", id: kind + "-" + index });
    const note = element("p", caption, { className: "quiet readout" });
    made.append(title, plot, note);
    at(place).append(made);
    return [plot, note];
  };

  // Timelines.
  const timelines = [];
  const latest = Math.max(0, ...data.timelines.map((packed) => (packed ? packed.seconds : 0)));
  let common = null;
  const drawTimeline = (entry) => {
    entry.drawn = true;
    entry.lanes = entry.lanes || Timelines.unpack(data.timelines[entry.index]);
    return Timelines.drawTimeline(entry.plot, {
      index: entry.index, lanes: entry.lanes, seconds: at("together").checked ? latest : data.timelines[entry.index].seconds,
    }, {
      range: at("together").checked ? common : null, tell: (text) => { entry.note.textContent = text || entry.caption; },
      onRange: (range) => {
        if (!at("together").checked) return;
        common = range;
        timelines.filter((other) => other !== entry && other.drawn).forEach((other) => Timelines.show(other.plot, range));
      },
    });
  };
  data.timelines.forEach((packed, index) => {
    const spans = packed ? packed.lanes.reduce((sum, lane) => sum + lane.kinds.length, 0) : 0;
    const caption = packed ? packed.lanes.length + " nodes, " + spans.toLocaleString("en") + " spans, " + Charts.seconds(packed.seconds) : "No timeline was kept.";
    const [plot, note] = card("timelines", index, "timeline", caption);
    if (!packed) { plot.remove(); return; }
    plot.setAttribute("role", "application");
    plot.setAttribute("aria-label", "Timeline of " + data.strategies[index].label + ", keys + and - zoom, arrows move, 0 shows all");
    plot.style.height = Timelines.height(packed.lanes.length) + "px";
    const entry = { index, plot, note, caption, drawn: false };
    timelines.push(entry);
    later(plot, () => drawTimeline(entry));
  });
  const redrawTimelines = () => timelines.filter((entry) => entry.drawn).forEach(drawTimeline);
  at("together").addEventListener("change", () => { common = null; redrawTimelines(); });
  const ZOOMS = { in: [0.5], out: [2], left: [1, -0.25], right: [1, 0.25] };
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const drawn = timelines.filter((entry) => entry.drawn);
    // With the same times for all, one tells the others.
    (at("together").checked ? drawn.slice(0, 1) : drawn).forEach((entry) => {
      if (button.dataset.zoom === "all") Timelines.move(entry.plot, null);
      else Timelines.zoom(entry.plot, ...ZOOMS[button.dataset.zoom]);
    });
  }));

  // Bytes between pairs.
  const drawn = new Map();
  data.pairs.forEach((told, index) => {
    const total = told ? told.sent.reduce((sum, [, , count]) => sum + count, 0) : 0;
    const caption = !told ? "No timeline was kept." : total ? Charts.bytes(total) + " in all, by " + told.sent.length + " pairs" : "Nothing was sent.";
    const [plot] = card("pairs", index, "pairs", caption);
    if (!total) { plot.remove(); return; }
    const bytes = Array.from({ length: told.nodes }, () => new Array(told.nodes).fill(0));
    told.sent.forEach(([from, to, count]) => { bytes[from][to] = count; });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", "Bytes between nodes under " + data.strategies[index].label + ": " + caption);
    later(plot, () => { drawn.set(plot, () => Charts.drawMatrix(plot, { index, bytes })); drawn.get(plot)(); });
  });

  // The table.
  const headings = [...document.querySelectorAll("#table th")];
  const body = document.querySelector("#table tbody");
  headings.forEach((heading, column) => heading.firstElementChild.addEventListener("click", () => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value;
    const order = (a, b) => {
      const [one, other] = [key(a), key(b)];
      // What has no value comes last, either way.
      if (one === "" || other === "") return (one === "") - (other === "");
      const apart = isNaN(one) || isNaN(other) ? one.localeCompare(other, "en") : Number(one) - Number(other);
      return up ? apart : -apart;
    };
    body.append(...[...body.rows].sort(order));
  }));

  Theme.button(at("theme"));
  document.addEventListener("themechange", () => { drawLosses(); redrawTimelines(); drawn.forEach((draw) => draw()); });
  drawLosses();
})();
