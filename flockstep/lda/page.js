"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const topics = data.topics;
  const at = (id) => document.getElementById(id);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (share) => (100 * share).toFixed(2) + "%";
  // The plotting library reads markup in labels: what a corpus holds must reach it as entities.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text) => (text.length > 24 ? text.slice(0, 23) + "…" : text);
  let chosen = 0;

  const relevant = (topic, weight) => {
    const rank = (i) => {
      const share = Math.log(topic.shares[i]);
      return weight * share + (1 - weight) * (share - Math.log(data.frequencies[topic.words[i]]));
    };
    const order = topic.words.map((_, i) => [rank(i), i]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    return order.slice(0, data.shown).map(([, i]) => ({
      word: data.words[topic.words[i]],
      inTopic: topic.shares[i] * topic.size,
      overall: data.frequencies[topic.words[i]],
    }));
  };

  const layout = (more) => Object.assign({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: color("--ink"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: color("--paper"), bordercolor: color("--line"), font: { color: color("--ink") } },
  }, more);
  const config = { displayModeBar: false, displaylogo: false, responsive: true };
  const axis = (more) => Object.assign({
    gridcolor: color("--line"), zerolinecolor: color("--line"), fixedrange: true, title: { text: "" },
  }, more);

  const drawMap = () => {
    const largest = Math.max(...topics.map((topic) => topic.size));
    const trace = {
      type: "scatter", mode: "markers+text",
      x: topics.map((topic) => topic.x), y: topics.map((topic) => topic.y),
      text: topics.map((_, k) => String(k)), textfont: { color: color("--ink") },
      hovertext: topics.map((topic, k) =>
        "topic " + k + ", " + percent(topic.size) + "<br>" +
        relevant(topic, Number(at("lambda").value)).slice(0, 5).map((entry) => plain(short(entry.word))).join(", ")),
      hoverinfo: "text",
      marker: {
        size: topics.map((topic) => 14 + 46 * Math.sqrt(topic.size / largest)), sizemode: "diameter",
        color: topics.map((_, k) => color(k === chosen ? "--accent" : "--soft")),
        opacity: 0.75, line: { width: 1, color: color("--line") },
      },
    };
    Plotly.react("map", [trace], layout({
      margin: { l: 10, r: 10, t: 10, b: 10 }, dragmode: false,
      xaxis: axis({ showticklabels: false }),
      yaxis: axis({ showticklabels: false, scaleanchor: "x" }),
    }), config);
  };

  const drawWords = () => {
    const weight = Number(at("lambda").value);
    at("lambda-value").textContent = weight.toFixed(2);
    const entries = relevant(topics[chosen], weight).reverse();
    const places = entries.map((_, i) => i);
    const scale = data.tokens === null ? 100 : data.tokens;
    const bar = (values, name, shade) => ({
      type: "bar", orientation: "h", y: places, x: values, name, marker: { color: shade },
      hovertext: entries.map((entry) => plain(entry.word)), hovertemplate: "%{hovertext}: %{x:.4~g}<extra>" + name + "</extra>",
    });
    Plotly.react("words", [
      bar(entries.map((entry) => entry.overall * scale), "in all topics", color("--soft")),
      bar(entries.map((entry) => entry.inTopic * scale), "in this topic", color("--accent")),
    ], layout({
      barmode: "overlay", bargap: 0.25, margin: { l: 10, r: 10, t: 36, b: 45 }, dragmode: false, showlegend: true,
      legend: { orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", font: { size: 11 }, entrywidth: 85 },
      xaxis: axis({ title: { text: data.tokens === null ? "percent of all words" : "occurrences" } }),
      yaxis: axis({ tickvals: places, ticktext: entries.map((entry) => plain(short(entry.word))), automargin: true }),
    }), config);
  };

  const element = (kind, text) => {
    const made = document.createElement(kind);
    made.textContent = text;
    return made;
  };

  const tell = () => {
    const topic = topics[chosen];
    const score = topic.coherence === null ? "" : ", coherence " + topic.coherence.toFixed(3);
    at("facts").textContent = percent(topic.size) + " of all words" + score;
    document.querySelectorAll(".chosen").forEach((place) => { place.textContent = String(chosen); });
    at("documents").replaceChildren(...topic.documents.map((entry) => {
      const item = element("li", "");
      item.append(element("strong", entry.title), element("span", " " + percent(entry.share)));
      const snippet = element("div", entry.snippet);
      snippet.className = "quiet";
      item.append(snippet);
      return item;
    }));
    if (!topic.documents.length) at("documents").replaceChildren(element("li", "none given"));
    at("near").replaceChildren(...topic.near.map(([other, distance]) => {
      const item = element("li", "");
      const button = element("button", "topic " + other);
      button.type = "button";
      button.addEventListener("click", () => choose(other));
      const words = relevant(topics[other], 1).slice(0, 5).map((entry) => entry.word).join(", ");
      item.append(button, element("span", distance.toFixed(3) + ": " + words));
      return item;
    }));
    document.querySelectorAll("#all tr").forEach((row) =>
      row.setAttribute("aria-selected", String(Number(row.dataset.topic) === chosen)));
  };

  const draw = () => { drawMap(); drawWords(); };

  const choose = (number) => {
    chosen = (number + topics.length) % topics.length;
    at("topic").value = String(chosen);
    history.replaceState(null, "", "#topic-" + chosen);
    tell();
    draw();
  };

  topics.forEach((topic, k) => {
    const words = relevant(topic, 0.6).slice(0, 3).map((entry) => short(entry.word)).join(", ");
    const option = element("option", k + ": " + words);
    option.value = String(k);
    at("topic").append(option);
  });
  at("topic").addEventListener("change", (event) => choose(Number(event.target.value)));
  at("previous").addEventListener("click", () => choose(chosen - 1));
  at("next").addEventListener("click", () => choose(chosen + 1));
  at("lambda").addEventListener("input", draw);
  at("all").addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) { choose(Number(row.dataset.topic)); scrollTo({ top: 0, behavior: "smooth" }); }
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  at("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    draw();
  });
  dark.addEventListener("change", draw);

  const asked = /^#topic-(\d+)$/.exec(location.hash);
  choose(asked && Number(asked[1]) < topics.length ? Number(asked[1]) : 0);
  at("map").on("plotly_click", (event) => choose(event.points[0].pointNumber));
})();
