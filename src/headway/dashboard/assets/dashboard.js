// Keeps an open page up to date, and draws the curves. The page works without it, but then does not update itself.
(() => {
  "use strict";

  // A message in the head of the page says whether it is live.
  const beat = document.getElementById("beat");
  const say = (state, text) => {
    if (!beat) return;
    beat.className = "beat " + state;
    beat.querySelector(".beat-text").textContent = text;
  };

  // Events: each says only that there is news; htmx then asks for the part of the page that changes.
  let source = null;
  const listen = () => {
    if (source || document.hidden) return;
    source = new EventSource(document.body.dataset.events);
    source.addEventListener("snapshot", () => {
      say("live", "live");
      requestAnimationFrame(() => beat && beat.classList.add("fresh"));
      htmx.trigger(document.body, "snapshot");
      charts.forEach((chart) => chart.update());
    });
    source.addEventListener("error", () => {
      say("lost", "not connected");
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(listen, 5000);
      }
    });
  };
  const rest = () => {
    if (source) source.close();
    source = null;
    say("", "paused");
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
  addEventListener("pagehide", rest);

  // A job that has ended, or waits for an answer, need not be asked about again.
  document.body.addEventListener("htmx:before:request", (event) => {
    const live = document.getElementById("live");
    if (live && live.querySelector("[data-over]")) event.preventDefault();
  });

  // Curves
  const FIELDS = ["done", "arrived", "oldest", "work", "queued", "handler"];
  const charts = [];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e6) return (value / 1e6).toFixed(1) + "M";
    if (size >= 1e4) return (value / 1e3).toFixed(0) + "k";
    if (size > 0 && size < 0.1) return value.toPrecision(2);
    return size >= 100 || size === 0 ? value.toFixed(0) : value.toFixed(size < 1 ? 2 : 1);
  };

  class Charts {
    constructor(element) {
      this.element = element;
      this.times = [];
      this.levels = [];
      this.marks = [];
      this.plots = [];
      this.busy = false;
      new ResizeObserver(() => this.resize()).observe(element);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
      this.update();
    }

    async update() {
      if (this.busy) return;
      this.busy = true;
      try {
        const last = this.times.length ? this.times[this.times.length - 1] : 0;
        const answer = await fetch(this.element.dataset.curves + "&after=" + last, { credentials: "same-origin" });
        if (answer.ok) this.take(await answer.json());
      } catch (error) {
        console.warn("The curves could not be updated.", error);  // the next event tries again
      } finally {
        this.busy = false;
      }
    }

    take(news) {
      this.marks = news.marks;
      const names = news.levels.map((level) => level.level);
      const same = names.length === this.levels.length && names.every((name, at) => name === this.levels[at].level);
      if (!same && this.times.length) {
        // A level came or went: begin again with all points.
        this.times = [];
        this.levels = [];
        this.busy = false;
        this.update();
        return;
      }
      if (!same) this.levels = names.map((level) => ({ level, ...Object.fromEntries(FIELDS.map((field) => [field, []])) }));
      this.times.push(...news.times);
      this.levels.forEach((level, at) => {
        for (const field of FIELDS) level[field].push(...news.levels[at][field]);
      });
      const surplus = this.times.length - 800;
      if (surplus > 0) {
        this.times.splice(0, surplus);
        this.levels.forEach((level) => FIELDS.forEach((field) => level[field].splice(0, surplus)));
      }
      if (this.times.length < 2) return;
      if (!this.plots.length || !same) this.redraw();
      else this.plots.forEach((plot) => plot.setData(this.data(plot.field)));
    }

    // The handler's time is that of all levels, so it is one curve.
    lines(field) {
      return field === "handler" ? this.levels.slice(0, 1) : this.levels;
    }

    data(field) {
      return [this.times, ...this.lines(field).map((level) => level[field])];
    }

    redraw() {
      this.plots.forEach((plot) => plot.destroy());
      this.plots = [];
      if (this.times.length < 2) return;
      for (const place of this.element.querySelectorAll(".plot")) {
        const plot = new uPlot(this.options(place), this.data(place.dataset.field), place);
        plot.field = place.dataset.field;
        this.plots.push(plot);
      }
    }

    resize() {
      this.plots.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: 180 }));
    }

    options(place) {
      const axis = { stroke: style("--quiet"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      return {
        width: place.clientWidth,
        height: 180,
        legend: { show: false },
        cursor: { y: false, sync: { key: "headway" } },
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [
          { ...axis, size: 26, gap: 4, space: 70, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, size: 48, values: (_, ticks) => ticks.map(short) },
        ],
        series: [
          {},
          ...this.lines(place.dataset.field).map((level) => ({ stroke: style("--l" + ((level.level || 0) % 6)), width: 2, spanGaps: false, points: { show: false } })),
        ],
        hooks: { draw: [(plot) => this.drawMarks(plot)] },
      };
    }

    drawMarks(plot) {
      const { ctx } = plot;
      const { left, top, width, height } = plot.bbox;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = style("--mark");
      ctx.setLineDash([4, 4]);
      ctx.lineWidth = Math.max(1, devicePixelRatio);
      ctx.font = 11 * devicePixelRatio + "px system-ui, sans-serif";
      for (const mark of this.marks) {
        const x = plot.valToPos(mark.at, "x", true);
        if (x < left || x > left + width) continue;
        ctx.beginPath();
        ctx.moveTo(x, top);
        ctx.lineTo(x, top + height);
        ctx.stroke();
        const onLeft = x > left + width - 90 * devicePixelRatio;
        ctx.textAlign = onLeft ? "right" : "left";
        ctx.fillText(mark.text.slice(0, 24), x + (onLeft ? -4 : 4) * devicePixelRatio, top + 11 * devicePixelRatio);
      }
      ctx.restore();
    }
  }

  const begin = () => {
    const element = document.getElementById("charts");
    if (element) charts.push(new Charts(element));
    listen();
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
