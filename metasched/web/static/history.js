// Charts that can be zoomed and read with the pointer, and the slider of past rounds. Everything is there without scripts.
"use strict";
(() => {
  const HEIGHT = 222;
  const plots = new Map(); // by name of the chart: the plot and the element in which it is
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const columns = (series) => [series.points.map((point) => point[0]), series.points.map((point) => point[1])];

  function draw(name, series, place) {
    const instants = columns(series)[0];
    const digits = instants.at(-1) - instants[0] < 600 ? 19 : 16; // seconds, where minutes would be the same
    const clock = (at) => new Date((at + series.utc_offset) * 1000).toISOString().slice(11, digits);
    const box = document.createElement("div");
    const ofTime = series.of_time;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const width = () => Math.max(200, place.clientWidth);
    const options = {
      width: width(),
      height: HEIGHT,
      scales: { x: { time: ofTime }, y: { range: (_, low, high) => [ofTime ? 0 : low - (high - low) * 0.05, high + (high - low) * 0.05 || 1] } },
      axes: [ofTime ? { ...axis, values: (_, ticks) => ticks.map(clock) } : axis, { ...axis, size: 48 }],
      series: [ofTime ? { label: "At", value: (_, at) => (at === null ? "–" : clock(at)) } : { label: "Step" }, { label: series.name, stroke: colour("--accent"), width: 2, points: { show: false } }],
    };
    place.classList.add("plot-live");
    const plot = new uPlot(options, columns(series), box);
    place.replaceChildren(box);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${series.name}; the table below has the same numbers`);
    new ResizeObserver(() => plot.setSize({ width: width(), height: HEIGHT })).observe(place);
    plots.set(name, { plot, box });
  }

  function update(name, series, fresh) {
    const place = document.querySelector(`[data-chart="${CSS.escape(name)}"]`);
    if (!place || series.points.length < 2) return;
    const known = plots.get(name);
    if (!known || fresh) {
      draw(name, series, place);
      return;
    }
    known.plot.setData(columns(series));
  }

  const host = document.querySelector("[data-series]");
  if (host && window.uPlot) {
    const load = (fresh) => fetch(host.dataset.series, { headers: { Accept: "application/json" } })
      .then((answer) => (answer.ok ? answer.json() : {}))
      .then((data) => {
        for (const [name, series] of Object.entries(data)) if (series.points) update(name, series, fresh);
      })
      .catch(() => { /* the drawn charts stay */ });
    load(false);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => load(true));
    // A refreshed page has drawn charts in place of the live ones, which go back to their places at once.
    document.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target?.id !== "live") return;
      for (const [name, { plot, box }] of plots) {
        const place = document.querySelector(`[data-chart="${CSS.escape(name)}"]`);
        if (!place) continue;
        place.classList.add("plot-live");
        place.replaceChildren(box);
        plot.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT });
      }
      load(false);
    });
  }

  const slider = document.querySelector("[data-slider]");
  if (slider) {
    const number = document.getElementById(slider.dataset.slider);
    slider.closest("[hidden]")?.removeAttribute("hidden");
    slider.addEventListener("input", () => { number.value = slider.value; });
    slider.addEventListener("change", () => number.form.requestSubmit());
  }
})();
