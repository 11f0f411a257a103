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

function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "pl-icon" }, svg("path", { d: ICONS[name] }));
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
    for (const item of wanted.values()) this.place(item, animate);
    const focus = new Set(frame.focus ?? []);
    for (const [key, actor] of this.actors) this.ring(actor, focus.has(key));
    this.arrows.replaceChildren(...(frame.arrows ?? []).map((arrow) => this.arrow(arrow)));
  }

  place(item, animate) {
    const body = this.timeline.data.bodies[item.body];
    let actor = this.actors.get(item.key);
    if (actor && actor.layer !== body[2]) {
      this.remove(item.key, false);
      actor = undefined;
    }
    if (!actor) {
      this.forget(item.key);
      actor = { node: svg("g", { class: "pl-actor", "data-key": item.key }), body: -1, layer: body[2], facts: [] };
      this.actors.set(item.key, actor);
      this.insert(actor.node, item.key, body[2]);
      if (animate) {
        if (item.origin) {
          this.move(actor, item.origin[0], item.origin[1]);
          actor.node.getBoundingClientRect(); // so that the way from the origin is seen
        } else actor.node.classList.add("pl-enter");
      }
    }
    if (actor.body !== item.body) this.dress(actor, body, item.body);
    if (actor.x !== item.x || actor.y !== item.y) this.move(actor, item.x, item.y);
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
    for (const [name, value] of Object.entries(facts)) actor.node.dataset[name] = value;
    actor.ringNode = null;
    actor.node.replaceChildren(...parts.map((part) => this.part(part)));
  }

  ring(actor, wanted) {
    if (wanted && !actor.ringNode) {
      const [w, h] = actor.size;
      actor.ringNode = svg("rect", { class: "pl-ring", x: -2, y: -2, width: w + 4, height: h + 4, rx: 8 });
      actor.node.append(actor.ringNode);
    } else if (!wanted && actor.ringNode) {
      actor.ringNode.remove();
      actor.ringNode = null;
    }
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

// --- the source pane -------------------------------------------------------------------------------------

class SourcePane {
  constructor(timeline) {
    this.timeline = timeline;
    this.shown = null;
    this.lines = new Map(); // place of a line in its function -> its node
    this.code = html("div", { class: "pl-code", tabindex: "0", role: "region", "aria-label": "Source code", "data-testid": "source" });
    this.where = html("div", { class: "pl-where", "data-testid": "source-file" });
    this.theirs = html("div", { class: "pl-where", "data-testid": "source-vllm" });
    this.node = html("aside", { class: "pl-source", "aria-label": "The source line that runs" }, this.code, html("div", { class: "pl-wheres" }, this.where, this.theirs));
  }

  show(frame) {
    const [key, line] = frame.source ?? [null, 0];
    const source = key === null ? undefined : this.timeline.data.sources[key];
    if (!source) {
      // Keep the last text in view, no line of it lit: nothing of it runs now.
      this.code.querySelector(".is-now")?.classList.remove("is-now");
      if (!this.shown) this.where.textContent = "Press Next: the line that runs will be lit here.";
      return;
    }
    if (this.shown !== key) this.write(key, source);
    this.code.querySelector(".is-now")?.classList.remove("is-now");
    const now = this.lines.get(line - source.first_line);
    now?.classList.add("is-now");
    this.where.replaceChildren(...breakable(`${source.file} · line ${line}`, BREAKS.path));
    this.theirs.replaceChildren(...(source.vllm ? breakable(`vLLM 0.25.1: ${source.vllm.join(", ")}`, BREAKS.path) : []));
    if (!now) return;
    // In the middle; of a line that is wrapped higher than the pane, the beginning.
    this.code.scrollTop = now.offsetTop - Math.max(0, this.code.clientHeight - now.offsetHeight) / 2;
  }

  write(key, source) {
    this.shown = key;
    let inside = "";
    this.lines.clear();
    for (const { at, text, hidden } of folded(source.lines)) {
      const code = text.trimStart();
      const indent = text.slice(0, text.length - code.length);
      const result = highlight(code, inside);
      inside = result.inside;
      const line = html("div", { class: "pl-line", title: hidden ? `${hidden} more lines of the docstring` : null });
      line.style.setProperty("--pl-indent", indent.length);
      const pieces = result.pieces.map(([kind, piece]) => (kind ? html("span", { class: `pl-${kind}` }, piece) : breakable(piece, BREAKS.code)));
      line.append(html("span", { class: "pl-indent" }, indent), ...pieces.flat(), "\n");
      this.lines.set(at, line);
    }
    this.code.replaceChildren(...this.lines.values());
  }
}

// --- the player ------------------------------------------------------------------------------------------

// Shows a scene in `host`. Returns {node, index, goto(frame, {animate}), play(), pause(), lock(), unlock(), destroy()}.
// While it is locked nobody but `goto` leaves the frame. `heading` is the element that holds the title.
export function createPlayer(host, data, { start = 0, heading = "span" } = {}) {
  const timeline = new Timeline(data);
  const uid = uniqueId();
  const stage = new Stage(timeline, uid);
  const source = new SourcePane(timeline);
  const abort = new AbortController();
  const { signal } = abort;
  const last = timeline.length - 1;
  const reduced = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");
  const kinds = Object.entries(data.event_names ?? {});
  let index = -1;
  let timer = null;
  let speed = 1;

  const button = (action, label, key, iconName = action) =>
    html("button", { type: "button", class: "pl-button", "data-action": action, "aria-label": label, title: key ? `${label} (${key})` : label }, icon(iconName));
  const buttons = {
    first: button("first", "First frame", "Home"),
    back: button("back", "Back one frame", "←"),
    play: button("play", "Play", "Space"),
    next: button("next", "Next frame", "→"),
    last: button("last", "Last frame", "End"),
  };
  buttons.play.classList.add("is-main");
  const scrubber = html("input", { type: "range", class: "pl-scrubber", min: 0, max: last, step: 1, value: 0, "aria-label": "Frame", "data-action": "scrub" });
  const marks = html("div", { class: "pl-marks", "aria-hidden": "true" });
  const count = html("span", { class: "pl-count", "data-testid": "count" });
  const kindSelect = html("select", { class: "pl-select", "aria-label": "Kind of event to go to", "data-action": "event-kind" }, ...kinds.map(([kind, word]) => html("option", { value: kind }, word)));
  const nextEvent = html("button", { type: "button", class: "pl-button is-wide", "data-action": "next-event" }, "next");
  const speedSelect = html("select", { class: "pl-select", "aria-label": "Speed", title: "Speed", "data-action": "speed" }, ...SPEEDS.map((value) => html("option", { value, selected: value === 1 }, `${value}×`)));
  const change = html("strong");
  const detail = html("span");
  const caption = html("div", { class: "pl-caption", id: `${uid}-caption`, role: "status", "aria-live": "polite", "aria-atomic": "true", "data-testid": "caption" }, change, " ", detail);
  const subtitle = html("span", { class: "pl-subtitle", "data-testid": "subtitle" });
  const beats = timeline.beats().length > 1 ? timeline.beats() : [];
  const beatButtons = beats.map(([beat, at]) => html("button", { type: "button", class: "pl-beat", "data-action": "beat", "data-beat": beat, "data-to": at }, beat));
  const transport = html(
    "div", { class: "pl-transport", role: "group", "aria-label": "Playback" },
    html("div", { class: "pl-buttons" }, ...Object.values(buttons)),
    html("div", { class: "pl-track" }, scrubber, marks),
    count,
    kinds.length ? html("div", { class: "pl-jump" }, nextEvent, kindSelect) : "",
    speedSelect,
  );
  const beatBar = beats.length ? html("nav", { class: "pl-beats", "aria-label": "Beats of the step" }, ...beatButtons) : "";
  const stageBox = html("div", { class: "pl-stage-box" }, stage.node);
  const root = html(
    "section",
    { class: "pagedlab", tabindex: "0", "aria-label": `${data.title}: a scene in ${timeline.length} frames`, "data-pagedlab-player": data.name, "data-lm-suppress-shortcuts": "", "data-frames": timeline.length },
    html("header", { class: "pl-head" }, html(heading, { class: "pl-title" }, data.title), subtitle, beatBar),
    html("div", { class: "pl-main" }, stageBox, source.node),
    caption,
    transport,
  );
  stage.node.setAttribute("aria-labelledby", `${uid}-caption`);
  for (let at = 0; at <= last; at += 1) {
    const { event } = timeline.frame(at);
    if (!event) continue;
    const mark = html("i", { "data-event": event });
    mark.style.setProperty("--pl-at", last ? at / last : 0);
    marks.append(mark);
  }

  function goto(target, { animate } = {}) {
    const to = Math.max(0, Math.min(last, target));
    if (to === index) return;
    const moving = (animate ?? Math.abs(to - index) === 1) && index >= 0 && !reduced?.matches;
    index = to;
    root.classList.toggle("pl-cut", !moving);
    if (!moving) stage.settle();
    stage.show(index, moving);
    const frame = timeline.frame(index);
    source.show(frame);
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
  }

  function updateJump() {
    if (!kinds.length) return;
    const word = data.event_names[kindSelect.value];
    const at = timeline.nextOf(kindSelect.value, index);
    nextEvent.setAttribute("aria-disabled", String(at < 0));
    nextEvent.setAttribute("aria-label", `Next ${word}`);
    nextEvent.title = at < 0 ? `No ${word} after this frame` : `Next ${word}: frame ${at + 1}`;
    for (const mark of marks.children) mark.classList.toggle("is-picked", mark.dataset.event === kindSelect.value);
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
    goto(index + 1);
    return setPlaying(index < last);
  }

  function play() {
    if (index === last) goto(0);
    else goto(index + 1);
    setPlaying(index < last);
  }

  const pause = () => setPlaying(false);
  const isLocked = () => root.classList.contains("is-locked");

  function setLocked(locked) {
    pause();
    root.classList.toggle("is-locked", locked);
    if (beatBar) beatBar.inert = locked;
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
  };

  root.addEventListener("click", (event) => {
    const element = event.target.closest("button[data-action]");
    if (!element || !root.contains(element) || !actions[element.dataset.action] || isLocked()) return;
    if (element.dataset.action !== "play") pause();
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

  const keys = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last" };
  root.addEventListener("keydown", (event) => {
    keepKeys(!(event.ctrlKey || event.metaKey));
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation(); // a notebook would take the key for itself
    if (isLocked() || event.target.closest("select, input:not([type=range])")) return;
    if (event.target === stageBox && event.key.startsWith("Arrow")) return; // it scrolls
    if (keys[event.key]) {
      event.preventDefault();
      pause();
      actions[keys[event.key]]();
    } else if (event.key === " " && !event.target.closest("button")) {
      event.preventDefault();
      actions.play();
    }
  }, { signal });
  // A click on the stage brings the keyboard here.
  stage.node.addEventListener("pointerdown", () => root.focus({ preventScroll: true }), { signal });

  host.append(root);
  goto(start, { animate: false });
  // A stage wider than its box scrolls; then the keyboard has to reach it.
  function fitStage() {
    const wide = stageBox.scrollWidth > stageBox.clientWidth;
    for (const [name, value] of Object.entries({ tabindex: "0", role: "region", "aria-label": "Stage; the arrow keys scroll it" })) {
      if (wide) stageBox.setAttribute(name, value);
      else stageBox.removeAttribute(name);
    }
  }

  if (globalThis.ResizeObserver) {
    const observer = new ResizeObserver(() => {
      source.show(timeline.frame(index)); // the lit line can only be scrolled to when the pane has a size
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
  const player = createPlayer(host, data, { start: question.ask_frame, heading });
  player.lock();
  const choices = question.choices.map((choice, at) =>
    html("label", { class: "pl-choice" }, html("input", { type: "radio", name: uid, value: at, "data-choice": choice }), html("span", {}, choice)));
  const input = html("input", { type: "text", inputmode: "numeric", autocomplete: "off", class: "pl-number", "aria-label": "Your number", "data-testid": "number" });
  const check = html("button", { type: "submit", class: "pl-button is-wide is-main", "data-action": "check" }, "Check");
  const reveal = html("button", { type: "button", class: "pl-button is-wide", "data-action": "reveal" }, "Show me");
  const again = html("button", { type: "button", class: "pl-button is-wide", "data-action": "ask-again", hidden: true }, "Ask me again");
  const verdict = html("div", { class: "pl-verdict", role: "status", "aria-live": "polite", "data-testid": "verdict" });
  const form = html(
    "form", { class: "pl-question", "data-pagedlab-question": question.kind, "data-state": "asking", novalidate: true },
    html("fieldset", { class: "pl-fieldset" },
      html("legend", { class: "pl-prompt", "data-testid": "prompt" }, html("span", { class: "pl-tag" }, "Predict"), " ", question.prompt),
      question.kind === "choice" ? html("div", { class: "pl-choices" }, ...choices) : html("div", { class: "pl-choices" }, input)),
    html("div", { class: "pl-answers" }, check, reveal, again, verdict),
  );
  player.node.append(form);

  function say(kind, head, reason) {
    verdict.dataset.verdict = kind;
    verdict.replaceChildren(html("strong", {}, head), ` ${reason}`);
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

  // Play on, frame by frame, to the frame that shows the answer.
  function walk() {
    if (player.index >= question.frame) return;
    player.goto(player.index + 1, { animate: true });
    timer = setTimeout(walk, 700);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const picked = form.querySelector("input[type=radio]:checked");
    const given = question.kind === "number" ? input.value : picked?.dataset.choice;
    const result = judge(question, given);
    for (const label of choices) label.classList.toggle("is-wrong", !result.right && label.firstElementChild === picked);
    if (result.invalid) say("invalid", "", result.reason);
    else if (result.right) {
      say("right", "Right.", result.reason);
      show();
      again.focus({ preventScroll: true });
    } else say("wrong", "Not quite.", result.reason);
  }, { signal });
  reveal.addEventListener("click", () => {
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
    (question.kind === "number" ? input : choices[0].firstElementChild).focus({ preventScroll: true });
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

// `payload` is {scene, question?}.
export function mount(host, payload, { heading } = {}) {
  const { scene, question } = payload;
  return question ? createPrediction(host, scene, question, { heading }) : createPlayer(host, scene, { heading });
}

// In the exported page: the data stands in the page; a frame inside a notebook takes on its theme and grows to fit.
export function boot(host, payload) {
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
  const fit = () => {
    const height = Math.ceil(view.node.getBoundingClientRect().height) + 2;
    if (height > 10) frame.style.height = `${height}px`;
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
  new ResizeObserver(fit).observe(view.node);
  return view;
}

// anywidget's interface: each view is a player of its own; what it returns is called when the view goes away.
export default {
  render({ model, el }) {
    const payload = model.get("payload");
    const view = mount(el, payload);
    return () => view.destroy();
  },
};
