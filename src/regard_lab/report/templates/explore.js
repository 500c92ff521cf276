"use strict";
const THUMB = 48, STRIP = 1024, AROUND = 8;
const dark = matchMedia("(prefers-color-scheme: dark)");
const PALETTES = {
  light: { zero: [255, 255, 255], plus: [5, 50, 110], minus: [190, 20, 40], hidden: [227, 231, 236] },
  dark: { zero: [18, 22, 28], plus: [160, 208, 255], minus: [255, 120, 110], hidden: [43, 51, 61] },
};

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/* The cells of a head: the largest |x| of each row, then 127 sign(x) sqrt(|x| / largest) for each cell. */
const unpacked = (layer, head) => {
  if (head.rows) return head.rows;
  const bytes = Uint8Array.from(atob(head.cells), (letter) => letter.charCodeAt(0));
  const blocks = layer.blocks;
  const view = new DataView(bytes.buffer), largest = new Float32Array(blocks);
  for (let row = 0; row < blocks; row++) largest[row] = view.getFloat32(4 * row, true);
  const cells = new Int8Array(bytes.buffer, 4 * blocks);
  const step = (row, column) => {
    if (!layer.causal) return cells[row * blocks + column];
    return column > row ? null : cells[(row * (row + 1)) / 2 + column];
  };
  const weight = (row, column) => {
    const x = step(row, column);
    return x === null ? null : Math.sign(x) * (x / 127) ** 2 * largest[row];
  };
  head.rows = { step, weight };
  return head.rows;
};

const colour = (step) => {
  const palette = PALETTES[dark.matches ? "dark" : "light"];
  if (step === null) return palette.hidden;
  const share = Math.abs(step) / 127, full = step < 0 ? palette.minus : palette.plus;
  return palette.zero.map((zero, at) => Math.round(zero + share * (full[at] - zero)));
};

/* Draw a head on side x side pixels. Where several cells share a pixel, the strongest of them is shown. */
const draw = (canvas, layer, head, side) => {
  const { step } = unpacked(layer, head), blocks = layer.blocks;
  const picked = new Int16Array(side * side).fill(-999);
  for (let row = 0; row < blocks; row++) {
    const top = Math.floor((row * side) / blocks) * side;
    for (let column = 0; column < blocks; column++) {
      const x = step(row, column);
      if (x === null) break;
      const at = top + Math.floor((column * side) / blocks);
      if (picked[at] === -999 || Math.abs(x) > Math.abs(picked[at])) picked[at] = x;
    }
  }
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d"), image = context.createImageData(side, side);
  const table = new Map();
  for (let at = 0; at < picked.length; at++) {
    const x = picked[at] === -999 ? null : picked[at];
    if (!table.has(x)) table.set(x, colour(x));
    image.data.set([...table.get(x), 255], 4 * at);
  }
  context.putImageData(image, 0, 0);
};

const number = (x, digits) => x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const weighed = (x) => (x === 0 ? "0" : Math.abs(x) < 0.001 ? x.toExponential(1) : x.toPrecision(2));
const quoted = (text) => "\u201c" + text.replaceAll("\n", "\u21b5") + "\u201d";

class Panel {
  constructor(model) {
    this.model = model;
    this.length = model.tokens.length;
    this.blocks = Math.ceil(this.length / model.block);
    this.buttons = new Map();
    this.query = this.key = 0;
    for (const layer of model.layers) layer.blocks = this.blocks;
    this.first = model.layers.findIndex((layer) => layer.heads);
    const across = Math.max(1, ...model.layers.map((layer) => (layer.heads ? layer.heads.length : 0)));
    const grid = element("table");
    grid.append(element("tr", {}, element("th"), ...Array.from({ length: across }, (_, at) => element("th", { textContent: at, scope: "col" }))));
    model.layers.forEach((layer, at) => {
      const row = element("tr", {}, element("th", { textContent: at, scope: "row", title: layer.mechanism }));
      if (!layer.heads) row.append(element("td", { className: "reason", colSpan: across + 1 }, element("div", { textContent: `${layer.mechanism}: ${layer.reason}` })));
      else {
        row.append(...layer.heads.map((head, which) => element("td", {}, this.button(layer, head, at, which))));
        row.append(element("td", { className: "rest", colSpan: across + 1 - layer.heads.length }));
      }
      grid.append(row);
    });
    this.title = element("h3");
    this.facts = element("p", { className: "soft" });
    this.canvas = element("canvas", { className: "big", tabIndex: 0 });
    this.canvas.setAttribute("role", "img");
    this.cursor = element("div", { className: "cursor", hidden: true });
    this.readout = element("div", { className: "readout" });
    this.readout.setAttribute("aria-live", "polite");
    this.strip = element("div", { className: "strip" });
    this.pairs = element("tbody");
    const kinds = [...new Set(model.layers.map((layer) => layer.mechanism))].join(", ");
    const blocks = model.block > 1 ? ` Drawn in blocks of ${model.block} tokens; numbers and largest weights are exact.` : "";
    const headings = ["query", "key", "weight"].map((name) => element("th", { textContent: name, scope: "col" }));
    const numbers = element("details", {}, element("summary", { textContent: "Every head in numbers" }));
    numbers.addEventListener("toggle", () => numbers.children.length > 1 || numbers.append(this.numbers()));
    this.root = element("section", { className: "model" },
      element("h2", { textContent: model.name }),
      element("p", { className: "soft", textContent: `${kinds}. ${number(this.length, 0)} tokens, ${model.layers.length} layers.${blocks}` }),
      element("div", { className: "parts" },
        element("div", { className: "heads" }, grid),
        element("div", { className: "view" }, this.title, this.facts, element("div", { className: "stage" }, this.canvas, this.cursor), this.readout,
          element("details", { open: true }, element("summary", { textContent: "Largest weights of this head" }),
            element("div", { className: "scroll" }, element("table", { className: "pairs" }, element("thead", {}, element("tr", {}, ...headings)), this.pairs))))),
      this.strip, numbers);
    this.spans = this.length <= STRIP ? model.tokens.map((token, at) => this.word(token, at)) : [];
    this.strip.append(...this.spans);
    this.strip.hidden = !this.spans.length;
    this.listen();
  }

  button(layer, head, at, which) {
    const said = `layer ${at}, head ${which}: distance ${head.distance}, entropy ${head.entropy}`;
    const made = element("button", { className: "head", type: "button", title: said, onclick: () => choose(at, which) });
    made.setAttribute("aria-label", said);
    made.setAttribute("aria-pressed", "false");
    this.buttons.set(`${at} ${which}`, { made, layer, head });
    return made;
  }

  word(token, at) {
    const span = element("span", { textContent: token });
    span.addEventListener("pointerenter", () => point(this, at, Math.min(this.key, at)));
    return span;
  }

  /* What the buttons show: small pictures, or a number on its shade. */
  shade(what) {
    const most = Math.max(1e-9, ...[...this.buttons.values()].map(({ head }) => head[what] ?? 0));
    for (const { made, layer, head } of this.buttons.values()) {
      made.replaceChildren();
      made.style.background = made.style.color = "";
      if (what === "map") {
        const canvas = element("canvas");
        draw(canvas, layer, head, Math.min(THUMB, this.blocks));
        made.append(canvas);
        continue;
      }
      const share = head[what] / most;
      made.textContent = head[what] >= 100 ? Math.round(head[what]) : number(head[what], 1);
      made.style.background = `color-mix(in srgb, var(--mark) ${Math.round(100 * share)}%, var(--paper))`;
      made.style.color = share > 0.5 ? "var(--paper)" : "var(--ink)";
    }
  }

  choose(at, which) {
    const chosen = this.buttons.get(`${at} ${which}`);
    if (!chosen) return;
    for (const { made } of this.buttons.values()) made.setAttribute("aria-pressed", String(made === chosen.made));
    Object.assign(this, { layer: chosen.layer, head: chosen.head });
    this.title.textContent = `Layer ${at}, head ${which}: ${this.layer.mechanism}`;
    this.facts.textContent = `Distance ${number(this.head.distance, 1)} tokens, entropy ${number(this.head.entropy, 2)} nats, ${number(this.head.keys, 1)} effective keys.`;
    this.canvas.setAttribute("aria-label", `Attention of layer ${at}, head ${which}; arrow keys move from pair to pair`);
    this.pairs.replaceChildren(...this.head.pairs.map(([query, key, weight]) => {
      const cells = [query, key].map((token) => element("td", { textContent: `${token} ${quoted(this.model.tokens[token])}` }));
      const row = element("tr", {}, ...cells, element("td", { className: "number", textContent: weight }));
      row.addEventListener("pointerenter", () => point(this, query, key));
      return row;
    }));
    this.paint();
    this.point(this.query, this.key);
  }

  paint() {
    if (this.head) draw(this.canvas, this.layer, this.head, this.blocks);
  }

  /* Say what a query gives a key, by the numbers of their tokens. */
  point(query, key) {
    if (!this.head) return;
    Object.assign(this, { query, key });
    const size = this.model.block, row = Math.floor(query / size), column = Math.floor(key / size);
    const { step, weight } = unpacked(this.layer, this.head), share = 100 / this.blocks, x = weight(row, column);
    this.cursor.hidden = false;
    Object.assign(this.cursor.style, { left: `${column * share}%`, top: `${row * share}%`, width: `${share}%`, height: `${share}%` });
    this.readout.replaceChildren(element("p", { textContent: this.said(row, column, x) }), this.text("Query", query, row), this.text("Key", key, column));
    this.spans.forEach((span, at) => {
      const strength = step(row, Math.floor(at / size));
      const alpha = strength === null ? 0 : Math.round((60 * Math.abs(strength)) / 127);
      span.style.background = alpha ? `color-mix(in srgb, ${strength < 0 ? "red" : "var(--mark)"} ${alpha}%, transparent)` : "";
      span.style.opacity = strength === null ? 0.45 : 1;
      span.classList.toggle("query", Math.floor(at / size) === row);
    });
  }

  said(row, column, x) {
    const size = this.model.block, last = (block) => Math.min(this.length, (block + 1) * size) - 1;
    if (size === 1) {
      if (x === null) return `Query ${row} cannot see key ${column}, which comes later.`;
      const exact = this.head.pairs.find(([query, key]) => query === row && key === column);
      return `Query ${row} gives key ${column} the weight ${exact ? exact[2] : "~" + weighed(x)}; distance ${Math.abs(row - column)}.`;
    }
    const where = `queries ${row * size} to ${last(row)}, keys ${column * size} to ${last(column)}`;
    if (x === null) return `Hidden: ${where}; these keys come later.`;
    const inside = this.head.pairs.filter(([query, key]) => Math.floor(query / size) === row && Math.floor(key / size) === column);
    const largest = inside.map(([query, key, weight]) => `${query} ${quoted(this.model.tokens[query])} to ${key} ${quoted(this.model.tokens[key])} ${weight}`);
    return `Weight ~${weighed(x)} in all, the mean over ${where}.` + (largest.length ? ` Largest: ${largest.join("; ")}.` : "");
  }

  /* The token in its context, or the tokens of its block. */
  text(name, token, block) {
    const tokens = this.model.tokens, size = this.model.block;
    const from = size === 1 ? token : block * size, to = size === 1 ? token + 1 : Math.min(this.length, (block + 1) * size);
    const join = (first, last) => tokens.slice(Math.max(0, first), last).join("").replaceAll("\n", "\u21b5");
    return element("p", {}, `${name}: \u2026${join(from - AROUND, from)}`, element("mark", { textContent: join(from, to) }), `${join(to, to + AROUND)}\u2026`);
  }

  numbers() {
    const heads = ["layer", "attention", "head", "distance", "entropy", "effective keys"].map((name) => element("th", { textContent: name, scope: "col" }));
    const body = element("tbody");
    this.model.layers.forEach((layer, at) => (layer.heads ?? []).forEach((head, which) => {
      const cells = [at, layer.mechanism, which, head.distance, head.entropy, head.keys];
      body.append(element("tr", {}, ...cells.map((cell) => element("td", { textContent: cell }))));
    }));
    return element("div", { className: "scroll" }, element("table", { className: "data" }, element("thead", {}, element("tr", {}, ...heads)), body));
  }

  listen() {
    const moved = (event) => {
      const box = this.canvas.getBoundingClientRect(), inside = (x) => Math.max(0, Math.min(this.blocks - 1, Math.floor(x * this.blocks)));
      const [row, column] = [inside((event.clientY - box.top) / box.height), inside((event.clientX - box.left) / box.width)];
      point(this, row * this.model.block, column * this.model.block);
    };
    this.canvas.addEventListener("pointermove", moved);
    this.canvas.addEventListener("pointerdown", moved);
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const to = (token, by) => Math.max(0, Math.min(this.length - 1, token + by * this.model.block));
      point(this, to(this.query, step[0]), to(this.key, step[1]));
    });
  }
}

const panels = models.map((model) => new Panel(model));
const alike = (one, other) => one.model.tokens.length === other.model.tokens.length && one.model.tokens.every((token, at) => token === other.model.tokens[at]);
const choose = (layer, head) => panels.forEach((panel) => panel.choose(layer, head));
const point = (from, query, key) => panels.forEach((panel) => (panel === from || alike(panel, from)) && panel.point(query, key));
const shade = document.getElementById("shade");
document.getElementById("models").append(...panels.map((panel) => panel.root));
const repaint = () => panels.forEach((panel) => { panel.shade(shade.value); panel.paint(); });
shade.addEventListener("change", repaint);
dark.addEventListener("change", repaint);
repaint();
panels.forEach((panel) => {
  if (panel.first < 0) return;
  panel.choose(panel.first, 0);
  panel.point(panel.length - 1, panel.head.pairs.length ? panel.head.pairs[0][1] : 0);
});
