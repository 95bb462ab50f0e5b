// Pausing of the live updates; what the viewer opened, scrolled and focused outlives them. All else works without scripts.
"use strict";
(() => {
  const KEY = "metasched-paused";
  const button = document.querySelector("[data-pause]");
  let paused = false;
  try { paused = sessionStorage.getItem(KEY) === "yes"; } catch { /* storage is blocked: not kept */ }
  const show = () => {
    if (!button) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Updates paused" : "Pause updates";
  };
  if (button) {
    button.addEventListener("click", () => {
      paused = !paused;
      try { sessionStorage.setItem(KEY, paused ? "yes" : "no"); } catch { /* likewise */ }
      show();
    });
  }
  show();

  const isLive = (event) => event.detail.elt.id === "live" || event.detail.target?.id === "live";
  let last = "";
  let kept = null;

  function state(live) {
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    return {
      open: new Map([...live.querySelectorAll("details[id]")].map((one) => [one.id, one.open])),
      scrolled: [...live.querySelectorAll("[id].table-frame")].map((one) => [one.id, one.scrollTop, one.scrollLeft]),
      focused: focused?.id ? `#${CSS.escape(focused.id)}` : focused?.getAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : null,
    };
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (isLive(event) && (paused || document.hidden)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!isLive(event)) return;
    const text = event.detail.xhr.responseText;
    if (event.detail.xhr.status === 200 && text === last) event.detail.shouldSwap = false;
    last = text;
    kept = state(document.getElementById("live"));
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (!isLive(event) || !kept) return;
    const live = document.getElementById("live");
    for (const [id, open] of kept.open) {
      const found = document.getElementById(id);
      if (found) found.open = open;
    }
    for (const [id, top, left] of kept.scrolled) document.getElementById(id)?.scrollTo(left, top);
    if (kept.focused) live.querySelector(kept.focused)?.focus({ preventScroll: true });
    kept = null;
  });
})();
