"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const topics = data.topics;
  const at = (id) => document.getElementById(id);
  const percent = (share) => (100 * share).toFixed(2) + "%";
  const short = (text, most = 24) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const bySize = topics.map((_, k) => k).sort((a, b) => topics[b].size - topics[a].size || a - b);
  let chosen = bySize[0];

  // Whatever a corpus holds reaches the page as text, never as markup.
  const element = (kind, text) => {
    const made = document.createElement(kind);
    made.textContent = text;
    return made;
  };
  const svg = (kind, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, String(value)));
    made.append(...children);
    return made;
  };

  const relevant = (topic, weight) => {
    const rank = (i) => {
      const share = Math.log(topic.shares[i]);
      return weight * share + (1 - weight) * (share - Math.log(data.frequencies[topic.words[i]]));
    };
    const order = topic.words.map((_, i) => [rank(i), i]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    return order.slice(0, data.shown).map(([, i]) => ({
      number: topic.words[i],
      word: data.words[topic.words[i]],
      inTopic: topic.shares[i] * topic.size,
      overall: data.frequencies[topic.words[i]],
    }));
  };
  const firstWords = (topic, weight, count) => relevant(topic, weight).slice(0, count).map((entry) => entry.word);

  // The map ------------------------------------------------------------------------------------------------------

  const SIDE = 600, MARGIN = 70;
  const spread = (values) => [Math.min(...values), Math.max(...values)];
  const [left, right] = spread(topics.map((topic) => topic.x));
  const [low, high] = spread(topics.map((topic) => topic.y));
  const span = Math.max(right - left, high - low) || 1;
  const scaled = (value, from, to) => MARGIN + (value - (from + to) / 2 + span / 2) / span * (SIDE - 2 * MARGIN);
  const largest = Math.max(...topics.map((topic) => topic.size));
  const spots = topics.map((topic) => ({
    x: scaled(topic.x, left, right),
    y: SIDE - scaled(topic.y, low, high),
    r: 6 + 24 * Math.sqrt(topic.size / largest),
  }));

  // The largest first, each where it covers no other label: beside its circle on either side, below, above, or not at all.
  const labels = () => {
    const taken = [];
    const free = (box) => box.x >= 2 && box.x + box.w <= SIDE - 2 && box.y >= 2 && box.y + box.h <= SIDE - 2 &&
      taken.every((other) => box.x > other.x + other.w || other.x > box.x + box.w || box.y > other.y + other.h || other.y > box.y + box.h);
    const found = topics.map(() => null);
    bySize.forEach((k) => {
      const spot = spots[k];
      const texts = [k + " " + firstWords(topics[k], 0.6, 2).map((word) => short(word, 14)).join(", "), String(k)];
      for (const text of texts) {
        const w = 6.6 * text.length + 2, h = 14;
        const boxes = [
          { x: spot.x + spot.r + 2, y: spot.y - h / 2 }, { x: spot.x - spot.r - 2 - w, y: spot.y - h / 2 },
          { x: spot.x - w / 2, y: spot.y + spot.r + 1 }, { x: spot.x - w / 2, y: spot.y - spot.r - 1 - h },
          { x: spot.x - w / 2, y: spot.y - h / 2 },
        ].map((box) => ({ ...box, w, h }));
        const box = boxes.find(free);
        if (box) {
          taken.push(box);
          found[k] = { text, ...box };
          return;
        }
      }
    });
    return found;
  };

  const circles = topics.map((topic, k) => {
    const title = svg("title", {}, "topic " + k + ", " + percent(topic.size) + ": " + firstWords(topic, 0.6, 5).join(", "));
    const circle = svg("circle", { cx: spots[k].x, cy: spots[k].y, r: spots[k].r, class: "topic" }, title);
    circle.addEventListener("click", () => choose(k));
    return circle;
  });
  const drawMap = () => {
    // Large ones beneath, so that small ones can be pointed at.
    at("map").replaceChildren(
      ...bySize.map((k) => circles[k]),
      ...labels().filter(Boolean).map((label) =>
        svg("text", { x: label.x + 1, y: label.y + 11, class: "label" }, label.text)),
    );
  };

  // Circles as large as a topic is, or as its part of one word.
  const showWord = (number) => {
    const parts = number === null ? null : new Map(data.wordTopics[number]);
    circles.forEach((circle, k) =>
      circle.setAttribute("r", String(parts === null ? spots[k].r : parts.has(k) ? 6 + 24 * Math.sqrt(parts.get(k)) : 2)));
    at("map-says").textContent = number === null
      ? "Closer is more alike (Jensen-Shannon distance); larger covers more. Choose one."
      : "Where “" + short(data.words[number]) + "” belongs: " +
        data.wordTopics[number].slice(0, 4).map(([k, share]) => "topic " + k + " " + percent(share)).join(", ");
  };

  // The words ----------------------------------------------------------------------------------------------------

  const ROW = 20, NAMES = 170, WIDE = 600;
  const drawWords = () => {
    const weight = Number(at("lambda").value);
    at("lambda-value").textContent = weight.toFixed(2);
    const entries = relevant(topics[chosen], weight);
    const scale = data.tokens === null ? 100 : data.tokens;
    const most = Math.max(...entries.map((entry) => entry.overall), 1e-12);
    const told = (share) => (data.tokens === null ? percent(share) : Math.round(share * scale).toLocaleString("en"));
    const rows = entries.map((entry, i) => {
      const bar = (share, kind) => svg("rect", {
        x: NAMES, y: i * ROW + 3, height: ROW - 6, width: Math.max(0.5, share / most * (WIDE - NAMES - 70)), class: kind,
      });
      const row = svg("g", { class: "word", tabindex: 0, "data-inside": entry.inTopic * scale, "data-overall": entry.overall * scale },
        svg("rect", { x: 0, y: i * ROW, width: WIDE, height: ROW, class: "behind" }),
        svg("text", { x: NAMES - 8, y: i * ROW + 14, "text-anchor": "end" }, short(entry.word)),
        bar(entry.overall, "overall"), bar(entry.inTopic, "inside"),
        svg("text", { x: NAMES + 6 + entry.overall / most * (WIDE - NAMES - 70), y: i * ROW + 14, class: "count" }, told(entry.inTopic)),
        svg("title", {}, entry.word + ": " + told(entry.inTopic) + " in this topic, " + told(entry.overall) + " in all"));
      ["pointerenter", "focus"].forEach((kind) => row.addEventListener(kind, () => showWord(entry.number)));
      ["pointerleave", "blur"].forEach((kind) => row.addEventListener(kind, () => showWord(null)));
      return row;
    });
    at("words").setAttribute("viewBox", "0 0 " + WIDE + " " + Math.max(1, rows.length) * ROW);
    at("words").replaceChildren(...rows);
  };

  // Topics by a column of the table, time perhaps ------------------------------------------------------------------

  const drawGroups = () => {
    if (!data.groups) return;
    at("groups-panel").hidden = false;
    at("groups-name").textContent = data.groups.by;
    const shares = topics[chosen].groups, names = data.groups.names;
    const wide = 900, tall = 200, step = wide / names.length, most = Math.max(...shares, 1e-12);
    at("groups").setAttribute("viewBox", "0 0 " + wide + " " + (tall + 70));
    const every = Math.ceil(names.length / 30);
    at("groups").replaceChildren(...shares.flatMap((share, i) => {
      const h = share / most * (tall - 20), x = i * step;
      const bar = svg("rect", { x: x + step * 0.1, y: tall - h, width: step * 0.8, height: Math.max(h, 0.5), class: "inside" },
        svg("title", {}, names[i] + ": " + percent(share)));
      const name = svg("text", { x: 0, y: 0, "text-anchor": "end", transform: "translate(" + (x + step / 2 + 4) + " " + (tall + 12) + ") rotate(-45)" }, short(names[i], 12));
      return i % every ? [bar] : [bar, name];
    }), svg("text", { x: 4, y: 12, class: "count" }, "at most " + percent(most)));
  };

  // The rest -----------------------------------------------------------------------------------------------------

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
      item.append(button, element("span", distance.toFixed(3) + ": " + firstWords(topics[other], 1, 5).join(", ")));
      return item;
    }));
    document.querySelectorAll("#all tr").forEach((row) =>
      row.setAttribute("aria-selected", String(Number(row.dataset.topic) === chosen)));
    circles.forEach((circle, k) => circle.setAttribute("class", k === chosen ? "topic mine" : "topic"));
  };

  const choose = (number) => {
    chosen = number;
    at("topic").value = String(chosen);
    history.replaceState(null, "", "#topic-" + chosen);
    tell();
    drawWords();
    drawGroups();
  };
  const beside = (step) => bySize[(bySize.indexOf(chosen) + step + topics.length) % topics.length];

  bySize.forEach((k) => {
    const option = element("option", k + ": " + firstWords(topics[k], 0.6, 3).map((word) => short(word)).join(", "));
    option.value = String(k);
    at("topic").append(option);
  });
  at("topic").addEventListener("change", (event) => choose(Number(event.target.value)));
  at("previous").addEventListener("click", () => choose(beside(-1)));
  at("next").addEventListener("click", () => choose(beside(1)));
  at("lambda").addEventListener("input", drawWords);
  at("all").addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) { choose(Number(row.dataset.topic)); scrollTo({ top: 0, behavior: "smooth" }); }
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  at("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });

  drawMap();
  showWord(null);
  const asked = /^#topic-(\d+)$/.exec(location.hash);
  choose(asked && Number(asked[1]) < topics.length ? Number(asked[1]) : bySize[0]);
})();
