// The player: shows a scene (pagedlab/scenes) forwards and backwards, and asks predictions about it.
//
// One ES module, no build step, no network. It runs as an anywidget in a live notebook, and in the page that
// pagedlab.widgets.export_html writes. All text from a trace goes through textContent: it is never markup.

const SVG = "http://www.w3.org/2000/svg";
const MOVE_MS = 350;
const KEYFRAME_EVERY = 32;
const SPEEDS = [0.5, 1, 2, 4];
const LAYERS = 3;

// Okabe and Ito's colours (without black); the pattern goes round faster, so that 35 requests differ.
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
const PATTERNS = ["plain", "hatched", "dotted", "crossed", "striped"];

export function colourOf(owner) {
  return COLOURS[owner % COLOURS.length];
}

export function patternOf(owner) {
  return PATTERNS[owner % PATTERNS.length];
}

// --- scene data ------------------------------------------------------------------------------------------

// Frames are stored as differences; a Timeline gives the whole stage of any of them.
export class Timeline {
  constructor(data) {
    if (data?.format !== "pagedlab-scene" || data.version !== 1) {
      throw new Error("This is not a pagedlab scene that the player can read.");
    }
    this.data = data;
    this.length = data.frames.length;
    this.cells = data.grid ? new Cells(data) : null;
    this.keyframes = new Map([[-1, new Map()]]);
    this.order = new Map(); // key -> place among all keys, the same whichever way a frame is reached
    for (const frame of data.frames) {
      for (const item of frame.set ?? []) if (!this.order.has(item[0])) this.order.set(item[0], this.order.size);
    }
  }

  frame(index) {
    return this.data.frames[index];
  }

  // The actors of a frame: key -> {key, body, x, y, origin}.
  stage(index) {
    let start = index;
    while (!this.keyframes.has(start)) start -= 1;
    const stage = new Map(this.keyframes.get(start));
    for (let at = start + 1; at <= index; at += 1) {
      const frame = this.data.frames[at];
      for (const key of frame.drop ?? []) stage.delete(key);
      for (const [key, body, x, y, ox, oy] of frame.set ?? []) {
        stage.set(key, { key, body, x, y, origin: ox === undefined ? null : [ox, oy] });
      }
      if (at % KEYFRAME_EVERY === 0 || at === index) this.keyframes.set(at, new Map(stage));
    }
    if (this.keyframes.size > 64) {
      for (const at of this.keyframes.keys()) if (at !== -1 && at % KEYFRAME_EVERY !== 0) this.keyframes.delete(at);
    }
    return stage;
  }

  // The next frame after `index` that shows an event of this kind, or -1.
  nextOf(kind, index) {
    for (let at = index + 1; at < this.length; at += 1) if (this.data.frames[at].event === kind) return at;
    return -1;
  }

  // The frames in which something happens to an actor: it comes, changes, moves, is ringed, or goes.
  historyOf(key) {
    if (this.cells && this.cells.numberOf(key) >= 0) return this.cells.historyOf(this.cells.numberOf(key));
    const happens = ({ set, drop, focus }) =>
      set?.some((item) => item[0] === key) || drop?.includes(key) || focus?.includes(key);
    return this.data.frames.flatMap((frame, at) => (happens(frame) ? [at] : []));
  }

  // Frames by beat, in order of first appearance: [[beat, first frame], ...].
  beats() {
    const first = new Map();
    this.data.frames.forEach((frame, at) => {
      if (frame.beat && !first.has(frame.beat)) first.set(frame.beat, at);
    });
    return [...first];
  }
}

// How long a caption stays when playing, in milliseconds at speed 1.
export function readingTime(frame) {
  const words = `${frame.change} ${frame.detail ?? ""}`.length;
  return Math.min(7000, 1300 + 26 * words);
}

// Where an arrow's curve goes: {path, head}, both SVG path data.
export function arrowPath([x1, y1, x2, y2, bend]) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  let nx = (y2 - y1) / length;
  let ny = (x1 - x2) / length;
  if (nx < -1e-9 || (Math.abs(nx) <= 1e-9 && ny > 0)) [nx, ny] = [-nx, -ny];
  const cx = (x1 + x2) / 2 + 2 * bend * nx;
  const cy = (y1 + y2) / 2 + 2 * bend * ny;
  const tx = x2 - cx;
  const ty = y2 - cy;
  const t = Math.hypot(tx, ty) || 1;
  const [ux, uy] = [tx / t, ty / t];
  const [bx, by] = [x2 - 10 * ux, y2 - 10 * uy];
  const round = (value) => Math.round(value * 100) / 100;
  const point = (x, y) => `${round(x)} ${round(y)}`;
  return {
    path: `M${point(x1, y1)}Q${point(cx, cy)} ${point(bx, by)}`,
    head: `M${point(x2, y2)}L${point(bx - 6 * uy, by + 6 * ux)}L${point(bx + 6 * uy, by - 6 * ux)}Z`,
  };
}

const KEYWORDS = new Set(
  ("and as assert break case class continue def del elif else except finally for from if import in is lambda match " +
    "None not or pass raise return self True False try while with yield").split(" "),
);

// A line of Python in pieces [kind, text]; `inside` is the triple quote that an earlier line left open.
export function highlight(line, inside = "") {
  const pieces = [];
  let rest = line;
  if (inside) {
    const end = rest.indexOf(inside);
    if (end < 0) return { pieces: [["string", rest]], inside };
    pieces.push(["string", rest.slice(0, end + 3)]);
    rest = rest.slice(end + 3);
  }
  const pattern = /("""|''')|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(#.*$)|([A-Za-z_]\w*)|([^A-Za-z_"'#]+|["'])/g;
  for (let match = pattern.exec(rest); match; match = pattern.exec(rest)) {
    if (match[1]) {
      const end = rest.indexOf(match[1], match.index + 3);
      if (end < 0) {
        pieces.push(["string", rest.slice(match.index)]);
        return { pieces, inside: match[1] };
      }
      pieces.push(["string", rest.slice(match.index, end + 3)]);
      pattern.lastIndex = end + 3;
    } else if (match[2]) pieces.push(["string", match[2]]);
    else if (match[3]) pieces.push(["comment", match[3]]);
    else if (match[4]) pieces.push([KEYWORDS.has(match[4]) ? "keyword" : "", match[4]]);
    else pieces.push(["", match[5]]);
  }
  return { pieces, inside: "" };
}

// The lines of a function as the pane shows them: [{at, text, hidden}]. Of a docstring only the first line is shown,
// `hidden` says how many are not; `at` is a line's place in the whole.
export function folded(lines) {
  const shown = lines.map((text, at) => ({ at, text, hidden: 0 }));
  const opens = docstringAt(lines);
  if (opens < 0) return shown;
  const [, before, quote, first] = lines[opens].match(DOCSTRING);
  const closes = lines.findIndex((text, at) => at > opens && text.includes(quote));
  if (first.includes(quote) || closes < 0) return shown;
  const text = `${before}${quote}${first.trim() || lines[opens + 1].trim()}\u00a0…${quote}`;
  return [...shown.slice(0, opens), { at: opens, text, hidden: closes - opens }, ...shown.slice(closes + 1)];
}

const DOCSTRING = /^(\s*[rRuU]?)("""|''')(.*)$/;

// Where the docstring of a function begins: right behind its signature. -1 if it has none.
function docstringAt(lines) {
  let depth = 0;
  const start = lines.findIndex((text) => /^\s*(async\s+)?def\b/.test(text));
  for (let at = Math.max(0, start); start >= 0 && at < lines.length - 1; at += 1) {
    const code = lines[at].replace(/\s*#.*$/, "");
    depth += (code.match(/[([{]/g) ?? []).length - (code.match(/[)\]}]/g) ?? []).length;
    if (depth === 0 && code.trimEnd().endsWith(":")) return DOCSTRING.test(lines[at + 1]) ? at + 1 : -1;
  }
  return -1;
}

// --- what objects are ------------------------------------------------------------------------------------

// What two scenes can have in common, by the fact that names it, the most telling first.
const THINGS = ["request", "block", "row"];

// The things that an object with these facts is of: [{kind, value}].
export function thingsOf(facts) {
  return THINGS.filter((kind) => kind in facts).map((kind) => ({ kind, value: String(facts[kind]) }));
}

// Whether an object with these facts is of a thing: is it, is held by it, or holds it.
export function isOf(facts, { kind, value }) {
  if (kind in facts) return String(facts[kind]) === value;
  if (kind === "request") return facts.holders > 0 && facts.owner === value;
  return kind === "block" && "blocks" in facts && String(facts.blocks).split(" ").includes(value);
}

// What the first part of an actor's key says that it is, where that is not a word of its own.
const KINDS = {
  bar: "budget", cell: "tokens of a step", chip: "request", device: "row on the device", entry: "table entry",
  map: "place of a request", name: "request", new: "sampled token", seg: "share of the budget", sent: "entry being sent",
  tok: "token", track: "row",
};

// What an actor is called: its kind, then its tooltip, else what else its key says.
export function calledBy(key, [, , , , parts]) {
  const [prefix, ...rest] = key.split(":");
  const kind = KINDS[prefix] ?? prefix.replaceAll("_", " ");
  const title = parts.map((part) => part[8]).find(Boolean) ?? rest.join(" ");
  return title.startsWith(kind) || !title ? title || kind : `${kind} · ${title}`;
}

// A text that is read out or stands in a list: of a name without end only the beginning.
export function brief(text, most = 80) {
  const signs = [...text.slice(0, 2 * most)];
  return text.length > most ? `${signs.slice(0, most - 1).join("")}…` : text;
}

// --- what the players of a page share --------------------------------------------------------------------

const PAGE = Symbol.for("pagedlab.page");

// The players of a document: one selection for all, and one cursor for those of one trace. Each widget runs a copy of
// this module, so the page hangs on the document. It does not keep a player alive that is gone without a word.
export class Page {
  static of(document) {
    return (document[PAGE] ??= new Page());
  }

  constructor() {
    this.references = new Set();
    this.thing = null; // what is selected: {kind, value, traces}
  }

  get players() {
    const players = [];
    for (const reference of this.references) {
      const player = reference.deref();
      if (player) players.push(player);
      else this.references.delete(reference);
    }
    return players;
  }

  join(player) {
    this.references.add(new WeakRef(player));
    for (const each of this.players) each.meet();
    player.light(this.thing);
  }

  leave(player) {
    for (const reference of this.references) if (reference.deref() === player) this.references.delete(reference);
    for (const each of this.players) each.meet();
  }

  select(thing, by) {
    this.thing = thing;
    for (const player of this.players) player.light(thing, by);
  }

  lead(by, position) {
    for (const player of this.players) if (player !== by) player.follow(position);
  }

  // The other players that show a trace which this one shows too.
  kinOf(player) {
    return this.players.filter((other) => other !== player && other.traces.some((trace) => player.traces.includes(trace)));
  }
}

// How far each trace has come at each frame: by it, scenes of one trace find each other's moments.
export class Course {
  constructor({ traces = [], frames }) {
    this.traces = traces;
    this.records = traces.map((_, of) => {
      let last = -1;
      return frames.map(({ record = -1, trace = 0 }) => {
        if (trace === of) last = Math.max(last, record);
        return last;
      });
    });
    this.frames = frames;
    this.ids = JSON.stringify([traces, frames.map(({ id, record }) => [id, record])]);
  }

  // Where a frame is, for `nearest` of another scene.
  at(index) {
    const of = this.frames[index].trace ?? 0;
    const others = this.traces.map((trace, at) => [trace, this.records[at][index]]);
    return { ids: this.ids, index, records: [[this.traces[of], this.records[of]?.[index]], ...others] };
  }

  // The frame that is nearest to where another scene is, at or before it; the first if all come later; -1 if the two
  // have no trace in common.
  nearest({ ids, index, records }) {
    if (ids === this.ids) return index;
    const found = records.find(([trace]) => this.traces.includes(trace));
    if (!found) return -1;
    const own = this.records[this.traces.indexOf(found[0])];
    return Math.max(0, own.findLastIndex((record) => record <= found[1]));
  }
}

// A range of frames that plays over and over. Both ends are in it, and it has two frames at least.
export class Loop {
  constructor(last) {
    this.last = last;
    this.clear();
  }

  get isOn() {
    return this.start !== null;
  }

  clear() {
    this.start = null;
    this.end = null;
  }

  // Begin it here; it ends where it ended, or with the last frame. Tells whether that could be done.
  from(index) {
    if (index >= this.last) return false;
    if (!(this.end > index)) this.end = this.last;
    this.start = index;
    return true;
  }

  // End it here; it begins where it began, or with the first frame. Tells whether that could be done.
  to(index) {
    if (index <= 0) return false;
    if (!this.isOn || this.start >= index) this.start = 0;
    this.end = index;
    return true;
  }

  // The frame to play after this one; -1 where playing ends.
  after(index) {
    if (!this.isOn) return index < this.last ? index + 1 : -1;
    return index >= this.start && index < this.end ? index + 1 : this.start;
  }
}

// --- small DOM makers ------------------------------------------------------------------------------------

function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const ICONS = {
  first: "M5 5h2.5v14H5zM13.5 5v14L7.5 12zM20 5v14l-6.5-7z",
  back: "M6 5h2.5v14H6zM18.5 5v14L8.5 12z",
  play: "M7 4.5v15l12.5-7.5z",
  pause: "M6.5 5h4v14h-4zM13.5 5h4v14h-4z",
  next: "M15.5 5H18v14h-2.5zM5.5 5v14l10-7z",
  last: "M16.500 5H19v14h-2.500zM10.500 5v14l6-7zM4 5v14l6.500-7z",
};

const LINE_ICONS = {
  look: "M10.500 4.500a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15 15l5 5",
  link: "M9.500 14.500l5-5M11 7.500l2-2a3.900 3.900 0 0 1 5.500 5.500l-2 2M13 16.500l-2 2A3.900 3.900 0 0 1 5.500 13l2-2",
  save: "M12 4v10.500M7.500 10.500l4.500 4.500 4.500-4.500M5 19.500h14",
  close: "M6.500 6.500l11 11M17.500 6.500l-11 11",
};

function icon(name) {
  const isLine = name in LINE_ICONS;
  const path = svg("path", { d: isLine ? LINE_ICONS[name] : ICONS[name] });
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: isLine ? "pl-icon is-line" : "pl-icon" }, path);
}

let instances = 0;

function uniqueId() {
  instances += 1;
  return `pl${instances}-${Math.random().toString(36).slice(2, 8)}`;
}

// --- the stage -------------------------------------------------------------------------------------------

class Stage {
  constructor(timeline, uid) {
    const { width, height } = timeline.data;
    this.timeline = timeline;
    this.uid = uid;
    this.actors = new Map(); // key -> {node, body, x, y}
    this.leaving = new Map(); // key -> timer
    this.defs = svg("defs");
    this.known = new Set();
    this.isLit = () => false;
    this.grid = null; // a GridView, for a scene with a grid
    this.layers = Array.from({ length: LAYERS }, (_, at) => svg("g", { "data-layer": at }));
    this.arrows = svg("g", { "aria-hidden": "true" });
    this.node = svg(
      "svg",
      { class: "pl-stage", viewBox: `0 0 ${width} ${height}`, role: "img", "data-testid": "stage" },
      this.defs, ...this.layers, this.arrows,
    );
    this.node.style.minWidth = `${width}px`;
    this.node.style.setProperty("--pl-stage-width", `${width}px`);
  }

  show(index, animate) {
    const wanted = this.timeline.stage(index);
    const frame = this.timeline.frame(index);
    for (const key of [...this.actors.keys()]) if (!wanted.has(key)) this.remove(key, animate);
    const away = [...wanted.values()].filter((item) => !this.place(item, animate));
    if (away.length) this.node.getBoundingClientRect(); // so that their ways are seen
    for (const { key, x, y } of away) this.move(this.actors.get(key), x, y);
    const focus = new Set(frame.focus ?? []);
    for (const [key, actor] of this.actors) {
      this.outline(actor, "ring", 2, focus.has(key));
      this.glow(key, actor);
    }
    this.arrows.replaceChildren(...(frame.arrows ?? []).map((arrow) => this.arrow(arrow)));
  }

  // Tells whether the actor is where it belongs: one that comes from elsewhere still has its way to go.
  place(item, animate) {
    const body = this.timeline.data.bodies[item.body];
    let actor = this.actors.get(item.key);
    if (actor && actor.layer !== body[2]) {
      this.remove(item.key, false);
      actor = undefined;
    }
    const isNew = !actor;
    if (isNew) {
      this.forget(item.key);
      actor = { node: svg("g", { class: "pl-actor", "data-key": item.key }), body: -1, layer: body[2], facts: [] };
      this.actors.set(item.key, actor);
      this.insert(actor.node, item.key, body[2]);
      if (animate) {
        if (item.origin) this.move(actor, item.origin[0], item.origin[1]);
        else actor.node.classList.add("pl-enter");
      }
    }
    if (actor.body !== item.body) this.dress(actor, body, item.body);
    if (isNew && animate && item.origin) return false;
    if (actor.x !== item.x || actor.y !== item.y) this.move(actor, item.x, item.y);
    return true;
  }

  move(actor, x, y) {
    actor.x = x;
    actor.y = y;
    actor.node.style.transform = `translate(${x}px, ${y}px)`;
  }

  insert(node, key, layer) {
    const place = this.timeline.order.get(key);
    const group = this.layers[layer];
    let before = null;
    for (let other = group.lastElementChild; other; other = other.previousElementSibling) {
      if (this.timeline.order.get(other.dataset.key) < place) break;
      before = other;
    }
    group.insertBefore(node, before);
  }

  dress(actor, body, index) {
    const [w, h, , facts, parts] = body;
    actor.body = index;
    actor.size = [w, h];
    for (const name of actor.facts) if (!(name in facts)) delete actor.node.dataset[name];
    actor.facts = Object.keys(facts);
    actor.node.classList.toggle("is-object", actor.facts.length > 0);
    for (const [name, value] of Object.entries(facts)) actor.node.dataset[name] = value;
    actor.outlines = {};
    actor.node.replaceChildren(...parts.map((part) => this.part(part)));
  }

  // Draw a line around an actor, `out` units away from it, or take it away.
  outline(actor, kind, out, wanted) {
    const { outlines, node, size: [w, h] } = actor;
    if (wanted && !outlines[kind]) {
      outlines[kind] = svg("rect", { class: `pl-${kind}`, x: -out, y: -out, width: w + 2 * out, height: h + 2 * out, rx: 8 });
      node.append(outlines[kind]);
    } else if (!wanted && outlines[kind]) {
      outlines[kind].remove();
      delete outlines[kind];
    }
  }

  // Light every actor of which `isLit(facts, key)` holds, in this frame and in those to come. Tells how many it is now.
  light(isLit) {
    this.isLit = isLit;
    for (const [key, actor] of this.actors) this.glow(key, actor);
    return this.node.querySelectorAll(".pl-glow").length;
  }

  glow(key, actor) {
    this.outline(actor, "glow", 3.5, this.isLit(this.timeline.data.bodies[actor.body][3], key));
  }

  // What is known of an actor that is on the stage now; null of any other.
  factsOf(key) {
    const actor = this.actors.get(key);
    return actor ? this.timeline.data.bodies[actor.body][3] : (this.grid?.factsOf(key) ?? null);
  }

  // The actors on the stage that are something, in reading order: [[key, what it is called], ...].
  objects() {
    const found = [...this.actors].filter(([, actor]) => actor.facts.length);
    found.sort(([, a], [, b]) => a.y - b.y || a.x - b.x);
    const called = found.map(([key, actor]) => [key, calledBy(key, this.timeline.data.bodies[actor.body])]);
    return [...called, ...(this.grid?.objects() ?? [])];
  }

  remove(key, animate) {
    const { node } = this.actors.get(key);
    this.actors.delete(key);
    if (!animate) {
      node.remove();
      return;
    }
    this.forget(key);
    node.classList.add("pl-leave");
    const timer = setTimeout(() => this.forget(key), MOVE_MS);
    this.leaving.set(key, { node, timer });
  }

  forget(key) {
    const gone = this.leaving.get(key);
    if (!gone) return;
    clearTimeout(gone.timer);
    gone.node.remove();
    this.leaving.delete(key);
  }

  settle() {
    for (const key of [...this.leaving.keys()]) this.forget(key);
  }

  // The stage as it stands, drawn by attributes alone, at a place of another drawing.
  picture(x, y) {
    this.settle();
    const [defs, ...groups] = this.node.children;
    return svg("g", { transform: `translate(${x} ${y})` }, defs.cloneNode(true), ...groups.map(drawnCopy));
  }

  arrow(arrow) {
    const { path, head } = arrowPath(arrow);
    return svg("g", { class: "pl-arrow", "data-testid": "arrow" }, svg("path", { d: path }), svg("path", { d: head, class: "pl-head-of" }));
  }

  part([kind, x, y, w = 0, h = 0, text = "", style = "", owner = null, title = ""]) {
    const group = svg("g", { class: `pl-${kind} ${style.split(" ").filter(Boolean).map((name) => `is-${name}`).join(" ")}` });
    if (owner !== null) group.style.setProperty("--pl-owner", colourOf(owner));
    const words = (tx, ty, extra = "") => {
      const node = svg("text", { x: tx, y: ty, class: extra });
      node.textContent = text;
      return node;
    };
    if (kind === "cell") {
      group.append(svg("rect", { class: "pl-face", x, y, width: w, height: h, rx: 3 }));
      if (owner !== null) group.append(svg("rect", { class: "pl-strip", x: x + 0.5, y: y + h - 5.5, width: w - 1, height: 5, rx: 1.5, fill: this.fill(owner) }));
      group.append(words(x + w / 2, y + (h - 4) / 2));
    } else if (kind === "bar") {
      group.append(svg("rect", { class: "pl-face", x, y, width: w, height: h, rx: 2 }));
    } else if (kind === "chip") {
      group.append(svg("rect", { class: "pl-face", x, y, width: w, height: h, rx: 4 }), words(x + w / 2, y + h / 2));
    } else if (kind === "swatch") {
      group.append(svg("rect", { class: "pl-paint", x, y, width: w, height: h, rx: Math.min(4, w / 4), fill: this.fill(owner) }));
    } else if (kind === "box") {
      group.append(svg("rect", { class: "pl-face", x, y, width: w, height: h, rx: 7 }));
    } else if (kind === "line") {
      group.append(svg("path", { d: `M${x} ${y}l${w} ${h}` }));
    } else if (kind === "text") {
      group.append(words(x, y));
    }
    if (title) {
      const tip = svg("title");
      tip.textContent = title;
      group.append(tip);
    }
    return group;
  }

  // The paint of a request: its colour under its pattern.
  fill(owner) {
    const id = `${this.uid}-paint${owner}`;
    if (!this.known.has(owner)) {
      this.known.add(owner);
      this.defs.append(paint(id, colourOf(owner), patternOf(owner)));
    }
    return `url(#${id})`;
  }
}

function paint(id, colour, pattern) {
  const tile = svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("rect", { width: 6, height: 6, fill: colour }));
  const light = { stroke: "#fff", "stroke-opacity": 0.75, "stroke-width": 1.5, fill: "none" };
  if (pattern === "hatched") tile.append(svg("path", { d: "M-1.5 1.5l3-3M0 6l6-6M4.500 7.500l3-3", ...light }));
  if (pattern === "dotted") tile.append(svg("circle", { cx: 3, cy: 3, r: 1.4, fill: "#fff", "fill-opacity": 0.85 }));
  if (pattern === "crossed") tile.append(svg("path", { d: "M0 0l6 6M0 6l6-6", ...light, "stroke-width": 1 }));
  if (pattern === "striped") tile.append(svg("path", { d: "M3 0v6", ...light, "stroke-width": 2 }));
  return tile;
}

// Where a line that is too long is best broken: in code behind an opening bracket or "=" and before a dot; in a path.
const BREAKS = { code: /(?<=[([{=])(?![)\]}])|(?=\.)/g, path: /(?<=\/)/g };

function breakable(text, breaks) {
  const pieces = text.replace(breaks, "\0").split("\0");
  return pieces.flatMap((piece, at) => (at ? [html("wbr"), piece] : [piece]));
}

// --- grids: many cells on a canvas -----------------------------------------------------------------------

const CELL_KEY = "cell#"; // "cell#17" is to a cell what its key is to an actor
const FACE_PX = 18; // from this size on a cell shows its number, if that fits
const TILE_PX = 5; // from this size on a cell has an edge; below it is one colour
const PATTERN_PX = 11; // from this size on it bears its request's pattern
const SHAPE_PX = 12; // from this size on edges differ
const LARGEST_CELL_PX = 72;
const DIGIT_PX = 7.9; // of the monospace font at 13 px

// What cells look like in each frame, from the differences that a scene holds.
export class Cells {
  constructor({ grid, frames }) {
    this.grid = grid;
    this.looks = grid.looks.split(" ").map((told) => {
      const [kind, owner] = told.split(".").map(Number);
      const [style, mark, title] = grid.kinds[kind];
      return { style, owner: owner ?? null, mark, title };
    });
    this.frames = frames;
    this.runs = []; // by frame, as far as they have been read
    this.keyframes = new Map(); // each KEYFRAME_EVERY-th frame that was come by: index -> looks
    this.last = { index: -1, looks: null }; // where `at` has been
  }

  // Calls `each(look, first, last)` for the runs of cells that a frame changes.
  eachRun(index, each) {
    const runs = (this.runs[index] ??= this.readRuns(this.frames[index].cells));
    for (let at = 0; at < runs.length; at += 3) each(runs[at], runs[at + 1], runs[at + 2]);
  }

  // The runs that a frame's text tells, each as three numbers: look, first and last cell.
  readRuns(text = "") {
    const numbers = [];
    for (const part of text ? text.split(";") : []) {
      const [look, runs] = part.split(":");
      for (const run of runs.split(" ")) {
        const [first, last = first] = run.split("-");
        numbers.push(Number(look), Number(first), Number(last));
      }
    }
    return Uint32Array.from(numbers);
  }

  // The look of every cell in a frame: indices into `looks`. From frame to frame it costs what changes.
  at(index) {
    let start = index - (index % KEYFRAME_EVERY);
    while (start > 0 && !this.keyframes.has(start)) start -= KEYFRAME_EVERY;
    if (this.last.index >= start && this.last.index <= index) start = this.last.index;
    else this.last = { index: start, looks: this.keyframes.get(start) ?? this.first() };
    const looks = this.last.looks.slice();
    for (let at = start + 1; at <= index; at += 1) {
      this.eachRun(at, (look, first, last) => looks.fill(look, first, last + 1));
      if (at % KEYFRAME_EVERY === 0) this.keyframes.set(at, looks.slice());
    }
    this.last = { index, looks };
    return looks;
  }

  first() {
    const looks = new Uint32Array(this.grid.count);
    this.eachRun(0, (look, first, last) => looks.fill(look, first, last + 1));
    return looks;
  }

  // The cells that a frame changes. The first frame only sets the scene.
  changedIn(index) {
    const changed = [];
    if (index > 0) this.eachRun(index, (_, first, last) => { for (let cell = first; cell <= last; cell += 1) changed.push(cell); });
    return changed.sort((a, b) => a - b);
  }

  // The frames that change a cell.
  historyOf(cell) {
    const found = [];
    for (let at = 0; at < this.frames.length; at += 1) this.eachRun(at, (_, first, last) => first <= cell && cell <= last && found.push(at));
    return found;
  }

  // Which cell an object's key means; -1 if it means none.
  numberOf(key) {
    const cell = key?.startsWith(CELL_KEY) ? Number(key.slice(CELL_KEY.length)) : -1;
    return cell < this.grid.count ? cell : -1;
  }
}

// How to lay out `count` cells in a field of this width, no higher than `highest` if that can be: {columns, rows, size}.
// Sizes are in dots, the pixels of the screen.
export function layOut(count, width, highest, largest) {
  let size = Math.max(1, Math.min(largest, width));
  while (size > 1 && Math.ceil(count / Math.floor(width / size)) * size > highest) size -= 1;
  const columns = Math.max(1, Math.min(count, Math.floor(width / size)));
  return { columns, rows: Math.ceil(count / columns), size };
}

// A view of the cells: {size, x, y}, where the field's corner lies on them. This one keeps the dot at (px, py) where it is.
export function zoomed(view, size, px, py) {
  const scale = size / view.size;
  return { size, x: (view.x + px) * scale - px, y: (view.y + py) * scale - py };
}

// The same view, moved so that it shows nothing beyond the cells.
export function within(view, { columns, rows }, width, height) {
  const clamp = (value, most) => Math.round(Math.max(0, Math.min(value, most)));
  return { size: view.size, x: clamp(view.x, columns * view.size - width), y: clamp(view.y, rows * view.size - height) };
}

// The cell at a dot of the field; -1 if there is none.
export function cellAt(view, { columns, rows }, count, px, py) {
  const column = Math.floor((view.x + px) / view.size);
  const row = Math.floor((view.y + py) / view.size);
  const cell = row * columns + column;
  return column >= 0 && column < columns && row >= 0 && row < rows && cell < count ? cell : -1;
}

// Where a key takes the cursor; null if it is no such key. `page` is how many rows PageUp and PageDown go.
export function cursorAfter(key, ctrl, cell, count, columns, page) {
  const start = cell - (cell % columns);
  const steps = {
    ArrowLeft: cell - 1, ArrowRight: cell + 1, ArrowUp: cell - columns, ArrowDown: cell + columns,
    PageUp: cell - page * columns, PageDown: cell + page * columns,
    Home: ctrl ? 0 : start, End: ctrl ? count - 1 : Math.min(count, start + columns) - 1,
  };
  if (!(key in steps)) return null;
  const to = steps[key];
  if (key === "PageUp" && to < 0) return cell % columns;
  if (key === "PageDown" && to >= count) return Math.max(cell, cell + columns * Math.floor((count - 1 - cell) / columns));
  return to < 0 || to >= count ? cell : to;
}

// How a look is drawn on a square of `dots`. `paper` has the theme's colours, `ratio` is dots for a pixel; `px` is the
// size that it has to be told apart at.
function drawTile(pen, { style, owner }, dots, ratio, paper, px = dots / ratio) {
  const kinds = new Set(style.split(" "));
  if (px < TILE_PX) {
    pen.fillStyle = kinds.has("owned") ? paper.solid(owner) : paper.flat[style] ?? paper.flat.free;
    pen.fillRect(0, 0, dots, dots);
    return;
  }
  const gap = Math.max(1, Math.round(px >= 9 ? ratio : ratio / 2));
  const side = dots - gap;
  const line = Math.max(1, Math.round(ratio));
  const edge = (colour, dash = []) => {
    pen.strokeStyle = colour;
    pen.lineWidth = line;
    pen.setLineDash(dash.map((length) => length * ratio));
    pen.strokeRect(line / 2, line / 2, side - line, side - line);
    pen.setLineDash([]);
  };
  if (kinds.has("owned")) {
    const isFace = px >= FACE_PX;
    pen.fillStyle = isFace ? paper.face(owner) : colourPaint(owner, paper);
    pen.fillRect(0, 0, side, side);
    const top = isFace ? Math.round(side - 6 * ratio) : 0;
    if (isFace) {
      pen.fillStyle = colourPaint(owner, paper);
      pen.fillRect(0, top, side, side - top);
    }
    if (owner !== null && px >= PATTERN_PX) drawPattern(pen, patternOf(owner), top, side, ratio);
    edge(paper.edgeOf(owner));
    if (kinds.has("shared")) {
      // A second sheet behind: the corner is cut off.
      const corner = Math.round(side * (isFace ? 0.3 : 0.45));
      pen.fillStyle = paper.bg;
      triangle(pen, side - corner, 0, side, 0, side, corner);
      pen.fillStyle = paper.ink;
      triangle(pen, side - corner, 0, side - corner, corner, side, corner);
    }
  } else if (kinds.has("cached")) {
    pen.fillStyle = paper.flat[px < SHAPE_PX ? "cached" : "faint"];
    pen.fillRect(0, 0, side, side);
    if (px >= SHAPE_PX) edge(paper.edge2, [3, 2]);
  } else if (kinds.has("null")) {
    edge(paper.edge2, px >= SHAPE_PX ? [1.5, 1.5] : []);
    pen.strokeStyle = paper.edge2;
    pen.beginPath();
    pen.moveTo(line, line);
    pen.lineTo(side - line, side - line);
    pen.stroke();
  } else if (kinds.has("unknown")) {
    pen.fillStyle = paper.flat.unknown;
    pen.fillRect(0, 0, side, side);
    edge(paper.edge, [1.5, 1.5]);
  } else edge(paper.edge);
}

function colourPaint(owner, paper) {
  return owner === null ? paper.solid(null) : colourOf(owner);
}

function triangle(pen, ...points) {
  pen.beginPath();
  for (let at = 0; at < points.length; at += 2) pen.lineTo(points[at], points[at + 1]);
  pen.fill();
}

// The patterns of `paint`, for a canvas.
function drawPattern(pen, pattern, top, side, ratio) {
  if (pattern === "plain") return;
  const step = 6 * ratio;
  pen.save();
  pen.beginPath();
  pen.rect(0, top, side, side - top);
  pen.clip();
  pen.strokeStyle = pen.fillStyle = "rgba(255, 255, 255, 0.8)";
  pen.lineWidth = 1.5 * ratio;
  pen.beginPath();
  for (let at = -side; at < 2 * side; at += pattern === "hatched" ? step * 0.75 : step) {
    if (pattern === "hatched" || pattern === "crossed") {
      pen.moveTo(at, side);
      pen.lineTo(at + side, 0);
    }
    if (pattern === "crossed") {
      pen.moveTo(at, 0);
      pen.lineTo(at + side, side);
    }
    if (pattern === "striped") {
      pen.moveTo(at + step / 2, 0);
      pen.lineTo(at + step / 2, side);
    }
  }
  pen.stroke();
  if (pattern === "dotted") {
    for (let y = side - step / 2; y > top - step; y -= step) for (let x = step / 2; x < side + step; x += step) {
      pen.beginPath();
      pen.arc(x, y, 1.4 * ratio, 0, 7);
      pen.fill();
    }
  }
  pen.restore();
}

// The theme's colours and its font as a canvas knows them; a node in the page resolves them.
class Paper {
  constructor(node) {
    const resolve = (colour) => {
      node.style.color = colour;
      return getComputedStyle(node).color;
    };
    const mixed = (colour, share, ground = "var(--pl-bg)") => resolve(`color-mix(in srgb, ${colour} ${share}%, ${ground})`);
    const known = (make) => {
      const colours = new Map([null, ...COLOURS].map((colour) => [colour, make(colour)]));
      return (owner) => colours.get(owner === null ? null : colourOf(owner));
    };
    for (const name of ["bg", "fg2", "edge", "edge2", "accent"]) this[name] = resolve(`var(--pl-${name})`);
    this.ink = resolve("var(--pl-fg)");
    this.font = getComputedStyle(node).fontFamily;
    this.flat = { free: mixed("var(--pl-fg)", 9), cached: mixed("var(--pl-fg)", 24), faint: mixed("var(--pl-fg)", 14), null: this.ink, unknown: mixed("var(--pl-fg)", 5) };
    this.solid = known((colour) => (colour ? mixed(colour, 72, "var(--pl-fg)") : mixed("var(--pl-fg)", 66)));
    this.face = known((colour) => (colour ? mixed(colour, 28) : mixed("var(--pl-fg)", 24)));
    this.edgeOf = known((colour) => (colour ? mixed(colour, 60, "var(--pl-fg)") : this.ink));
  }
}

// A field of cells below the stage: zoom and pan, a cursor for the keyboard, a tip for the mouse, and what is chosen.
// `choose(key)` is called with the key of the cell that is clicked or entered.
class GridView {
  constructor(timeline, uid, choose) {
    this.cells = timeline.cells;
    this.requests = timeline.data.requests;
    this.styles = [...new Set(this.cells.looks.map(({ style }) => style))];
    this.styleOf = Uint8Array.from(this.cells.looks, ({ style }) => this.styles.indexOf(style));
    this.looks = new Uint32Array(this.cells.grid.count);
    this.changed = [];
    this.cursor = 0;
    this.chosen = -1;
    this.lit = null;
    this.tiles = new Map();
    this.abort = new AbortController();
    this.build(uid);
    this.listen(choose);
  }

  // --- its nodes

  build(uid) {
    const { noun, legend } = this.cells.grid;
    this.probe = html("span", { class: "pl-probe", "aria-hidden": "true" });
    this.canvas = html("canvas", { "aria-hidden": "true", "data-testid": "grid-canvas" });
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.cell = html("div", { role: "gridcell", id: `${uid}-cell`, "data-testid": "grid-cell" });
    this.row = html("div", { role: "row", class: "pl-unseen" }, this.cell);
    this.tip = html("div", { class: "pl-tip", "aria-hidden": "true", "data-testid": "grid-tip", hidden: true });
    this.field = html(
      "div", { class: "pl-field", role: "grid", tabindex: "0", "aria-activedescendant": this.cell.id, "aria-describedby": `${uid}-keys`, "data-testid": "grid" },
      this.canvas, this.row, this.tip, this.probe,
    );
    this.said = html("p", { class: "pl-cell-said", role: "status", "aria-live": "polite", "data-testid": "grid-said" });
    const tool = (action, label, key, sign) =>
      html("button", { type: "button", class: "pl-button", "data-grid": action, "aria-label": label, title: `${label} (${key})` }, sign);
    this.tools = { out: tool("out", "Zoom out", "−", "−"), in: tool("in", "Zoom in", "+", "+"), all: tool("all", `Show all ${noun}s`, "0", "all") };
    this.find = html("input", { type: "text", inputmode: "numeric", autocomplete: "off", class: "pl-number", "aria-label": `Go to ${noun} number`, placeholder: `0–${this.cells.grid.count - 1}`, "data-grid": "find" });
    this.samples = legend.map(([style, word]) => {
      const canvas = html("canvas", { width: 32, height: 32, "aria-hidden": "true" });
      return { look: { style, owner: null }, canvas, node: html("li", {}, canvas, word) };
    });
    const keys = html("span", { id: `${uid}-keys`, class: "pl-unseen" }, `Arrow keys move, Enter chooses a ${noun}, plus and minus zoom, 0 shows all.`);
    this.node = html(
      "div", { class: "pl-grid", "data-testid": "grid-view" },
      html(
        "div", { class: "pl-grid-bar" },
        html("ul", { class: "pl-legend", "aria-label": "Legend" }, ...this.samples.map(({ node }) => node)),
        html("div", { class: "pl-grid-tools", role: "group", "aria-label": "Zoom" }, html("label", { class: "pl-find" }, noun, this.find), ...Object.values(this.tools)),
      ),
      this.field, this.said, keys,
    );
  }

  listen(choose) {
    const { signal } = this.abort;
    this.choose = (cell) => {
      this.move(cell);
      choose(`${CELL_KEY}${cell}`);
    };
    this.observer = globalThis.ResizeObserver ? new ResizeObserver(() => this.fit()) : null;
    this.observer?.observe(this.field);
    // A new theme shows in the probe's colours, whoever has changed it; a printer's does not wait for a transition.
    this.probe.addEventListener("transitionrun", () => this.repaint(), { signal });
    globalThis.matchMedia?.("print").addEventListener("change", () => this.repaint(), { signal });
    this.node.addEventListener("click", (event) => {
      const action = event.target.closest("button[data-grid]")?.dataset.grid;
      if (action) this.zoom(action);
    }, { signal });
    this.find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.goTo(this.find.value);
    }, { signal });
    this.field.addEventListener("keydown", (event) => this.press(event), { signal });
    this.field.addEventListener("focus", () => this.render(), { signal });
    this.field.addEventListener("blur", () => this.render(), { signal });
    this.field.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? "in" : "out", this.dot(event));
    }, { signal, passive: false });
    this.listenToPointers(signal);
  }

  listenToPointers(signal) {
    let held = null; // where the pointer went down, and the view then
    this.field.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      held = { at: this.dot(event), view: this.view, pans: false };
      this.field.setPointerCapture(event.pointerId);
    }, { signal });
    this.field.addEventListener("pointermove", (event) => {
      const dot = this.dot(event);
      if (held) {
        const [dx, dy] = [held.at[0] - dot[0], held.at[1] - dot[1]];
        held.pans ||= Math.hypot(dx, dy) > 4 * this.ratio;
        if (held.pans) this.look({ ...held.view, x: held.view.x + dx, y: held.view.y + dy });
      }
      this.hover(held?.pans ? -1 : this.at(dot), dot);
    }, { signal });
    this.field.addEventListener("pointerup", (event) => {
      const cell = held && !held.pans ? this.at(this.dot(event)) : -1;
      held = null;
      if (cell >= 0) this.choose(cell);
    }, { signal });
    this.field.addEventListener("pointercancel", () => { held = null; }, { signal });
    this.field.addEventListener("pointerleave", () => this.hover(-1), { signal });
  }

  destroy() {
    this.abort.abort();
    this.observer?.disconnect();
    this.node.remove();
  }

  // --- what the player asks of it

  show(index) {
    const before = this.looks;
    this.looks = this.cells.at(index);
    this.changed = this.cells.changedIn(index);
    if (this.buffer) for (let cell = 0; cell < before.length; cell += 1) if (this.looks[cell] !== before[cell]) this.blit(cell);
    this.describe();
    this.render();
  }

  // Light the cells of a thing, in this frame and in those to come. Tells how many it is now.
  light(thing, key) {
    this.chosen = this.cells.numberOf(key);
    this.lit = thing;
    this.render();
    return this.litCells().length;
  }

  litCells() {
    if (this.lit?.kind === this.cells.grid.noun) {
      const cell = /^\d+$/.test(this.lit.value) ? Number(this.lit.value) : -1;
      return cell >= 0 && cell < this.looks.length ? [cell] : [];
    }
    const owner = this.lit?.kind === "request" ? this.requests.indexOf(this.lit.value) : -1;
    if (owner < 0) return this.chosen >= 0 ? [this.chosen] : [];
    const isLit = this.cells.looks.map((look) => look.owner === owner && look.style.startsWith("owned"));
    const cells = [];
    for (let cell = 0; cell < this.looks.length; cell += 1) if (isLit[this.looks[cell]]) cells.push(cell);
    return cells;
  }

  // What is known of a cell; null if the key is none.
  factsOf(key) {
    const cell = this.cells.numberOf(key);
    if (cell < 0) return null;
    const { style, owner } = this.lookOf(cell);
    return { [this.cells.grid.noun]: cell, state: style, owner: owner === null ? "" : this.requests[owner] };
  }

  // The objects for the player's list: of so many cells, only the one that is chosen.
  objects() {
    return this.chosen < 0 ? [] : [[`${CELL_KEY}${this.chosen}`, this.told(this.chosen)]];
  }

  // The field as it stands, for a drawing.
  picture() {
    return { url: this.canvas.toDataURL(), width: this.width / this.ratio, height: this.height / this.ratio };
  }

  // --- what there is to say

  lookOf(cell) {
    return this.cells.looks[this.looks[cell]];
  }

  told(cell) {
    const { owner, title } = this.lookOf(cell);
    const whose = owner === null ? "" : ` of ${brief(this.requests[owner], 60) || "“”"}`;
    return `${this.cells.grid.noun} ${cell}${whose}${title ? `: ${title}` : ""}`;
  }

  describe() {
    const { noun, count, legend } = this.cells.grid;
    const numbers = new Uint32Array(this.styles.length);
    for (const look of this.looks) numbers[this.styleOf[look]] += 1;
    const parts = legend.map(([kind, word]) => {
      const number = numbers.reduce((sum, each, at) => (`${this.styles[at]} `.startsWith(`${kind} `) ? sum + each : sum), 0);
      return number ? `${number.toLocaleString("en")} ${word}` : "";
    }).filter(Boolean);
    this.field.setAttribute("aria-label", `${count.toLocaleString("en")} ${noun}s: ${parts.join(", ")}`);
    this.describeCursor();
  }

  describeCursor() {
    const { columns = 1, rows = 1 } = this.layout ?? {};
    this.field.setAttribute("aria-rowcount", rows);
    this.field.setAttribute("aria-colcount", columns);
    this.row.setAttribute("aria-rowindex", Math.floor(this.cursor / columns) + 1);
    this.cell.setAttribute("aria-colindex", (this.cursor % columns) + 1);
    this.cell.setAttribute("aria-selected", String(this.cursor === this.chosen));
    this.cell.textContent = this.told(this.cursor);
  }

  // --- the keyboard

  press(event) {
    const { count } = this.cells.grid;
    if (event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.height / this.view.size) - 1);
    const to = cursorAfter(event.key, event.ctrlKey, this.cursor, count, this.layout.columns, page);
    const zoom = event.ctrlKey ? null : { "+": "in", "=": "in", "-": "out", "−": "out", 0: "all" }[event.key];
    if (to !== null) this.move(to, true);
    else if (zoom) this.zoom(zoom);
    else if ((event.key === "Enter" || event.key === " ") && !event.ctrlKey) this.choose(this.cursor);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the player has other plans with it
  }

  move(cell, aloud = false) {
    this.cursor = cell;
    this.describeCursor();
    if (aloud) this.said.textContent = this.told(cell);
    this.reveal(cell);
  }

  goTo(text) {
    const { noun, count } = this.cells.grid;
    const cell = /^\d+$/.test(text.trim()) ? Number(text) : -1;
    if (cell < 0 || cell >= count) this.said.textContent = `There is no ${noun} ${text.trim() || "without a number"}: they go from 0 to ${(count - 1).toLocaleString("en")}.`;
    else {
      if (this.view && this.view.size < this.faceSize) this.look(this.around(cell, this.faceSize));
      this.move(cell, true);
      this.field.focus();
    }
  }

  // --- zoom and pan

  get faceSize() {
    return Math.round(this.ratio * Math.max(FACE_PX, DIGIT_PX * String(this.cells.grid.count - 1).length + 4));
  }

  // Lay the cells out anew: the field has another width, or the screen another ratio.
  fit() {
    const ratio = globalThis.devicePixelRatio || 1;
    const width = Math.floor(this.field.clientWidth * ratio);
    if (!width || (width === this.width && ratio === this.ratio)) return;
    const { count } = this.cells.grid;
    const wasZoomed = this.view && this.view.size > this.layout.size;
    this.ratio = ratio;
    this.layout = layOut(count, width, Math.round((count > 32_768 ? 620 : 420) * ratio), Math.round(40 * ratio));
    this.width = this.canvas.width = width;
    this.height = this.canvas.height = this.layout.rows * this.layout.size;
    this.canvas.style.width = `${width / ratio}px`;
    this.canvas.style.height = `${this.height / ratio}px`;
    this.view = wasZoomed ? within(this.around(this.cursor, Math.max(this.view.size, this.layout.size)), this.layout, width, this.height) : { size: this.layout.size, x: 0, y: 0 };
    this.describeCursor();
    this.repaint();
  }

  // The view of a size that has a cell in its middle.
  around(cell, size) {
    const [x, y] = [(cell % this.layout.columns) + 0.5, Math.floor(cell / this.layout.columns) + 0.5];
    return { size, x: x * size - this.width / 2, y: y * size - this.height / 2 };
  }

  zoom(way, dot = null) {
    if (!this.view) return;
    const { size } = this.view;
    const most = Math.max(Math.round(LARGEST_CELL_PX * this.ratio), this.layout.size);
    const to = { in: Math.min(most, Math.max(size + 1, Math.round(size * 1.4))), out: Math.max(this.layout.size, Math.min(size - 1, Math.round(size / 1.4))), all: this.layout.size }[way];
    const [px, py] = dot ?? this.middleOf(this.cursor);
    this.look(zoomed(this.view, to, px, py));
    if (!dot && way === "in") this.reveal(this.cursor);
  }

  // Look at the cells from there. Tells whether that is another view.
  look(view) {
    const to = within(view, this.layout, this.width, this.height);
    if (to.size === this.view.size && to.x === this.view.x && to.y === this.view.y) return false;
    if (to.size !== this.view.size) this.tiles.clear();
    this.view = to;
    this.paint();
    return true;
  }

  // Pan so that a cell is in the field.
  reveal(cell) {
    if (!this.view) return;
    const { size, x, y } = this.view;
    const [left, top] = [(cell % this.layout.columns) * size, Math.floor(cell / this.layout.columns) * size];
    const into = (from, start, room) => Math.max(start + size - room, Math.min(from, start));
    if (!this.look({ size, x: into(x, left, this.width), y: into(y, top, this.height) })) this.render();
  }

  middleOf(cell) {
    const { size, x, y } = this.view;
    return [((cell % this.layout.columns) + 0.5) * size - x, (Math.floor(cell / this.layout.columns) + 0.5) * size - y];
  }

  // Where a pointer is, in dots of the field.
  dot(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio];
  }

  at([px, py]) {
    return px >= 0 && py >= 0 && px < this.width && py < this.height ? cellAt(this.view, this.layout, this.cells.grid.count, px, py) : -1;
  }

  hover(cell, [px, py] = [0, 0]) {
    this.tip.hidden = cell < 0;
    if (cell < 0) return;
    this.tip.textContent = this.told(cell);
    const [x, y] = [px / this.ratio, py / this.ratio];
    const room = this.field.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(2, Math.min(x + 12, room))}px`;
    this.tip.style.top = `${y > this.height / this.ratio - 44 ? y - this.tip.offsetHeight - 8 : y + 16}px`;
  }

  // --- drawing: tiles of looks into a buffer, the buffer onto the canvas, numbers and rings on top

  repaint() {
    this.tiles.clear();
    this.paper = new Paper(this.canvas);
    if (!this.view) return;
    this.buffer = this.pen.createImageData(this.width, this.height);
    this.dots = new Uint32Array(this.buffer.data.buffer);
    this.paint();
  }

  paint() {
    if (!this.tiles.size) this.drawLegend();
    this.dots.fill(this.tileOf(-1)[0]);
    for (const cell of this.visible()) this.blit(cell);
    this.render();
  }

  drawLegend() {
    const px = Math.min(16, this.view.size / this.ratio);
    for (const { look, canvas, node } of this.samples) {
      const pen = canvas.getContext("2d");
      pen.clearRect(0, 0, canvas.width, canvas.height);
      drawTile(pen, look, canvas.width, 2, this.paper, px);
      node.hidden = px < TILE_PX && look.style.endsWith(" shared"); // so small, it looks like the others
    }
  }

  // The cells of which something is in the field.
  *visible() {
    const { size, x, y } = this.view;
    const { columns, rows } = this.layout;
    const lastRow = Math.min(rows - 1, Math.floor((y + this.height - 1) / size));
    const [first, last] = [Math.floor(x / size), Math.min(columns - 1, Math.floor((x + this.width - 1) / size))];
    for (let row = Math.floor(y / size); row <= lastRow; row += 1) {
      for (let column = first; column <= last; column += 1) {
        const cell = row * columns + column;
        if (cell < this.looks.length) yield cell;
      }
    }
  }

  // The dots of a look at this size; of -1 those of the bare paper.
  tileOf(look) {
    if (!this.tiles.has(look)) {
      const { size } = this.view;
      this.scratch ??= html("canvas").getContext("2d", { willReadFrequently: true });
      if (this.scratch.canvas.width !== size) this.scratch.canvas.width = this.scratch.canvas.height = size;
      this.scratch.fillStyle = this.paper.bg;
      this.scratch.fillRect(0, 0, size, size);
      if (look >= 0) drawTile(this.scratch, this.cells.looks[look], size, this.ratio, this.paper);
      this.tiles.set(look, new Uint32Array(this.scratch.getImageData(0, 0, size, size).data.buffer));
    }
    return this.tiles.get(look);
  }

  blit(cell) {
    const { size, x, y } = this.view;
    const tile = this.tileOf(this.looks[cell]);
    const left = (cell % this.layout.columns) * size - x;
    const top = Math.floor(cell / this.layout.columns) * size - y;
    const from = Math.max(0, -left);
    const to = Math.min(size, this.width - left);
    const end = Math.min(size, this.height - top);
    for (let line = Math.max(0, -top); line < end; line += 1) {
      const start = (top + line) * this.width + left;
      for (let dot = from; dot < to; dot += 1) this.dots[start + dot] = tile[line * size + dot]; // so few that it is quicker than `set`
    }
  }

  render() {
    if (!this.buffer) return;
    this.pen.putImageData(this.buffer, 0, 0);
    if (this.view.size >= this.faceSize) for (const cell of this.visible()) this.write(cell);
    this.ringAll(this.changed, this.paper.accent, 2, 0);
    this.ringAll(this.litCells(), this.paper.ink, 1.75, 1);
    if (document.activeElement === this.field) this.ring(this.cursor, this.cursor, this.paper.accent, 3, 2);
    const isWhole = this.view.size === this.layout.size;
    for (const way of ["out", "all"]) this.tools[way].setAttribute("aria-disabled", String(isWhole));
    this.field.classList.toggle("is-zoomed", !isWhole);
  }

  write(cell) {
    const { style, mark } = this.lookOf(cell);
    const { size } = this.view;
    const [px, py] = this.middleOf(cell);
    if (px < -size || py < -size || px > this.width + size || py > this.height + size) return;
    const isTall = size >= 36 * this.ratio && mark;
    this.pen.font = `${style.startsWith("owned") ? "600 " : ""}${Math.round(13 * this.ratio)}px ${this.paper.font}`;
    this.pen.textAlign = "center";
    this.pen.textBaseline = "middle";
    this.pen.fillStyle = style.startsWith("owned") ? this.paper.ink : this.paper.fg2;
    const lift = (style.startsWith("owned") ? 3 : 0) * this.ratio + (isTall ? 7 * this.ratio : 0);
    this.pen.fillText(String(cell), px, py - lift);
    if (isTall) this.pen.fillText(mark, px, py - lift + 15 * this.ratio);
  }

  // Rings around cells, in ascending order. Neighbours of which little can be seen share one.
  ringAll(cells, colour, width, out) {
    const isTiny = this.view.size < TILE_PX * this.ratio;
    for (let at = 0; at < cells.length; at += 1) {
      const first = cells[at];
      const goesOn = () => cells[at + 1] === cells[at] + 1 && cells[at + 1] % this.layout.columns;
      while (isTiny && goesOn()) at += 1;
      this.ring(first, cells[at], colour, width, out);
    }
  }

  // A ring around cells of a row, `out` pixels away from them. That of a small cell is larger than the cell.
  ring(first, last, colour, width, out) {
    const [left, y] = this.middleOf(first);
    const [right] = this.middleOf(last);
    const half = Math.max(this.view.size / 2 + (out - 0.5) * this.ratio, (2.5 + out) * this.ratio);
    if (right < -half || y < -half || left > this.width + half || y > this.height + half) return;
    const line = (this.view.size < TILE_PX * this.ratio ? Math.min(width, 1.5) : width) * this.ratio;
    // On paper of its own, since the cells around it may have its colour.
    for (const [style, wide] of [[this.paper.bg, line + 2 * this.ratio], [colour, line]]) {
      this.pen.strokeStyle = style;
      this.pen.lineWidth = wide;
      this.pen.strokeRect(left - half, y - half, right - left + 2 * half, 2 * half);
    }
  }
}

// --- the source pane -------------------------------------------------------------------------------------

class SourcePane {
  constructor(timeline) {
    this.timeline = timeline;
    this.shown = null;
    this.now = undefined; // the lit line
    this.due = null; // the picture before which it is brought into view
    this.lines = new Map(); // place of a line in its function -> its node
    this.written = new Map(); // the same for each function that was shown
    this.code = html("div", { class: "pl-code", tabindex: "0", role: "region", "aria-label": "Source code", "data-testid": "source" });
    this.where = html("div", { class: "pl-where", "data-testid": "source-file" });
    this.theirs = html("div", { class: "pl-where", "data-testid": "source-vllm" });
    this.node = html("aside", { class: "pl-source", "aria-label": "The source line that runs" }, this.code, html("div", { class: "pl-wheres" }, this.where, this.theirs));
  }

  show(frame) {
    const [key, line] = frame.source ?? [null, 0];
    const source = key === null ? undefined : this.timeline.data.sources[key];
    this.now?.classList.remove("is-now");
    this.now = undefined;
    if (!source) {
      // Keep the last text in view, no line of it lit: nothing of it runs now.
      if (!this.shown) this.where.textContent = "Press Next: the line that runs will be lit here.";
      return;
    }
    if (this.shown !== key) this.write(key, source);
    this.now = this.lines.get(line - source.first_line);
    this.now?.classList.add("is-now");
    this.where.replaceChildren(...breakable(`${source.file} · line ${line}`, BREAKS.path));
    this.theirs.replaceChildren(...(source.vllm ? breakable(`vLLM 0.25.1: ${source.vllm.join(", ")}`, BREAKS.path) : []));
    // To measure is to lay the page out. That is done once a picture, however many players have stepped for it.
    this.due ??= requestAnimationFrame(() => {
      this.due = null;
      this.scroll();
    });
  }

  // Bring the lit line to the middle of the pane; of a line that is wrapped higher than the pane, the beginning.
  scroll() {
    if (!this.now) return;
    this.code.scrollTop = this.now.offsetTop - Math.max(0, this.code.clientHeight - this.now.offsetHeight) / 2;
  }

  write(key, source) {
    this.shown = key;
    if (!this.written.has(key)) this.written.set(key, this.compose(source));
    this.lines = this.written.get(key);
    this.code.replaceChildren(...this.lines.values());
  }

  compose(source) {
    const lines = new Map();
    let inside = "";
    for (const { at, text, hidden } of folded(source.lines)) {
      const code = text.trimStart();
      const indent = text.slice(0, text.length - code.length);
      const result = highlight(code, inside);
      inside = result.inside;
      const line = html("div", { class: "pl-line", title: hidden ? `${hidden} more lines of the docstring` : null });
      line.style.setProperty("--pl-indent", indent.length);
      const pieces = result.pieces.map(([kind, piece]) => (kind ? html("span", { class: `pl-${kind}` }, piece) : breakable(piece, BREAKS.code)));
      line.append(html("span", { class: "pl-indent" }, indent), ...pieces.flat(), "\n");
      lines.set(at, line);
    }
    return lines;
  }
}

// --- what an object is, and what happens to it -----------------------------------------------------------

const NOTHING = "–";

// A panel about one object of the stage: its facts, of which those that other scenes share can be lit, and the frames
// in which something happens to it. `doing` is what it asks of the player: {choose(key), light(thing), go(frame), close()}.
class ObjectPanel {
  constructor(timeline, stage, uid, doing) {
    this.timeline = timeline;
    this.stage = stage;
    this.key = null;
    this.signature = "";
    this.list = html("select", { class: "pl-select", "aria-label": "Object", "data-action": "object" });
    const close = pushButton("close-object", "Close", "Esc", icon("close"), { class: "pl-button is-bare" });
    this.spot = html("p", { class: "pl-spot", "data-testid": "spot" });
    this.facts = html("ul", { class: "pl-facts", "data-testid": "facts" });
    this.heading = html("p", { class: "pl-history-head", id: `${uid}-history` });
    this.history = html("ol", { class: "pl-history", "aria-labelledby": `${uid}-history`, "data-testid": "history" });
    this.node = html(
      "section", { class: "pl-object", id: `${uid}-object`, "aria-label": "The chosen object", "data-testid": "object", hidden: true },
      html("div", { class: "pl-object-head" }, this.list, close),
      html("div", { class: "pl-object-about" }, this.spot, this.facts),
      html("div", { class: "pl-object-history" }, this.heading, this.history),
    );
    close.addEventListener("click", () => doing.close());
    this.list.addEventListener("change", () => doing.choose(this.list.value));
    this.facts.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (pressed) doing.light(pressed.getAttribute("aria-pressed") === "true" ? null : { kind: pressed.dataset.kind, value: pressed.dataset.value });
    });
    this.history.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (pressed) doing.go(Number(pressed.dataset.to));
    });
  }

  // Open it for an object; `spot` is the tooltip of the part of it that was clicked.
  open(key, spot = "") {
    this.key = key;
    this.spotText = spot;
    this.node.hidden = false;
  }

  close() {
    this.key = null;
    this.node.hidden = true;
  }

  // Show how things are in a frame. `thing` is what is lit; with `upTo` nothing is told of later frames.
  show(index, thing, upTo = Infinity) {
    if (this.key === null) return;
    const facts = this.stage.factsOf(this.key);
    const objects = this.stage.objects();
    const [, called] = objects.find(([key]) => key === this.key) ?? [];
    const options = called === undefined ? [[this.key, `${this.list.selectedOptions[0]?.textContent ?? this.key}`], ...objects] : objects;
    this.list.replaceChildren(...options.map(([key, name]) => html("option", { value: key, selected: key === this.key }, brief(name, 60))));
    this.list.title = brief(called ?? "", 400);
    this.spot.textContent = facts ? brief(called?.endsWith(this.spotText) ? "" : this.spotText, 400) : "Not on the stage in this frame.";
    this.spot.hidden = !this.spot.textContent;
    this.facts.replaceChildren(...Object.entries(facts ?? {}).map(([name, value]) => this.fact(name, value, thing)));
    this.remember(upTo);
    for (const item of this.history.children) {
      const button = item.firstElementChild;
      if (Number(button.dataset.to) === index) {
        button.setAttribute("aria-current", "step");
        this.history.scrollTop = item.offsetTop - (this.history.clientHeight - item.offsetHeight) / 2;
      } else button.removeAttribute("aria-current");
    }
  }

  fact(name, value, thing) {
    const text = value === "" ? (THINGS.includes(name) ? "“”" : NOTHING) : String(value);
    const words = [html("span", { class: "pl-fact-name" }, name), " ", html("b", {}, brief(text, 60))];
    if (!THINGS.includes(name)) return html("li", { class: "pl-fact" }, ...words);
    const isLit = thing?.kind === name && thing.value === String(value);
    const hint = `Light this ${name} in all scenes of the page`;
    return html("li", {}, html("button", { type: "button", class: "pl-fact", "data-kind": name, "data-value": value, "aria-pressed": String(isLit), title: hint }, ...words));
  }

  // Write the list of frames, if it is not there already.
  remember(upTo) {
    const signature = `${this.key} ${upTo}`;
    if (signature === this.signature) return;
    this.signature = signature;
    const all = this.timeline.historyOf(this.key);
    const told = all.filter((at) => at <= upTo);
    this.heading.textContent = upTo < Infinity ? "Its history is told when you have answered. So far:" : `Something happens to it in ${told.length} of ${this.timeline.length} frames:`;
    this.history.replaceChildren(...told.map((at) => {
      const { change } = this.timeline.frame(at);
      return html("li", {}, html("button", { type: "button", class: "pl-moment", "data-to": at }, html("span", { class: "pl-moment-at" }, `${at + 1}`), html("span", {}, brief(change, 160))));
    }));
  }
}

// --- a frame as a picture --------------------------------------------------------------------------------

const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity",
  "font-family", "font-size", "font-weight", "font-style", "text-anchor", "text-decoration-line",
];

// How a node looks that nobody has told otherwise.
const PLAIN_LOOKS = { opacity: "1", "fill-opacity": "1", "stroke-opacity": "1", "stroke-dasharray": "none", "stroke-linecap": "butt", "font-style": "normal", "text-decoration-line": "none" };

// A computed colour as programs for slides know it: [#rrggbb, opacity].
export function plainColour(colour) {
  const found = colour.match(/^(rgba?|color)\((?:srgb )?(.*)\)$/);
  if (!found) return [colour, 1];
  const scale = found[1] === "color" ? 255 : 1;
  const [r, g, b, alpha = 1] = found[2].split(/[\s,/]+/).map(Number);
  const hex = [r, g, b].map((value) => Math.round(Math.max(0, Math.min(255, value * scale))).toString(16).padStart(2, "0"));
  return [`#${hex.join("")}`, alpha];
}

// What XML cannot hold, whatever a request is called.
export function plainText(text) {
  return text.replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
}

// Words in lines of a width: [[[text, isBold], ...], ...]. `measure(text, isBold)` is a text's width; a word that is too
// long is broken, and what `most` lines do not hold ends in "…".
export function wrap(pieces, width, measure, most = 8) {
  const lines = [[]];
  let used = 0;
  const put = (text, isBold) => {
    const line = lines.at(-1);
    if (line.length && line.at(-1)[1] === isBold) line.at(-1)[0] += text;
    else line.push([text, isBold]);
    used += measure(text, isBold);
  };
  for (const [text, isBold] of pieces) {
    for (const word of text.split(/(?<=\s)/)) {
      for (const part of measure(word.trimEnd(), isBold) > width ? [...word] : [word]) {
        if (used && used + measure(part.trimEnd(), isBold) > width) {
          if (lines.length === most) {
            lines.at(-1).push(["…", isBold]);
            return lines;
          }
          lines.push([]);
          used = 0;
        }
        put(part, isBold);
      }
    }
  }
  return lines;
}

// Copies a drawn node, with what the style sheet makes of it written into the copy.
function drawnCopy(node) {
  const copy = svg(node.localName);
  for (const { name, value } of node.attributes) if (name !== "class" && name !== "style" && !name.startsWith("data-")) copy.setAttribute(name, value);
  if (node.localName === "title") return plainCopy(copy, node);
  if (node.style.transform) copy.setAttribute("transform", node.style.transform.replaceAll("px", ""));
  const style = getComputedStyle(node);
  const isShape = !["g", "svg", "defs"].includes(node.localName);
  for (const look of isShape ? LOOKS : ["opacity"]) {
    if (look.startsWith("font") || look.startsWith("text")) if (node.localName !== "text") continue;
    wear(copy, look, style.getPropertyValue(look));
  }
  if (node.localName !== "text") {
    copy.append(...[...node.children].map(drawnCopy));
    return copy;
  }
  // Not every program knows a baseline in the middle.
  copy.setAttribute("y", Number(node.getAttribute("y")) + 0.35 * parseFloat(style.fontSize));
  return plainCopy(copy, node);
}

function plainCopy(copy, node) {
  copy.textContent = plainText(node.textContent);
  return copy;
}

function wear(copy, look, value) {
  if (value === PLAIN_LOOKS[look] || !value) return;
  if (look === "text-decoration-line") copy.setAttribute("text-decoration", value);
  else if ((look === "fill" || look === "stroke") && !value.startsWith("url(")) {
    const [colour, alpha] = plainColour(value);
    copy.setAttribute(look, colour);
    if (alpha < 1) copy.setAttribute(`${look}-opacity`, alpha);
  } else copy.setAttribute(look, value.replace(/^url\("(.*)"\)$/, "url($1)"));
}

// A grid with its legend as it goes into a picture, at a place, in a width: {nodes, height}.
function gridPicture(grid, x, y, width, word) {
  let right = 0;
  const legend = grid.samples.filter(({ node }) => !node.hidden).flatMap(({ canvas, node }) => {
    const text = node.textContent;
    const at = right;
    right += 30 + word.width(text);
    return [svg("image", { href: canvas.toDataURL(), x: x + at, y, width: 16, height: 16 }), word.at(x + at + 21, y + 13, text)];
  });
  const field = grid.picture();
  const height = (field.height * width) / field.width;
  return { nodes: [...legend, svg("image", { href: field.url, x, y: y + 24, width, height })], height: height + 24 };
}

// The frame that a player shows as an SVG text that stands alone, in the theme of now: title, stage, grid and caption.
function pictureOf(root, stage, grid, frame) {
  const edge = 16;
  const { width, height, title } = stage.timeline.data;
  const look = getComputedStyle(root);
  const [paper, ink, quiet] = [look.backgroundColor, look.color, getComputedStyle(root.querySelector(".pl-subtitle")).color].map((colour) => plainColour(colour)[0]);
  const font = look.fontFamily;
  const pen = html("canvas").getContext("2d");
  const measure = (text, isBold) => {
    pen.font = `${isBold ? "bold " : ""}15px ${font}`;
    return pen.measureText(text).width;
  };
  const line = (y, pieces) => svg(
    "text", { x: edge, y, fill: ink, "font-family": font, "font-size": "15px" },
    ...pieces.map(([text, isBold, fill]) => plainCopy(svg("tspan", { ...(isBold ? { "font-weight": "bold" } : {}), ...(fill ? { fill } : {}), "xml:space": "preserve" }), { textContent: text })),
  );
  const heads = wrap([[`${title}  `, true], [frame.subtitle ?? "", false]], width, measure, 2);
  const words = wrap([[`${frame.change} `, true], [frame.detail ?? "", false]], width, measure);
  const top = edge + 21 * heads.length + 6;
  const word = { width: (text) => measure(text, false), at: (x, y, text) => {
    const node = line(y, [[text, false, quiet]]);
    node.setAttribute("x", x);
    return node;
  } };
  const cells = grid ? gridPicture(grid, edge, top + height + 6, width, word) : { nodes: [], height: -6 };
  const bottom = top + height + 6 + cells.height + 10;
  const all = { width: Math.ceil(width + 2 * edge), height: Math.ceil(bottom + 21 * words.length + edge) };
  const picture = svg(
    "svg", { ...all, viewBox: `0 0 ${all.width} ${all.height}` },
    svg("rect", { width: all.width, height: all.height, fill: paper }),
    ...heads.map((pieces, at) => line(edge + 13 + 21 * at, pieces.map(([text, isBold]) => [text, isBold, isBold ? ink : quiet]))),
    stage.picture(edge, top),
    ...cells.nodes,
    ...words.map((pieces, at) => line(bottom + 14 + 21 * at, pieces)),
  );
  return { ...all, text: new XMLSerializer().serializeToString(picture) };
}

// The same as a PNG, two pixels for each of its units: a Blob.
async function pixelsOf({ width, height, text }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = html("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function download(blob, name) {
  const url = URL.createObjectURL(blob);
  html("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// --- the transport ---------------------------------------------------------------------------------------

function pushButton(action, label, key, inside = icon(action), extra = {}) {
  return html("button", {
    type: "button", class: "pl-button", "data-action": action, "aria-label": label, title: key ? `${label} (${key})` : label, ...extra,
  }, inside);
}

// Buttons for what is not stepping: loop a range, look at objects, go with the other scenes, save a picture.
function makeTools(uid) {
  const letter = (text) => html("span", { class: "pl-letter", "aria-hidden": "true" }, text);
  const loopFrom = pushButton("loop-from", "Loop from this frame", "A", letter("A"), { "aria-keyshortcuts": "A" });
  const loopTo = pushButton("loop-to", "Loop to this frame", "B", letter("B"), { "aria-keyshortcuts": "B" });
  const loopOff = pushButton("loop-off", "Clear the loop", "C", icon("close"), { "aria-keyshortcuts": "C", "aria-disabled": "true" });
  const look = pushButton("look", "Look at an object", "O", icon("look"), { "aria-keyshortcuts": "O", "aria-expanded": "false", "aria-controls": `${uid}-object` });
  const link = html("button", { type: "button", class: "pl-button is-toggle", "data-action": "link", "aria-pressed": "true", "aria-keyshortcuts": "L", hidden: true }, icon("link"), "linked");
  const save = pushButton("save", "Save picture", "", icon("save"), { popovertarget: `${uid}-save` });
  const choice = (action, text) => html("button", { type: "button", class: "pl-button is-wide", "data-action": action }, text);
  const menu = html(
    "div", { class: "pl-menu", id: `${uid}-save`, popover: "auto", role: "group", "aria-label": "Save picture" },
    html("span", { class: "pl-menu-head", "aria-hidden": "true" }, "Save picture"), choice("save-svg", "SVG, for slides and print"), choice("save-png", "PNG, twice the size"),
  );
  menu.addEventListener("beforetoggle", ({ newState }) => {
    if (newState !== "open") return;
    const box = save.getBoundingClientRect();
    const isLow = box.top > innerHeight / 2;
    menu.style.right = `${Math.max(4, innerWidth - box.right)}px`;
    menu.style.bottom = isLow ? `${innerHeight - box.top + 6}px` : "auto";
    menu.style.top = isLow ? "auto" : `${box.bottom + 6}px`;
  });
  const loop = html("div", { class: "pl-loop-buttons", role: "group", "aria-label": "Loop" }, loopFrom, loopTo, loopOff);
  return { loopFrom, loopTo, loopOff, look, link, menu, node: html("div", { class: "pl-tools" }, loop, look, save, menu, link) };
}

// What a player is played on: buttons to step, the scrubber with marks of events, "next …", the speed and the tools.
function makeTransport(timeline, kinds, uid) {
  const last = timeline.length - 1;
  const buttons = {
    first: pushButton("first", "First frame", "Home"),
    back: pushButton("back", "Back one frame", "←"),
    play: pushButton("play", "Play", "Space"),
    next: pushButton("next", "Next frame", "→"),
    last: pushButton("last", "Last frame", "End"),
  };
  buttons.play.classList.add("is-main");
  const scrubber = html("input", { type: "range", class: "pl-scrubber", min: 0, max: last, step: 1, value: 0, "aria-label": "Frame", "data-action": "scrub" });
  const marks = html("div", { class: "pl-marks", "aria-hidden": "true" });
  for (let at = 0; at <= last; at += 1) {
    const { event } = timeline.frame(at);
    if (!event) continue;
    const mark = html("i", { "data-event": event });
    mark.style.setProperty("--pl-at", last ? at / last : 0);
    marks.append(mark);
  }
  marks.classList.toggle("is-dense", marks.childElementCount > 100);
  const range = html("div", { class: "pl-range", "aria-hidden": "true", "data-testid": "range", hidden: true });
  const count = html("span", { class: "pl-count", "data-testid": "count" });
  const kindSelect = html("select", { class: "pl-select", "aria-label": "Kind of event to go to", "data-action": "event-kind" }, ...kinds.map(([kind, word]) => html("option", { value: kind }, word)));
  const nextEvent = html("button", { type: "button", class: "pl-button is-wide", "data-action": "next-event" }, "next");
  const speedSelect = html("select", { class: "pl-select", "aria-label": "Speed", title: "Speed", "data-action": "speed" }, ...SPEEDS.map((value) => html("option", { value, selected: value === 1 }, `${value}×`)));
  const tools = makeTools(uid);
  const node = html(
    "div", { class: "pl-transport", role: "group", "aria-label": "Playback" },
    html("div", { class: "pl-buttons" }, ...Object.values(buttons)),
    html("div", { class: "pl-track" }, range, scrubber, marks),
    count,
    kinds.length ? html("div", { class: "pl-jump" }, nextEvent, kindSelect) : "",
    speedSelect,
    tools.node,
  );
  return { node, buttons, scrubber, marks, range, count, kindSelect, nextEvent, speedSelect, tools };
}

// --- the player ------------------------------------------------------------------------------------------

// Shows a scene in `host`. Returns {node, index, goto(frame, {animate}), play(), pause(), lock(), unlock(), destroy()}.
// While it is locked nobody but `goto` leaves the frame. `heading` is the element that holds the title.
// It joins the players of its page: what is selected in one lights in all, and scenes of one trace share a cursor.
// `onChoose` is called with the facts of each object that is chosen.
export function createPlayer(host, data, { start = 0, heading = "span", onChoose } = {}) {
  const timeline = new Timeline(data);
  const uid = uniqueId();
  const stage = new Stage(timeline, uid);
  const source = new SourcePane(timeline);
  const abort = new AbortController();
  const { signal } = abort;
  const last = timeline.length - 1;
  const reduced = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");
  const page = Page.of(document);
  const course = new Course(data);
  const loop = new Loop(last);
  const kinds = Object.entries(data.event_names ?? {});
  let index = -1;
  let picked = null; // the kind of event whose marks stand out
  let timer = null;
  let speed = 1;

  const transport = makeTransport(timeline, kinds, uid);
  const { buttons, scrubber, marks, range, count, kindSelect, nextEvent, speedSelect, tools } = transport;
  const change = html("strong");
  const detail = html("span");
  const caption = html("div", { class: "pl-caption", id: `${uid}-caption`, role: "status", "aria-live": "polite", "aria-atomic": "true", "data-testid": "caption" }, change, " ", detail);
  const said = html("div", { class: "pl-unseen", role: "status", "aria-live": "polite", "data-testid": "said" });
  const subtitle = html("span", { class: "pl-subtitle", "data-testid": "subtitle" });
  const beats = timeline.beats().length > 1 ? timeline.beats() : [];
  const beatButtons = beats.map(([beat, at]) => html("button", { type: "button", class: "pl-beat", "data-action": "beat", "data-beat": beat, "data-to": at }, beat));
  const beatBar = beats.length ? html("nav", { class: "pl-beats", "aria-label": "Beats of the step" }, ...beatButtons) : "";
  const stageBox = html("div", { class: "pl-stage-box" }, stage.node);
  const grid = data.grid ? new GridView(timeline, uid, (key) => choose(key)) : null;
  stage.grid = grid;
  const object = new ObjectPanel(timeline, stage, uid, {
    choose: (key) => choose(key),
    light: (thing) => page.select(thing && { ...thing, traces: course.traces }, peer),
    go: (at) => {
      if (isLocked()) return;
      pause();
      goto(at, { animate: true });
    },
    close: () => page.select(null),
  });
  const root = html(
    "section",
    { class: "pagedlab", tabindex: "0", "aria-label": `${data.title}: a scene in ${timeline.length} frames`, "data-pagedlab-player": data.name, "data-lm-suppress-shortcuts": "", "data-frames": timeline.length },
    html("header", { class: "pl-head" }, html(heading, { class: "pl-title" }, data.title), subtitle, beatBar),
    html("div", { class: "pl-main" }, grid ? html("div", { class: "pl-scene" }, stageBox, grid.node) : stageBox, source.node),
    html("div", { class: "pl-foot" }, object.node, caption, transport.node),
    said,
  );
  stage.node.setAttribute("aria-labelledby", `${uid}-caption`);

  // Whoever follows another player does not lead, and leaves it to that one to be read out.
  function goto(target, { animate, follows = false } = {}) {
    const to = Math.max(0, Math.min(last, target));
    if (to === index) return;
    caption.setAttribute("aria-live", follows ? "off" : "polite");
    const moving = (animate ?? Math.abs(to - index) === 1) && index >= 0 && !reduced?.matches;
    index = to;
    root.classList.toggle("pl-cut", !moving);
    if (!moving) stage.settle();
    stage.show(index, moving);
    grid?.show(index);
    const frame = timeline.frame(index);
    change.textContent = frame.change;
    detail.textContent = frame.detail ?? "";
    subtitle.textContent = frame.subtitle ?? "";
    scrubber.value = index;
    scrubber.setAttribute("aria-valuetext", `frame ${index + 1} of ${last + 1}: ${frame.change}`);
    scrubber.style.setProperty("--pl-at", last ? index / last : 0);
    count.textContent = `frame ${index + 1} / ${last + 1}`;
    root.dataset.frame = index;
    for (const name of ["first", "back"]) buttons[name].setAttribute("aria-disabled", String(index === 0));
    for (const name of ["next", "last"]) buttons[name].setAttribute("aria-disabled", String(index === last));
    for (const item of beatButtons) {
      if (item.dataset.beat === frame.beat) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    }
    updateJump();
    showObject();
    source.show(frame);
    if (!follows && isLinked() && !isLocked()) page.lead(peer, course.at(index));
  }

  function updateJump() {
    if (!kinds.length) return;
    const word = data.event_names[kindSelect.value];
    const at = timeline.nextOf(kindSelect.value, index);
    nextEvent.setAttribute("aria-disabled", String(at < 0));
    nextEvent.setAttribute("aria-label", `Next ${word}`);
    nextEvent.title = at < 0 ? `No ${word} after this frame` : `Next ${word}: frame ${at + 1}`;
    if (picked === kindSelect.value) return;
    picked = kindSelect.value;
    for (const mark of marks.children) mark.classList.toggle("is-picked", mark.dataset.event === picked);
  }

  function setPlaying(playing) {
    clearTimeout(timer);
    timer = null;
    buttons.play.replaceChildren(icon(playing ? "pause" : "play"));
    buttons.play.setAttribute("aria-label", playing ? "Pause" : "Play");
    buttons.play.title = playing ? "Pause (Space)" : "Play (Space)";
    if (playing) timer = setTimeout(tick, readingTime(timeline.frame(index)) / speed);
  }

  function tick() {
    if (!root.isConnected) return setPlaying(false); // taken off the page: nobody is watching
    return play();
  }

  function play() {
    goto(Math.max(0, loop.after(index))); // from the end, from the beginning
    setPlaying(loop.after(index) >= 0);
  }

  const pause = () => setPlaying(false);
  const isLocked = () => root.classList.contains("is-locked");

  function setLocked(locked) {
    pause();
    root.classList.toggle("is-locked", locked);
    if (beatBar) beatBar.inert = locked;
    showObject();
  }

  function say(text) {
    said.textContent = text === said.textContent ? `${text}\u00a0` : text; // what is the same is not read out again
  }

  // --- the loop, on the scrubber
  function setLoop(change, refusal) {
    if (change(index) === false) return say(refusal);
    range.hidden = !loop.isOn;
    tools.loopOff.setAttribute("aria-disabled", String(!loop.isOn));
    range.style.setProperty("--pl-from", loop.isOn ? loop.start / last : 0);
    range.style.setProperty("--pl-to", loop.isOn ? loop.end / last : 0);
    for (const end of ["loopFrom", "loopTo"]) tools[end].classList.toggle("is-on", loop.isOn);
    const frames = `frames ${loop.start + 1} to ${loop.end + 1}`;
    tools.loopOff.title = loop.isOn ? `Clear the loop, ${frames} (C)` : "No loop";
    return say(loop.isOn ? `Loop: ${frames}.` : "No loop.");
  }

  // --- the object that is looked at, and what is lit for it
  function choose(key, spot) {
    const [thing = null] = thingsOf(stage.factsOf(key) ?? {});
    object.open(key, spot);
    onChoose?.(stage.factsOf(key) ?? {});
    page.select(thing && { ...thing, traces: course.traces }, peer);
    const name = object.list.selectedOptions[0]?.textContent ?? "";
    const others = page.players.filter((player) => player !== peer && player.numLit);
    const elsewhere = others.length ? ` and in ${others.length === 1 ? "another scene" : `${others.length} other scenes`}` : "";
    const lit = peer.numLit === 1 ? "1 object" : `${peer.numLit} objects`;
    say(`${name}.${thing ? ` ${lit} of ${thing.kind} ${brief(thing.value, 30)} lit here${elsewhere}.` : ""}`);
  }

  function showObject() {
    object.show(index, page.thing, isLocked() ? index : Infinity);
    tools.look.setAttribute("aria-expanded", String(object.key !== null));
    root.classList.toggle("has-object", object.key !== null);
  }

  // What the page's other players know of this one.
  const peer = {
    traces: course.traces,
    numLit: 0,
    // What is selected is one for all; `by` is the player in which it was.
    light(thing, by) {
      if (by !== peer && object.key !== null) {
        const hadFocus = object.node.contains(document.activeElement);
        object.close();
        if (hadFocus) root.focus({ preventScroll: true });
      }
      // A request has its name in every engine; a row and a block are of one engine.
      const isHere = thing && (thing.kind === "request" || by === peer || thing.traces.some((trace) => course.traces.includes(trace)));
      peer.numLit = stage.light((facts, key) => key === object.key || (isHere && isOf(facts, thing)));
      peer.numLit += grid?.light(isHere ? thing : null, object.key) ?? 0;
      showObject();
    },
    follow(position) {
      const to = isLinked() && !isLocked() ? course.nearest(position) : -1;
      if (to < 0) return;
      pause();
      goto(to, { follows: true });
    },
    // Somebody has come or gone.
    meet() {
      const others = page.kinOf(peer).length;
      tools.link.hidden = others === 0;
      tools.link.title = `Go with the ${others === 1 ? "other scene" : `${others} other scenes`} of this run (L)`;
    },
  };
  const isLinked = () => tools.link.getAttribute("aria-pressed") === "true";

  function savePicture(kind) {
    tools.menu.hidePopover();
    root.classList.add("pl-cut"); // a picture of how it stands, not of how it moves
    const picture = pictureOf(root, stage, grid, timeline.frame(index));
    const name = `pagedlab-${data.name}-frame-${index + 1}.${kind}`;
    const give = (blob) => {
      download(blob, name);
      say(`Saved ${name}.`);
    };
    if (kind === "svg") return give(new Blob([picture.text], { type: "image/svg+xml" }));
    return pixelsOf(picture).then(give, () => say("This browser cannot make the picture; take the SVG."));
  }

  const actions = {
    first: () => goto(0),
    back: () => goto(index - 1),
    play: () => (timer === null ? play() : pause()),
    next: () => goto(index + 1),
    last: () => goto(last),
    "next-event": () => {
      const at = timeline.nextOf(kindSelect.value, index);
      if (at >= 0) goto(at, { animate: true });
    },
    beat: (element) => goto(Number(element.dataset.to), { animate: true }),
    "loop-from": () => setLoop((at) => loop.from(at), "A loop cannot begin with the last frame."),
    "loop-to": () => setLoop((at) => loop.to(at), "A loop cannot end with the first frame."),
    "loop-off": () => setLoop(() => loop.clear()),
    look: () => {
      if (object.key !== null) return page.select(null);
      const objects = stage.objects();
      const [first] = objects.find(([key]) => timeline.frame(index).focus?.includes(key)) ?? objects[0] ?? [];
      if (first === undefined) return say("There is nothing to look at in this frame.");
      choose(first);
      return object.list.focus({ preventScroll: true });
    },
    link: () => {
      tools.link.setAttribute("aria-pressed", String(!isLinked()));
      say(isLinked() ? "Goes with the other scenes of this run." : "Goes on its own.");
      if (isLinked()) page.lead(peer, course.at(index));
    },
    "save-svg": () => savePicture("svg"),
    "save-png": () => savePicture("png"),
  };
  const goesOn = ["play", "loop-from", "loop-to", "loop-off", "look", "link", "save-svg", "save-png"]; // while it plays

  root.addEventListener("click", (event) => {
    const element = event.target.closest("button[data-action]");
    if (!element || !root.contains(element) || !actions[element.dataset.action] || isLocked()) return;
    if (!goesOn.includes(element.dataset.action)) pause();
    actions[element.dataset.action](element);
  }, { signal });
  scrubber.addEventListener("input", () => {
    if (isLocked()) return;
    pause();
    goto(Number(scrubber.value), { animate: false });
  }, { signal });
  kindSelect.addEventListener("change", updateJump, { signal });
  speedSelect.addEventListener("change", () => {
    speed = Number(speedSelect.value);
    if (timer !== null) setPlaying(true);
  }, { signal });

  // JupyterLab leaves the keys to an element with this attribute; with Ctrl or Cmd held they are its own (to save, say).
  const keepKeys = (keep) => root.toggleAttribute("data-lm-suppress-shortcuts", keep);
  root.addEventListener("keyup", (event) => keepKeys(!(event.ctrlKey || event.metaKey)), { signal });
  root.addEventListener("focusin", () => keepKeys(true), { signal });

  const keys = {
    ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last", a: "loop-from", b: "loop-to", c: "loop-off", l: "link", o: "look",
  };
  root.addEventListener("keydown", (event) => {
    keepKeys(!(event.ctrlKey || event.metaKey));
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation(); // a notebook would take the key for itself
    if (event.key === "Escape" && !tools.menu.matches(":popover-open")) page.select(null);
    if (isLocked() || event.target.closest("select, input:not([type=range])")) return;
    if (event.target === stageBox && event.key.startsWith("Arrow")) return; // it scrolls
    const action = keys[event.key.length > 1 ? event.key : event.key.toLowerCase()];
    if (action && !(action === "link" && tools.link.hidden)) {
      event.preventDefault();
      if (!goesOn.includes(action)) pause();
      actions[action]();
    } else if (event.key === " " && !event.target.closest("button")) {
      event.preventDefault();
      actions.play();
    }
  }, { signal });
  // A click on the stage brings the keyboard here.
  stage.node.addEventListener("pointerdown", () => root.focus({ preventScroll: true }), { signal });
  stage.node.addEventListener("click", (event) => {
    const node = event.target.closest(".pl-actor.is-object");
    if (!node) return page.select(null);
    return choose(node.dataset.key, event.target.closest(".pl-actor > g")?.querySelector("title")?.textContent);
  }, { signal });

  host.append(root);
  goto(start, { animate: false, follows: true });
  caption.setAttribute("aria-live", "polite");
  page.join(peer);
  // A stage wider than its box scrolls; then the keyboard has to reach it.
  function fitStage() {
    const wide = stageBox.scrollWidth > stageBox.clientWidth;
    for (const [name, value] of Object.entries({ tabindex: "0", role: "region", "aria-label": "Stage; the arrow keys scroll it" })) {
      if (wide) stageBox.setAttribute(name, value);
      else stageBox.removeAttribute(name);
    }
  }

  // The foot stays in view once a good part of the player is.
  if (globalThis.IntersectionObserver) {
    const observer = new IntersectionObserver(([seen]) => root.classList.toggle("is-in-view", seen.isIntersecting), { rootMargin: "0px 0px -45% 0px" });
    observer.observe(root);
    signal.addEventListener("abort", () => observer.disconnect());
  }
  if (globalThis.ResizeObserver) {
    const observer = new ResizeObserver(() => {
      // Where the panel of an object stands below the source, a scene that is not high leaves some of it to the source.
      root.style.setProperty("--pl-object-height", `${Math.max(176, Math.min(244, 0.6 * root.querySelector(".pl-main").offsetHeight))}px`);
      source.scroll(); // the lit line can only be scrolled to when the pane has a size
      fitStage();
    });
    observer.observe(source.node);
    observer.observe(stageBox);
    signal.addEventListener("abort", () => observer.disconnect());
  }

  return {
    node: root,
    get index() {
      return index;
    },
    goto,
    play,
    pause,
    lock: () => setLocked(true),
    unlock: () => setLocked(false),
    destroy() {
      setPlaying(false);
      abort.abort();
      stage.settle();
      grid?.destroy();
      page.leave(peer);
      if (object.key !== null) page.select(null);
      root.remove();
    },
  };
}

// --- predict, then reveal --------------------------------------------------------------------------------

// What to say to an answer: {right, reason}.
export function judge(question, given) {
  if (question.kind === "number") {
    const number = String(given).trim();
    if (!/^-?\d+$/.test(number)) return { right: false, reason: "Type a whole number.", invalid: true };
    const plain = String(BigInt(number));
    if (plain === question.answer) return { right: true, reason: question.explanation };
    return { right: false, reason: question.reasons[plain] ?? "Not that many. Look at the frame above again, or see what happens." };
  }
  if (question.kind === "pick") {
    const picked = String(given ?? "").trim();
    if (!picked) return { right: false, reason: `Click a ${question.fact} first, or type which.`, invalid: true };
    if (picked === question.answer) return { right: true, reason: question.explanation };
    return { right: false, reason: question.reasons[picked] ?? "Not that one. Look at the frame above again, or see what happens." };
  }
  if (given === null || given === undefined) return { right: false, reason: "Choose an answer first.", invalid: true };
  if (given === question.answer) return { right: true, reason: question.explanation };
  return { right: false, reason: question.reasons[given] };
}

// Asks a question about a scene in `host`: the scene stops, the learner answers, the scene plays on to the answer.
export function createPrediction(host, data, question, { heading } = {}) {
  const uid = uniqueId();
  const abort = new AbortController();
  const { signal } = abort;
  let timer = null;
  const isPick = question.kind === "pick";
  const player = createPlayer(host, data, { start: question.ask_frame, heading, onChoose: isPick ? take : undefined });
  player.lock();
  const choices = question.choices.map((choice, at) =>
    html("label", { class: "pl-choice" }, html("input", { type: "radio", name: uid, value: at, "data-choice": choice }), html("span", {}, choice)));
  const inputName = isPick ? `Click a ${question.fact} above, or type which:` : "Your number";
  const inputMode = /^-?\d+$/.test(question.answer) ? "numeric" : "text";
  const input = html("input", { type: "text", inputmode: inputMode, autocomplete: "off", class: "pl-number", "aria-label": inputName, "data-testid": "number" });
  const answer = isPick ? html("label", { class: "pl-pick" }, inputName, input) : input;
  const check = html("button", { type: "submit", class: "pl-button is-wide is-main", "data-action": "check" }, "Check");
  const reveal = html("button", { type: "button", class: "pl-button is-wide", "data-action": "reveal" }, "Show me");
  const again = html("button", { type: "button", class: "pl-button is-wide", "data-action": "ask-again", hidden: true }, "Ask me again");
  const verdict = html("div", { class: "pl-verdict", role: "status", "aria-live": "polite", "data-testid": "verdict" });
  const form = html(
    "form", { class: "pl-question", "data-pagedlab-question": question.kind, "data-state": "asking", novalidate: true },
    html("fieldset", { class: "pl-fieldset" },
      html("legend", { class: "pl-prompt", "data-testid": "prompt" }, html("span", { class: "pl-tag" }, "Predict"), " ", question.prompt),
      question.kind === "choice" ? html("div", { class: "pl-choices" }, ...choices) : html("div", { class: "pl-choices" }, answer)),
    html("div", { class: "pl-answers" }, check, reveal, again, verdict),
  );
  player.node.append(form);

  // What is clicked on the stage answers.
  function take(facts) {
    if (form.dataset.state === "asking" && question.fact in facts) input.value = facts[question.fact];
  }

  function say(kind, head, reason) {
    verdict.dataset.verdict = kind;
    verdict.replaceChildren(html("strong", {}, head), ` ${reason}`);
  }

  // Whoever keeps count hears of each answer; to be shown it counts as a wrong one.
  function tell(right) {
    form.dispatchEvent(new CustomEvent("pagedlab-answer", { bubbles: true, detail: { right } }));
  }

  function show() {
    form.dataset.state = "revealed";
    player.unlock();
    check.hidden = true;
    reveal.hidden = true;
    again.hidden = false;
    form.querySelector("fieldset").disabled = true;
    for (const label of choices) {
      const radio = label.firstElementChild;
      label.classList.toggle("is-answer", radio.dataset.choice === question.answer);
    }
    walk();
  }

  // Play on, frame by frame, to the frame that shows the answer; unless it has been led elsewhere by another scene.
  function walk(at = player.index) {
    if (player.index !== at || at >= question.frame) return;
    player.goto(at + 1, { animate: true });
    timer = setTimeout(walk, 700, at + 1);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const picked = form.querySelector("input[type=radio]:checked");
    const given = question.kind === "choice" ? picked?.dataset.choice : input.value;
    const result = judge(question, given);
    for (const label of choices) label.classList.toggle("is-wrong", !result.right && label.firstElementChild === picked);
    if (!result.invalid) tell(result.right);
    if (result.invalid) say("invalid", "", result.reason);
    else if (result.right) {
      say("right", "Right.", result.reason);
      show();
      again.focus({ preventScroll: true });
    } else say("wrong", "Not quite.", result.reason);
  }, { signal });
  reveal.addEventListener("click", () => {
    tell(false);
    say("shown", `It is ${question.answer}.`, question.explanation);
    show();
    again.focus({ preventScroll: true });
  }, { signal });
  again.addEventListener("click", () => {
    stop();
    form.reset();
    form.dataset.state = "asking";
    form.querySelector("fieldset").disabled = false;
    verdict.replaceChildren();
    delete verdict.dataset.verdict;
    for (const label of choices) label.classList.remove("is-answer", "is-wrong");
    check.hidden = false;
    reveal.hidden = false;
    again.hidden = true;
    player.lock();
    player.goto(question.ask_frame, { animate: false });
    (question.kind === "choice" ? choices[0].firstElementChild : input).focus({ preventScroll: true });
  }, { signal });
  // Whoever takes the scene in hand ends the walk, by whatever means. (A key held down is the one that started it.)
  const stop = () => clearTimeout(timer);
  player.node.addEventListener("pointerdown", stop, { signal, capture: true });
  player.node.addEventListener("input", stop, { signal, capture: true });
  player.node.addEventListener("click", stop, { signal, capture: true });
  player.node.addEventListener("keydown", (event) => event.repeat || stop(), { signal, capture: true });

  return {
    node: player.node,
    player,
    destroy() {
      stop();
      abort.abort();
      player.destroy();
    },
  };
}

// --- where it runs ---------------------------------------------------------------------------------------

// What `pagedlab.widgets.export.pack` has made of a large payload: {packed}, compressed.
export async function unpack({ packed }) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

// `payload` is {scene, question?}.
export function mount(host, payload, { heading } = {}) {
  const { scene, question } = payload;
  return question ? createPrediction(host, scene, question, { heading }) : createPlayer(host, scene, { heading });
}

// In the exported page: the data stands in the page; a frame inside a notebook takes on its theme, and grows to fit, but
// not beyond what is seen of the notebook at once: its foot is to stay in view. On paper it is as high as it is.
export function boot(host, payload) {
  if (payload.packed) return unpack(payload).then((unpacked) => boot(host, unpacked));
  const view = mount(host, payload, { heading: "h1" });
  let frame = null;
  try {
    frame = globalThis.frameElement;
  } catch {
    return view; // in a sandbox: nothing to adapt to
  }
  if (!frame) return view;
  const outside = frame.ownerDocument.body;
  const follow = () => {
    const light = outside.getAttribute("data-jp-theme-light");
    if (light !== null) document.documentElement.dataset.jpThemeLight = light;
    if (outside.dataset.vscodeThemeKind) document.documentElement.dataset.vscodeThemeKind = outside.dataset.vscodeThemeKind;
  };
  const paper = matchMedia("print");
  const fit = () => {
    const height = Math.ceil(view.node.getBoundingClientRect().height) + 2;
    const room = paper.matches ? Infinity : Math.max(420, 0.8 * outside.ownerDocument.defaultView.innerHeight);
    if (height > 10) frame.style.height = `${Math.min(height, room)}px`;
  };
  // What the outer page holds of this one would keep it alive after its frame is gone; in the page cache it may come back.
  const theme = new MutationObserver(follow);
  const watch = () => {
    follow();
    theme.observe(outside, { attributes: true });
  };
  watch();
  fit();
  addEventListener("pageshow", watch);
  addEventListener("pagehide", () => theme.disconnect());
  paper.addEventListener("change", fit);
  new ResizeObserver(fit).observe(view.node);
  return view;
}

// anywidget's interface: each view is a player of its own; what it returns is called when the view goes away.
export default {
  render({ model, el }) {
    const show = (payload) => {
      const view = mount(el, payload);
      view.node.addEventListener("pagedlab-answer", ({ detail }) => model.send({ answered: detail.right }));
      return () => view.destroy();
    };
    const payload = model.get("payload");
    return payload.packed ? unpack(payload).then(show) : show(payload);
  },
};
