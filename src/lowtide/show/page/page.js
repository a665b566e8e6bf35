"use strict";
// Cursor and zoom over the pictures that stand in the page already. Values are read back out of the paths.
(() => {
  const axis = JSON.parse(document.getElementById("axis").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const WHOLE = [0, axis.width];
  const NEAR = axis.width / 100;
  let view = WHOLE, cursor = null;

  // Ticks and words: as in scales.py. Change both.
  const roundStep = (wanted) => {
    if (!(wanted > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(wanted));
    return [1, 2, 5, 10].find((one) => one * power >= wanted * (1 - 1e-9)) * power;
  };
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
  const timeStep = (seconds) => {
    const wanted = seconds / 6;
    const step = TIMES.find((one) => one >= wanted);
    if (step) return seconds >= 2 ? step : roundStep(wanted);
    return wanted > 86400 ? roundStep(wanted / 86400) * 86400 : 86400;
  };
  const timeWords = (seconds) => {
    if (seconds && seconds < 60) return `${+seconds.toPrecision(3)}s`;
    const whole = Math.round(seconds);
    const parts = [[Math.floor(whole / 86400), "d"], [Math.floor(whole / 3600) % 24, "h"], [Math.floor(whole / 60) % 60, "m"], [whole % 60, "s"]];
    return parts.filter(([count]) => count).map(([count, unit]) => count + unit).join(" ") || "0";
  };
  const valueStep = (span, unit) => {
    if (unit.startsWith("bytes")) return 2 ** Math.max(0, span > 0 ? Math.ceil(Math.log2(span / 5)) : 0);
    return roundStep(span / 6);
  };
  const scaled = (value, base, units, tick) => {
    let n = 0;
    while (n < units.length - 1 && Math.abs(value) >= base * 0.99995) { value /= base; n += 1; }
    const words = n ? value.toFixed(1) : `${Math.round(value)}`;
    return (tick ? words.replace(/\.0$/, "") : words) + units[n];
  };
  const digits = (value, count) => {
    if (value === 0 || Math.abs(value) >= 1e-4) return `${+value.toPrecision(count)}`;
    const [mantissa, power] = value.toExponential(count - 1).split("e");
    return `${+mantissa}e${+power}`;
  };
  const valueWords = (value, unit, tick) => {
    const rate = unit.endsWith("/s") ? "/s" : "";
    if (unit.startsWith("bytes")) return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], tick) + rate;
    if (unit.startsWith("count")) {
      if (Math.abs(value) < 100 && value !== Math.round(value)) return `${+value.toPrecision(3)}${rate}`;
      return (Math.abs(value) < 1e4 ? `${Math.round(value)}` : scaled(value, 1000, ["", "k", "M", "B", "T"], tick)) + rate;
    }
    const words = digits(value, tick ? 6 : 4);
    return unit === "percent" ? `${words} %` : words;
  };

  // Seconds of work and places in the picture; sessions lie a gap apart.
  const sessionAt = (x) => axis.sessions.filter(([left]) => left <= x + 0.5).pop() || axis.sessions[0];
  const secondsAt = (x) => {
    const [left, from] = sessionAt(x);
    return Math.max(from, from + (x - left) / axis.units);
  };
  const placeOf = (seconds) => {
    const [left, from] = axis.sessions.filter(([, start]) => start <= seconds).pop() || axis.sessions[0];
    return left + (seconds - from) * axis.units;
  };

  const readPath = (d) => {
    const points = [];
    for (const [, x, y, moves] of d.matchAll(/M(-?\d+) (-?\d+)(?:h0|l([-\d ]+))/g)) {
      let at = [+x, +y];
      points.push(at);
      const steps = (moves || "").match(/-?\d+/g) || [];
      for (let n = 0; n + 1 < steps.length; n += 2) {
        at = [at[0] + +steps[n], at[1] + +steps[n + 1]];
        points.push(at);
      }
    }
    return points;
  };
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= x) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  };
  const place = (node, box) => { for (const name in box) node.style[name] = `${box[name]}px`; };
  const added = (parent, name) => {
    const node = document.createElement("div");
    node.className = name;
    node.hidden = true;
    parent.append(node);
    return node;
  };

  class Chart {
    constructor(figure) {
      const { unit, bottom, top, fixed } = figure.dataset;
      this.unit = unit;
      this.range = this.shown = [+bottom, +top];
      this.fixed = fixed === "1";
      this.plot = figure.querySelector(".plot");
      this.field = figure.querySelector(".field");
      const outputs = [...figure.querySelectorAll("output")];
      this.lines = [...figure.querySelectorAll("path.line[data-name]")].map((path) => ({
        points: readPath(path.getAttribute("d")),
        output: outputs.find((output) => output.dataset.of === path.dataset.name),
        dot: added(this.plot, "dot"),
      }));
      const unseen = figure.querySelector("path.unseen");
      this.steps = unseen && { points: readPath(unseen.getAttribute("d")), top: +unseen.dataset.top };
      this.line = added(this.plot, "cursor");
      this.drag = added(this.plot, "drag");
      this.listen();
    }

    box() {
      const outer = this.plot.getBoundingClientRect(), inner = this.field.getBoundingClientRect();
      return { left: inner.left - outer.left, top: inner.top - outer.top, width: inner.width, height: inner.height };
    }

    value(y) { return this.range[0] + (1 - y / axis.height) * (this.range[1] - this.range[0]); }

    // The part of the picture that is seen: a zoom of time, and of values where zero does not matter.
    show() {
      let [bottom, top] = this.range;
      if (!this.fixed && view !== WHOLE) {
        const seen = this.lines.flatMap((line) => line.points).filter(([x]) => x >= view[0] && x <= view[1]).map(([, y]) => this.value(y));
        if (seen.length > 1) {
          const low = seen.reduce((a, b) => Math.min(a, b)), high = seen.reduce((a, b) => Math.max(a, b));
          const air = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
          [bottom, top] = [low - air, high + air];
        }
      }
      this.shown = [bottom, top];
      const span = this.range[1] - this.range[0];
      const above = ((this.range[1] - top) / span) * axis.height, tall = ((top - bottom) / span) * axis.height;
      this.field.setAttribute("viewBox", `${view[0]} ${above} ${view[1] - view[0]} ${tall}`);
      this.drawTicks();
    }

    drawTicks() {
      const [bottom, top] = this.shown, step = valueStep(top - bottom, this.unit), values = [];
      for (let n = Math.ceil(bottom / step - 1e-9); n <= Math.floor(top / step + 1e-9); n += 1) values.push(n * step);
      const full = this.range[1] - this.range[0];
      this.plot.querySelector(".grid").setAttribute("d", values.map((one) => `M0 ${((this.range[1] - one) / full) * axis.height}H${axis.width}`).join(""));
      this.texts("y", values.map((one) => ({ x: "100%", y: `${((top - one) / (top - bottom)) * 100}%`, dy: ".32em", words: valueWords(one, this.unit, true) })));
      const [from, to] = view.map(secondsAt), every = timeStep(to - from), moments = [];
      for (let n = Math.ceil(from / every - 1e-9); n * every <= to * (1 + 1e-9); n += 1) moments.push(n * every);
      const share = (x) => (x - view[0]) / (view[1] - view[0]);
      this.texts("x", moments.map((one, n) => ({ x: `${share(placeOf(one)) * 100}%`, y: "14", class: n % 2 && moments.length > 4 ? "odd" : "even", words: timeWords(one) })));
      this.nameStages();
    }

    // A stage is named where its name has room.
    nameStages() {
      const share = (x) => Math.min(1, Math.max(0, (x - view[0]) / (view[1] - view[0]))), width = this.box().width;
      for (const text of this.plot.querySelectorAll(".stages text")) {
        const left = share(+text.dataset.left), right = share(+text.dataset.right);
        text.setAttribute("x", `${left * 100}%`);
        text.setAttribute("visibility", (right - left) * width > text.textContent.length * 8 + 14 ? "visible" : "hidden");
      }
    }

    texts(name, ticks) {
      this.plot.querySelector(`svg.${name}`).replaceChildren(...ticks.map(({ words, ...places }) => {
        const text = document.createElementNS(SVG, "text");
        for (const key in places) text.setAttribute(key, places[key]);
        text.textContent = words;
        return text;
      }));
    }

    point() {
      const seen = cursor !== null && cursor >= view[0] && cursor <= view[1], box = this.box();
      const across = (x) => box.left + ((x - view[0]) / (view[1] - view[0])) * box.width;
      this.line.hidden = !seen;
      if (seen) place(this.line, { left: across(cursor), top: box.top, height: box.height });
      for (const { points, output, dot } of this.lines) {
        dot.hidden = !seen;
        if (output) output.textContent = "";
        if (!seen) continue;
        if (cursor < points[0][0] - NEAR || cursor > points.at(-1)[0] + NEAR) { dot.hidden = true; continue; }
        const [x, y] = nearest(points, cursor), value = this.value(y);
        if (output) output.textContent = valueWords(value, this.unit, false);
        const down = box.top + ((this.shown[1] - value) / (this.shown[1] - this.shown[0])) * box.height;
        dot.hidden = x < view[0] || x > view[1] || down < box.top - 1 || down > box.top + box.height + 1;
        place(dot, { left: across(x), top: down });
      }
    }

    xOf(event) {
      const inner = this.field.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - inner.left) / inner.width));
      return view[0] + share * (view[1] - view[0]);
    }

    listen() {
      const plot = this.plot;
      let from = null;
      plot.addEventListener("pointermove", (event) => {
        moveTo(this.xOf(event));
        if (from !== null && event.pointerType === "mouse") this.showDrag(from, cursor);
      });
      plot.addEventListener("pointerdown", (event) => {
        moveTo(this.xOf(event));
        if (event.button === 0 && event.pointerType === "mouse") {
          from = cursor;
          plot.setPointerCapture(event.pointerId);
        }
      });
      plot.addEventListener("pointerup", (event) => {
        const [left, right] = [from ?? 0, this.xOf(event)].sort((a, b) => a - b);
        const dragged = from !== null && right - left > (view[1] - view[0]) * 0.01;
        from = null;
        this.drag.hidden = true;
        if (dragged) zoomTo(left, right);
      });
      plot.addEventListener("pointercancel", () => { from = null; this.drag.hidden = true; });
      plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && from === null) moveTo(null); });
      plot.addEventListener("dblclick", () => zoomTo(...WHOLE));
      plot.addEventListener("keydown", (event) => this.press(event));
    }

    showDrag(from, to) {
      const box = this.box(), across = (x) => box.left + ((x - view[0]) / (view[1] - view[0])) * box.width;
      this.drag.hidden = false;
      place(this.drag, { left: across(Math.min(from, to)), width: Math.abs(across(to) - across(from)), top: box.top, height: box.height });
    }

    press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const span = view[1] - view[0], step = span * (event.shiftKey ? 0.1 : 0.01);
      const at = cursor ?? view[0] + span / 2;
      const keys = {
        ArrowLeft: () => walk(at - step), ArrowRight: () => walk(at + step),
        Home: () => walk(view[0]), End: () => walk(view[1]),
        "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), "0": () => zoomTo(...WHOLE), Escape: () => moveTo(null),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    }
  }

  const moment = document.getElementById("moment");
  const charts = [...document.querySelectorAll(".chart")].map((figure) => new Chart(figure));
  if (!charts.length) return;

  function moveTo(x) {
    cursor = x;
    for (const chart of charts) chart.point();
    moment.textContent = x === null ? "" : momentWords(x);
  }

  // A cursor that leaves the view takes the view along.
  function walk(x) {
    const at = Math.min(WHOLE[1], Math.max(WHOLE[0], x)), span = view[1] - view[0];
    if (at < view[0]) zoomTo(at, at + span);
    if (at > view[1]) zoomTo(at - span, at);
    moveTo(at);
  }

  function momentWords(x) {
    const seconds = secondsAt(x), [, from, at] = sessionAt(x), parts = [timeWords(+seconds.toPrecision(6))];
    const steps = charts.map((chart) => chart.steps).find(Boolean);
    if (steps) parts.push(`step ${Math.round((1 - nearest(steps.points, x)[1] / axis.height) * steps.top).toLocaleString("en")}`);
    if (at !== null) parts.push(`${new Date((at + seconds - from) * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`);
    return parts.join(" · ");
  }

  function zoomTo(left, right) {
    const span = Math.min(WHOLE[1], Math.max(right - left, axis.width / 400));
    const from = Math.min(WHOLE[1] - span, Math.max(0, (left + right - span) / 2));
    view = span >= WHOLE[1] ? WHOLE : [from, from + span];
    for (const chart of charts) { chart.show(); chart.point(); }
    document.querySelector('[data-do="all"]').disabled = view === WHOLE;
  }

  function zoomBy(factor) {
    const at = cursor ?? (view[0] + view[1]) / 2;
    zoomTo(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  }

  const tools = document.querySelector(".tools");
  const does = { in: () => zoomBy(0.5), out: () => zoomBy(2), all: () => zoomTo(...WHOLE) };
  for (const button of tools.querySelectorAll("button")) button.addEventListener("click", does[button.dataset.do]);
  tools.hidden = false;
  document.querySelector('[data-do="all"]').disabled = true;
  window.addEventListener("resize", () => { for (const chart of charts) { chart.nameStages(); chart.point(); } });
  for (const chart of charts) chart.nameStages();
  window.addEventListener("beforeprint", () => { zoomTo(...WHOLE); moveTo(null); });
})();
