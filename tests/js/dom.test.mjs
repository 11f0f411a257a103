// @vitest-environment happy-dom
// The player in a DOM: what its buttons, keys and answers do to the page.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test, vi } from "vitest";

import { Page, createPlayer, createPrediction, mount } from "../../pagedlab/widgets/player.js";

const HOSTILE = "<img src=x onerror=alert(1)>";
const row = (name, place) => [60, 20, 1, { request: name, row: place }, [["chip", 0, 0, 60, 20, name, "", 0]]];
const hole = [60, 20, 0, {}, [["box", 0, 0, 60, 20, "", "hole"]]];

// A is in row 0 and leaves; the other moves from row 1 into its place.
const scene = {
  format: "pagedlab-scene",
  version: 1,
  name: "tiny",
  title: "Tiny",
  width: 100,
  height: 60,
  requests: ["A", HOSTILE],
  bodies: [row("A", 0), row(HOSTILE, 1), row(HOSTILE, 0), hole],
  frames: [
    { id: "0", record: 1, change: "Two rows.", set: [["row:A", 0, 0, 0], ["row:B", 1, 0, 30]] },
    { id: "1", record: 2, change: "A leaves.", detail: "A hole.", event: "RowRemoved", drop: ["row:A"], set: [["hole", 3, 0, 0]], source: ["f", 8] },
    { id: "2", record: 3, change: "B moves.", event: "RowMoved", drop: ["hole"], set: [["row:B", 2, 0, 0]], focus: ["row:B"], arrows: [[0, 30, 0, 0, 9]], source: ["f", 9] },
  ],
  sources: { f: { file: "batch.py", name: "condense", first_line: 7, lines: ["def condense(self):", "    remove()", "    move()"], vllm: null } },
  event_names: { RowRemoved: "removal", RowMoved: "move" },
  questions: [],
  traces: ["t"],
};
const question = {
  kind: "choice", prompt: "Who moves?", choices: ["A", "B"], answer: "B", reasons: { A: "A has left." }, explanation: "The last row.", ask_frame: 1, frame: 2,
};

let views = [];

function show(make, ...given) {
  const view = make(document.body.appendChild(document.createElement("div")), ...given);
  views.push(view);
  return view;
}

const find = (view, selector) => view.node.querySelector(selector);
const press = (view, action) => find(view, `[data-action=${action}]`).click();
const key = (view, name) => view.node.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const caption = (view) => find(view, "[data-testid=caption]").textContent;
const drawn = (view) => [...view.node.querySelectorAll(".pl-stage > g")].map((group) => group.outerHTML).join("") + caption(view);

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("matchMedia", () => ({ matches: true, addEventListener() {} })); // motion is to be reduced
});

afterEach(() => {
  for (const view of views) view.destroy();
  views = [];
  assert.deepEqual([document.querySelectorAll("[data-pagedlab-player]").length, Page.of(document).players.length], [0, 0]);
  document.body.replaceChildren();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

test("Next shows the frames in order, and Back restores each of them", () => {
  const view = show(createPlayer, scene);
  const seen = [drawn(view)];
  for (const { change, detail = "" } of scene.frames.slice(1)) {
    press(view, "next");
    assert.equal(caption(view), `${change} ${detail}`);
    seen.push(drawn(view));
  }
  assert.equal(new Set(seen).size, 3);
  assert.equal(find(view, "[data-action=next]").getAttribute("aria-disabled"), "true");
  for (const expected of seen.slice(0, -1).reverse()) {
    press(view, "back");
    assert.equal(drawn(view), expected);
  }
});

test("an actor keeps its node when it moves", () => {
  const view = show(createPlayer, scene);
  const node = find(view, "[data-key='row:B']");
  assert.equal(node.style.transform, "translate(0px, 30px)");
  press(view, "last");
  assert.equal(find(view, "[data-key='row:B']"), node);
  assert.deepEqual([node.style.transform, node.dataset.row], ["translate(0px, 0px)", "0"]);
  assert.deepEqual([node.querySelectorAll(".pl-ring").length, view.node.querySelectorAll(".pl-arrow").length], [1, 1]);
  press(view, "first");
  assert.deepEqual([node.style.transform, node.dataset.row, node.querySelectorAll(".pl-ring").length], ["translate(0px, 30px)", "1", 0]);
});

test("the caption is read out, by whoever leads", () => {
  const [one, other] = [show(createPlayer, scene), show(createPlayer, scene)];
  press(one, "next");
  assert.deepEqual([one.index, other.index], [1, 1]);
  const live = (view) => find(view, "[data-testid=caption]").getAttribute("aria-live");
  assert.deepEqual([live(one), live(other)], ["polite", "off"]);
  press(other, "link");
  press(other, "next");
  assert.deepEqual([one.index, other.index], [1, 2]);
});

test("keys step, and no notebook gets them", () => {
  const view = show(createPlayer, scene);
  const outside = vi.fn();
  document.body.addEventListener("keydown", outside);
  for (const [name, index] of [["ArrowRight", 1], ["End", 2], ["ArrowLeft", 1], ["Home", 0], ["ArrowLeft", 0]]) {
    key(view, name);
    assert.equal(view.index, index, name);
  }
  assert.equal(outside.mock.calls.length, 0);
  document.body.removeEventListener("keydown", outside);
});

test("it plays to its end, each caption as long as it takes to read", () => {
  const view = show(createPlayer, scene);
  key(view, " ");
  assert.equal(view.index, 1);
  vi.advanceTimersByTime(1000);
  assert.equal(view.index, 1, "nobody reads so fast");
  vi.advanceTimersByTime(7000);
  assert.equal(view.index, 2);
  assert.equal(find(view, "[data-action=play]").getAttribute("aria-label"), "Play");
  assert.equal(vi.getTimerCount(), 0);
});

test("the line that runs is lit, and stays in view when none does", () => {
  const view = show(createPlayer, scene);
  const lit = () => find(view, ".pl-line.is-now")?.textContent.trim();
  assert.equal(lit(), undefined);
  press(view, "next");
  assert.equal(lit(), "remove()");
  press(view, "next");
  assert.equal(lit(), "move()");
  press(view, "first");
  assert.deepEqual([lit(), view.node.querySelectorAll(".pl-line").length], [undefined, 3]);
});

test("a request that is clicked lights wherever it is, whatever it is called", () => {
  const [one, other] = [show(createPlayer, scene), show(createPlayer, { ...scene, traces: ["u"] })];
  find(one, "[data-key='row:B'] text").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const lit = (view) => [...view.node.querySelectorAll(".pl-glow")].map((glow) => glow.parentNode.dataset.key);
  assert.deepEqual([lit(one), lit(other)], [["row:B"], ["row:B"]]);
  assert.equal(document.querySelectorAll("img").length, 0);
  assert.ok(find(one, "[data-testid=facts]").textContent.includes(HOSTILE));
  const moments = [...one.node.querySelectorAll("[data-testid=history] button")];
  assert.deepEqual(moments.map((button) => button.dataset.to), ["0", "2"]);
  find(one, "[data-action=close-object]").click();
  assert.deepEqual([lit(one), lit(other)], [[], []]);
});

test("a wrong answer gets its reason, the right one plays on, and each is told once", () => {
  const view = show(createPrediction, scene, question);
  const form = find(view, "form");
  const told = [];
  form.addEventListener("pagedlab-answer", ({ detail }) => told.push(detail.right));
  const check = (choice) => {
    find(view, `[data-choice=${choice}]`).checked = true;
    form.dispatchEvent(new Event("submit", { cancelable: true }));
    return find(view, "[data-testid=verdict]").textContent;
  };
  press(view, "last");
  key(view, "End");
  assert.equal(view.player.index, 1, "it waits for an answer");
  assert.equal(check("A"), "Not quite. A has left.");
  assert.equal(check("B"), "Right. The last row.");
  assert.deepEqual(told, [false, true]);
  assert.equal(view.player.index, 2);
  press(view, "ask-again");
  assert.deepEqual([view.player.index, form.dataset.state], [1, "asking"]);
});

test("data that is no scene leaves the page as it was", () => {
  const host = document.body.appendChild(document.createElement("div"));
  assert.throws(() => mount(host, { scene: { format: "other" } }), /not a pagedlab scene/);
  assert.equal(host.childElementCount, 0);
});
