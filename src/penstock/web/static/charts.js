// Draws curves as SVG. Samples are [time, lag, changes ever applied, waiting, {consumer: bytes}], the oldest first.
"use strict";

window.penstockCharts = function (root) {
  const svgNames = "http://www.w3.org/2000/svg";
  const most = 960;
  let samples = [];
  let span = 0;
  let loadedAt = 0;

  const number = (value) => value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : Math.round(value).toLocaleString("en-US");
  const seconds = (value) => value < 60 ? `${value.toFixed(value < 10 ? 1 : 0)} s` : value < 3600 ? `${Math.round(value / 6) / 10} min` : `${Math.round(value / 360) / 10} h`;
  function bytes(value) {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (value < 1000) return `${value < 100 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
      value /= 1000;
    }
    return `${value.toFixed(1)} TB`;
  }
  function rate(point, before) {
    if (!before || point[2] === null || before[2] === null || point[2] < before[2]) return null;
    return (point[2] - before[2]) / Math.max(0.1, point[0] - before[0]);
  }
  const single = (values) => [["", values]];
  const kinds = {
    lag: { text: seconds, least: 1, series: () => single(samples.map((one) => one[1])) },
    rate: { text: (value) => `${number(value)}/s`, least: 2, series: () => single(samples.map((one, n) => rate(one, samples[n - 1]))) },
    backlog: { text: (value) => `${number(value)} ${value === 1 ? "change" : "changes"}`, least: 2, axis: number, series: () => single(samples.map((one) => one[3])) },
    held: {
      text: bytes, least: 1000,
      series: () => {
        const names = [...new Set(samples.flatMap((one) => Object.keys(one[4] || {})))].slice(0, 6);
        return names.length ? names.map((name) => [name, samples.map((one) => (one[4] ? one[4][name] ?? null : null))]) : single(samples.map(() => null));
      },
    },
  };

  function element(name, attributes, parent) {
    const made = document.createElementNS(svgNames, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  }
  function roundUp(value) {
    if (value <= 0) return 1;
    const unit = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 4, 6, 8, 10].find((step) => step * unit >= value) * unit;
  }
  function time(at) {
    const text = new Date(at * 1000).toISOString();
    const isShort = samples[samples.length - 1][0] - samples[0][0] < 300;
    return span === 2 ? text.slice(5, 16).replace("T", " ") : text.slice(11, isShort ? 19 : 16);
  }

  // One curve as a path, broken where a value is unknown; with `floor`, closed as an area down to it.
  function path(values, x, y, floor) {
    let drawn = "";
    let first = null;
    let last = null;
    const close = () => { if (floor !== undefined && first !== null) drawn += `L${last} ${floor}L${first} ${floor}Z`; };
    values.forEach((value, n) => {
      if (value === null || value === undefined) { close(); first = null; return; }
      last = x(n).toFixed(1);
      drawn += `${first === null ? "M" : "L"}${last} ${y(value).toFixed(1)}`;
      if (first === null) first = last;
    });
    close();
    return drawn;
  }

  const figures = [...root.querySelectorAll("[data-chart]")].map((figure) => {
    const kind = kinds[figure.dataset.chart];
    const plot = figure.querySelector(".plot");
    const now = figure.querySelector("b");
    const svg = element("svg", { role: "img" }, null);
    plot.append(svg);
    const left = 52, right = 6, top = 8, bottom = 20;
    let at = null;

    function text(series, n) {
      const said = series.filter(([, values]) => values[n] !== null && values[n] !== undefined)
        .map(([name, values]) => (series.length > 1 ? `${name} ${kind.text(values[n])}` : kind.text(values[n])));
      return said.length ? said.join(", ") : "–";
    }

    function draw() {
      const width = plot.clientWidth, height = plot.clientHeight;
      if (!width) return;
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.replaceChildren();
      const series = kind.series();
      const highest = Math.max(0, ...series.flatMap(([, values]) => values.filter((one) => one !== null && one !== undefined)));
      const limit = Math.max(kind.least, roundUp(highest * 1.05));
      const from = samples.length ? samples[0][0] : 0;
      const length = samples.length > 1 ? samples[samples.length - 1][0] - from : 1;
      const x = (n) => left + ((samples[n][0] - from) / length) * (width - left - right);
      const y = (value) => top + (1 - value / limit) * (height - top - bottom);
      for (const part of [0, 0.5, 1]) {
        element("path", { class: "grid", d: `M${left} ${Math.round(y(limit * part)) + 0.5}H${width - right}` }, svg);
        element("text", { class: "y", x: left - 8, y: y(limit * part) + 4 }, svg).textContent = (kind.axis || kind.text)(limit * part);
      }
      if (samples.length > 1) {
        const labels = width > 420 ? [0.03, 0.34, 0.65, 0.96] : [0.06, 0.94];
        for (const part of labels) {
          element("text", { class: "x", x: left + part * (width - left - right), y: height - 4 }, svg).textContent = time(from + part * length);
        }
        series.forEach(([, values], n) => {
          if (series.length === 1) element("path", { class: "area", d: path(values, x, y, y(0).toFixed(1)) }, svg);
          element("path", { class: `curve c${n}`, d: path(values, x, y) }, svg);
        });
      }
      const n = at === null ? samples.length - 1 : Math.min(at, samples.length - 1);
      if (at !== null && n >= 0) element("path", { class: "cross", d: `M${x(n).toFixed(1)} ${top}V${height - bottom}` }, svg);
      const shown = n < 0 ? "–" : text(series, n);
      now.textContent = at === null || n < 0 ? shown : `${shown} at ${new Date(samples[n][0] * 1000).toISOString().slice(11, 19)}`;
      const label = figure.querySelector("figcaption").firstChild.textContent.trim();
      svg.setAttribute("aria-label", `${label}: ${shown} now, at most ${kind.text(highest)} in this span`);
    }

    function point(event) {
      if (samples.length < 2) return;
      const box = plot.getBoundingClientRect();
      const part = (event.clientX - box.left - left) / (box.width - left - right);
      const sought = samples[0][0] + part * (samples[samples.length - 1][0] - samples[0][0]);
      let n = samples.findIndex((one) => one[0] >= sought);
      if (n < 0) n = samples.length - 1;
      figures.forEach((one) => one.look(n));
    }
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerleave", () => figures.forEach((one) => one.look(null)));
    new ResizeObserver(draw).observe(plot);
    return { draw, look: (n) => { at = n; draw(); } };
  });
  const drawAll = () => figures.forEach((one) => one.draw());

  async function load(wanted = span) {
    try {
      const answer = await fetch(`${root.dataset.samples}?span=${wanted}`);
      if (!answer.ok) return;
      const found = await answer.json();
      span = wanted;
      samples = found.slice(-most);
      loadedAt = Date.now();
      drawAll();
    } catch { /* The stream says that the server is away. */ }
  }
  root.querySelectorAll("[data-span]").forEach((button) => button.addEventListener("click", () => {
    root.querySelectorAll("[data-span]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    load(Number(button.dataset.span));
  }));

  return {
    load,
    add(sample) {
      // The longer spans are put together by the server.
      if (span > 0) { if (Date.now() - loadedAt > 30000) load(span); return; }
      // The same once more, or the server's clock was set back.
      while (samples.length && samples[samples.length - 1][0] >= sample[0]) samples.pop();
      samples.push(sample);
      if (samples.length > most) samples.splice(0, samples.length - most);
      if (!document.hidden) drawAll();
    },
  };
};
