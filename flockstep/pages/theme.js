"use strict";
// Dark or light: what was chosen last, else what the system says. Pages listen for "themechange" and draw anew.
const Theme = (() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  // A browser may forbid a page to remember anything.
  const remembered = () => { try { return localStorage.getItem("flockstep-theme"); } catch { return null; } };
  const remember = (name) => { try { localStorage.setItem("flockstep-theme", name); } catch { /* not kept, then */ } };
  const now = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const tell = () => document.dispatchEvent(new Event("themechange"));
  const show = (name) => { root.dataset.theme = name; tell(); };
  const button = (made) => {
    const name = () => {
      const next = now() === "dark" ? "light" : "dark";
      made.textContent = next[0].toUpperCase() + next.slice(1);
      made.setAttribute("aria-label", "Show in " + next + " colors");
    };
    made.addEventListener("click", () => { const next = now() === "dark" ? "light" : "dark"; remember(next); show(next); });
    document.addEventListener("themechange", name);
    name();
  };
  const last = remembered();
  if (last === "dark" || last === "light") root.dataset.theme = last;
  system.addEventListener("change", tell);
  // Paper is white.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; show("light"); });
  addEventListener("afterprint", () => { if (before) show(before); else { delete root.dataset.theme; tell(); } });
  return { button, now };
})();
