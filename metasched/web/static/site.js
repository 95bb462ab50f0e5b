// Pausing of the live updates, and no update where nothing has changed. Everything else works without scripts.
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
  let last = "";
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.id === "live" && (paused || document.hidden)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.elt.id !== "live") return;
    const text = event.detail.xhr.responseText;
    if (event.detail.xhr.status === 200 && text === last) event.detail.shouldSwap = false;
    last = text;
  });
})();
