"use strict";
// The interactive maps of the report: drawn by Plotly when they come near the screen.
// Text reaches the page through textContent only, or escaped where Plotly reads markup.
(() => {
  const WIDEST = 640; // pixels of a whole map
  const BAR = 12, GAP = 3; // pixels of a class bar, and between it and the map
  const SCALE = 78, LINE = 16; // pixels for the colour bar, and for each line of its label
  const LETTER = 7; // approximate pixels of a letter next to the axes
  const FONT = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", size: 12, color: "#1f2328" };

  const read = (element) => JSON.parse(element.textContent);
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text) => (text.length > 14 ? text.slice(0, 13) + "…" : text);
  const digits = (value) =>
    value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(4)));
  const number = (value) => digits(value).replace(/-/g, "−");

  function decode(text) {
    // base64 of float32, little-endian
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float32Array.from({ length: bytes.length / 4 }, (_, place) => view.getFloat32(4 * place, true));
  }

  function make(tag, kind, text) {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Examples: read once for all maps that share them. ----------------------------------------------------------------
  const known = new Map();

  function examplesOf(name) {
    if (!known.has(name)) {
      const examples = read(document.getElementById(name));
      examples.picture = new Image();
      examples.loaded = new Promise((done) => (examples.picture.onload = done));
      examples.picture.src = examples.sprite;
      known.set(name, examples);
    }
    return known.get(name);
  }

  function canvasOf(examples, index) {
    const { width, height, across, picture } = examples;
    const canvas = make("canvas");
    canvas.width = width;
    canvas.height = height;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `image of example ${index}, ${examples.classes[examples.labels[index]]}`);
    examples.loaded.then(() => {
      const [left, top] = [(index % across) * width, Math.floor(index / across) * height];
      canvas.getContext("2d").drawImage(picture, left, top, width, height, 0, 0, width, height);
    });
    return canvas;
  }

  // The panel. -------------------------------------------------------------------------------------------------------
  function describe(examples, index, heading, kind) {
    const part = make("div", `example ${kind}`);
    part.dataset.index = index;
    part.append(make("h3", "", heading), make("p", "label", `example ${index}`), canvasOf(examples, index));
    const list = make("dl");
    const say = (name, text, look) => list.append(make("dt", "", name), make("dd", look, text));
    const [label, guess] = [examples.labels[index], examples.predictions[index]];
    const share = `${(100 * examples.probabilities[index]).toFixed(1)} %`;
    say("true class", examples.classes[label], "truth");
    if (guess === label) say("prediction", `${examples.classes[guess]}, ${share}`, "guess");
    else say("prediction", `${examples.classes[guess]}, ${share}: wrong`, "guess wrong");
    say("epistemic variance", number(examples.epistemic[index]), "epistemic");
    say("aleatoric variance", number(examples.aleatoric[index]), "aleatoric");
    part.append(list);
    return part;
  }

  function fill(map) {
    const { panel, data, examples, values, entry } = map;
    panel.classList.toggle("pinned", map.pinned);
    panel.replaceChildren();
    if (entry === null) {
      panel.append(make("p", "hint", "Hover over an entry of the map to see the examples behind it. Click to pin it here."));
      panel.append(make("p", "hint", "Drag over a part of the map to zoom in; double-click to zoom out."));
      return;
    }
    const [row, column] = entry;
    const value = make("p", "value", number(values[row * data.columns + column]));
    value.dataset.value = values[row * data.columns + column];
    panel.append(make("p", "label", data.scale), value);
    if (data.names === null) {
      const pair = make("div", "pair");
      pair.append(describe(examples, row, "row", "row"), describe(examples, column, "column", "column"));
      panel.append(pair);
    } else {
      const output = make("p", "output");
      output.append(make("span", "label", "output: "), make("b", "", data.names[column]));
      const single = make("div", "single");
      single.append(describe(examples, row, "row", "row"));
      panel.append(output, single);
    }
    panel.append(make("p", "hint", map.pinned ? "Pinned. Click the map to release it." : "Click to pin this entry here."));
  }

  // What Plotly draws. -----------------------------------------------------------------------------------------------
  const columnOrder = (map, order) => (map.data.names === null ? order : map.data.names.map((_, place) => place));

  function traces(map, order) {
    const { data, examples, values } = map;
    const columns = columnOrder(map, order);
    const z = order.map((row) => columns.map((column) => values[row * data.columns + column]));
    const colorbar = { thickness: 14, len: 1, lenmode: "fraction", ypad: 0, xpad: 8, outlinewidth: 0, nticks: 7 };
    const bar = {
      type: "heatmap", showscale: false, hoverinfo: "skip", zmin: -0.5, zmax: examples.classes.length - 0.5,
      colorscale: steps(examples.colours),
    };
    const classes = order.map((row) => examples.labels[row]);
    const found = [
      { type: "heatmap", z, zmin: -data.limit, zmax: data.limit, colorscale: data.colours, hoverinfo: "none", colorbar },
      { ...bar, z: classes.map((label) => [label]), xaxis: "x2", yaxis: "y" },
    ];
    if (data.names === null) found.push({ ...bar, z: [classes], xaxis: "x", yaxis: "y2" });
    return found;
  }

  function steps(colours) {
    return colours.flatMap((colour, place) => [[place / colours.length, colour], [(place + 1) / colours.length, colour]]);
  }

  function layout(map, order) {
    const { data, examples } = map;
    const kernel = data.names === null;
    const longest = (names) => Math.max(...names.map((name) => short(name).length));
    const left = Math.min(105, 12 + LETTER * longest(examples.classes));
    const room = Math.max(280, Math.min(map.plot.clientWidth, WIDEST));
    const scale = lines(data.scale, kernel ? (room - left - SCALE - LINE) / LETTER : 460 / LETTER);
    const right = SCALE + LINE * scale.length;
    const wide = kernel ? room - left - right : Math.min(room - left - right, Math.max(180, 34 * data.columns));
    const steep = !kernel && longest(data.names) * LETTER > wide / data.columns - 4;
    const below = kernel ? 12 : steep ? 14 + LETTER * longest(data.names) : 26;
    const high = kernel ? wide : 460;
    const margin = { l: left, r: right, t: 8, b: below, pad: 0, autoexpand: false };
    const [inX, inY] = [(BAR + GAP) / wide, kernel ? (BAR + GAP) / high : 0];
    const still = { showgrid: false, zeroline: false, ticks: "", showticklabels: false, fixedrange: true };
    const moves = { showgrid: false, zeroline: false, ticks: "", showticklabels: false };
    const rows = classTicks(map, order, high);
    return {
      width: wide + left + right, height: high + margin.t + below, margin, font: FONT, hovermode: "closest",
      plot_bgcolor: "white", paper_bgcolor: "white", dragmode: "zoom", shapes: mark(map, order),
      xaxis: { ...moves, domain: [inX, 1], range: [-0.5, data.columns - 0.5], anchor: "y", ...columnTicks(map, steep) },
      yaxis: { ...moves, domain: [0, 1 - inY], range: [data.rows - 0.5, -0.5], anchor: "x2", ...rows },
      xaxis2: { ...still, domain: [0, BAR / wide], range: [-0.5, 0.5], anchor: "y" },
      annotations: [
        {
          text: scale.map(escaped).join("<br>"), textangle: -90, showarrow: false, xref: "paper", yref: "paper", x: 1, y: 0.5,
          xanchor: "right", xshift: right - 4,
        },
      ],
      ...(kernel && { yaxis2: { ...still, domain: [1 - BAR / high, 1], range: [-0.5, 0.5], anchor: "x" } }),
    };
  }

  function lines(text, length) {
    // Broken between words, into lines of about this many letters.
    const found = [""];
    for (const word of text.split(/\s+/)) {
      const longer = `${found[found.length - 1]} ${word}`.trim();
      if (longer.length <= length || found[found.length - 1] === "") found[found.length - 1] = longer;
      else found.push(word);
    }
    return found;
  }

  function classTicks(map, order, high) {
    // The names of the classes beside their rows, where each class has one run of rows that is high enough for its name.
    if (map.select.value !== "class") return {};
    const { labels, classes } = map.examples;
    const runs = new Map();
    order.forEach((row, place) => runs.set(labels[row], [...(runs.get(labels[row]) ?? []), place]));
    const large = [...runs].filter(([, places]) => (places.length * high) / order.length >= 11);
    const middles = large.map(([, places]) => (places[0] + places[places.length - 1]) / 2);
    return { showticklabels: true, tickvals: middles, ticktext: large.map(([label]) => escaped(short(classes[label]))) };
  }

  function columnTicks(map, steep) {
    const { names, columns } = map.data;
    if (names === null || columns > 40) return {};
    const ticktext = names.map((name) => escaped(short(name)));
    return { showticklabels: true, tickvals: names.map((_, place) => place), ticktext, tickangle: steep ? -90 : 0 };
  }

  function mark(map, order) {
    // A ring around the entry that is kept, wherever the order has put it: black on white, seen on every colour.
    if (!map.pinned) return [];
    const y = order.indexOf(map.entry[0]);
    const x = columnOrder(map, order).indexOf(map.entry[1]);
    const ring = { type: "circle", xref: "x", yref: "y", xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yanchor: y };
    const size = { x0: -8, x1: 8, y0: -8, y1: 8 };
    return [["white", 5], ["black", 2]].map(([color, width]) => ({ ...ring, ...size, line: { color, width } }));
  }

  // A map's life. ----------------------------------------------------------------------------------------------------
  function start(figure) {
    const find = (what) => figure.querySelector(what);
    const map = {
      figure, select: find("select"), plot: find(".plot"), panel: find(".panel"), source: find("script"),
      drawn: false, begun: false, pinned: false, entry: null, order: null,
    };
    fill(map);
    return map;
  }

  function loadPlotly() {
    // It takes longer to start than all the rest of the page, so it waits for the first map.
    if (window.Plotly) return;
    const script = make("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
  }

  const orderOf = (map) => map.data.orders[map.select.value];

  function show(map) {
    const order = orderOf(map);
    map.width = map.plot.clientWidth;
    const config = { displayModeBar: false, responsive: false, showTips: false };
    return Plotly.react(map.target, traces(map, order), layout(map, order), config).then(() => {
      map.order = map.select.value;
    });
  }

  async function draw(map) {
    if (map.begun) return;
    map.begun = true;
    loadPlotly();
    map.data = read(map.source);
    map.values = decode(map.data.values);
    map.examples = examplesOf(map.figure.dataset.examples);
    map.target = make("div", "drawing");
    map.plot.append(map.target);
    await show(map);
    map.plot.querySelector(".still").remove();
    map.target.on("plotly_hover", (event) => !map.pinned && point(map, event));
    map.target.on("plotly_click", (event) => {
      map.pinned = !map.pinned;
      point(map, event);
      Plotly.relayout(map.target, { shapes: mark(map, orderOf(map)) });
    });
    map.select.addEventListener("change", () => show(map));
    new ResizeObserver(() => Math.abs(map.plot.clientWidth - map.width) > 1 && show(map)).observe(map.plot);
    map.drawn = true;
  }

  function point(map, event) {
    const own = event.points.find((each) => each.curveNumber === 0);
    if (!own) return;
    const order = orderOf(map);
    map.entry = [order[own.y], columnOrder(map, order)[own.x]];
    fill(map);
  }

  const maps = new Map([...document.querySelectorAll("figure.map")].map((figure) => [figure, start(figure)]));
  const watcher = new IntersectionObserver(
    (seen) => seen.filter((each) => each.isIntersecting).forEach((each) => {
      watcher.unobserve(each.target);
      draw(maps.get(each.target));
    }),
    { rootMargin: "400px" },
  );
  maps.forEach((_, figure) => watcher.observe(figure));

  // For tests: what each map shows, by its id. Nothing can be changed through it.
  const states = [...maps.values()].map((map) => [
    map.figure.id,
    Object.freeze({
      get drawn() { return map.drawn; },
      get order() { return map.order; },
      get pinned() { return map.pinned; },
    }),
  ]);
  Object.defineProperty(window, "dnn2gp", { value: Object.freeze({ maps: Object.freeze(Object.fromEntries(states)) }) });
})();
