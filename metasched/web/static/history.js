// Charts that can be zoomed and read with the pointer, and the slider of past rounds. Everything is there without scripts.
"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw(host, name, series) {
    const clock = (at) => new Date((at + series.utc_offset) * 1000).toISOString().slice(11, 16);
    const place = host.querySelector(`[data-chart="${name}"]`);
    if (!place || series.points.length < 2) return;
    const box = document.createElement("div");
    const ofTime = name === "throughput";
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const width = () => Math.max(200, place.clientWidth);
    const options = {
      width: width(),
      height: 240,
      scales: { x: { time: ofTime }, y: { range: (_, low, high) => [ofTime ? 0 : low - (high - low) * 0.05, high + (high - low) * 0.05 || 1] } },
      axes: [ofTime ? { ...axis, values: (_, instants) => instants.map(clock) } : axis, { ...axis, size: 48 }],
      series: [ofTime ? { label: "At", value: (_, at) => (at === null ? "–" : clock(at)) } : { label: "Step" }, { label: series.name, stroke: colour("--accent"), width: 2, points: { show: false } }],
    };
    const data = [series.points.map((point) => point[0]), series.points.map((point) => point[1])];
    place.classList.add("plot-live");
    const plot = new uPlot(options, data, box);
    place.replaceChildren(box);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${series.name}; the table below has the same numbers`);
    new ResizeObserver(() => plot.setSize({ width: width(), height: 240 })).observe(place);
  }

  const host = document.querySelector("[data-series]");
  if (host && window.uPlot) {
    const load = () => fetch(host.dataset.series, { headers: { Accept: "application/json" } })
      .then((answer) => (answer.ok ? answer.json() : {}))
      .then((data) => {
        for (const name of ["loss", "throughput"]) if (data[name]) draw(host, name, data[name]);
      })
      .catch(() => { /* the drawn charts stay */ });
    load();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", load);
  }

  const slider = document.querySelector("[data-slider]");
  if (slider) {
    const number = document.getElementById(slider.dataset.slider);
    slider.closest("[hidden]")?.removeAttribute("hidden");
    slider.addEventListener("input", () => { number.value = slider.value; });
    slider.addEventListener("change", () => number.form.requestSubmit());
  }
})();
