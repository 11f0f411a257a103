// The player's pure parts.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "vitest";

import * as player from "../../pagedlab/widgets/player.js";

const text = readFileSync(new URL("../../pagedlab/widgets/player.js", import.meta.url), "utf8");

function scene(frames) {
  return { format: "pagedlab-scene", version: 1, name: "t", title: "T", width: 10, height: 10, bodies: [], frames, sources: {}, event_names: {} };
}

const moving = Array.from({ length: 200 }, (_, at) => ({
  id: String(at),
  change: "x",
  event: at % 7 === 3 ? "RowMoved" : undefined,
  beat: at < 100 ? "schedule" : "prepare",
  set: at === 0 ? [["a", 0, 0, 0], ["b", 0, 5, 5]] : [["a", 0, at, 0]],
  drop: at === 50 ? ["b"] : undefined,
}));

test("a frame is the same whichever way it is reached", () => {
  const forwards = new player.Timeline(scene(moving));
  const all = moving.map((_, at) => JSON.stringify([...forwards.stage(at)]));
  const jumps = new player.Timeline(scene(moving));
  for (const at of [199, 0, 120, 49, 50, 51, 50, 49, 198, 33, 32, 31]) {
    assert.equal(JSON.stringify([...jumps.stage(at)]), all[at]);
  }
  assert.ok(jumps.keyframes.size <= 66);
});

test("what is dropped is gone, and a stage handed out does not change later", () => {
  const timeline = new player.Timeline(scene(moving));
  const before = timeline.stage(49);
  assert.ok(!timeline.stage(50).has("b"));
  assert.ok(before.has("b"));
  assert.equal(timeline.stage(10).get("a").x, 10);
});

test("the next event of a kind and the beats are found", () => {
  const timeline = new player.Timeline(scene(moving));
  assert.equal(timeline.nextOf("RowMoved", -1), 3);
  assert.equal(timeline.nextOf("RowMoved", 3), 10);
  assert.equal(timeline.nextOf("RowMoved", 199), -1);
  assert.deepEqual(timeline.beats(), [["schedule", 0], ["prepare", 100]]);
});

test("data that is no scene is refused", () => {
  assert.throws(() => new player.Timeline({ format: "other" }), /not a pagedlab scene/);
});

test("colour and pattern together tell 35 requests apart", () => {
  const looks = new Set(Array.from({ length: 35 }, (_, at) => player.colourOf(at) + player.patternOf(at)));
  assert.equal(looks.size, 35);
});

test("an arrow ends where it should and bends to the right", () => {
  const { path, head } = player.arrowPath([100, 200, 100, 50, 20]);
  assert.match(path, /^M100 200Q140 125 /);
  assert.match(head, /^M100 50L/);
});

test("Python is cut into pieces that give the line back", () => {
  let inside = "";
  const lines = ['def f(self) -> None:', '    """A doc', "    string.\"\"\"", "    return 'a # b' # c", "x = 'open"];
  for (const line of lines) {
    const result = player.highlight(line, inside);
    assert.equal(result.pieces.map(([, piece]) => piece).join(""), line);
    inside = result.inside;
  }
  assert.deepEqual(player.highlight("    return x  # why").pieces.map(([kind]) => kind).filter(Boolean), ["keyword", "comment"]);
  assert.equal(player.highlight('    """A doc').inside, '"""');
});

test("an answer is judged, with the reason for just this mistake", () => {
  const number = { kind: "number", answer: "8", reasons: { 13: "the whole prompt" }, explanation: "min(13, 8)" };
  assert.deepEqual(player.judge(number, " 08 "), { right: true, reason: "min(13, 8)" });
  assert.deepEqual(player.judge(number, "13"), { right: false, reason: "the whole prompt" });
  assert.match(player.judge(number, "5").reason, /Look at the frame/);
  assert.equal(player.judge(number, "eight").invalid, true);
  const choice = { kind: "choice", answer: "a", reasons: { b: "no" }, explanation: "yes" };
  assert.deepEqual(player.judge(choice, "b"), { right: false, reason: "no" });
  assert.deepEqual(player.judge(choice, "a"), { right: true, reason: "yes" });
  assert.equal(player.judge(choice, undefined).invalid, true);
});

test("a longer caption stays longer", () => {
  assert.ok(player.readingTime({ change: "x".repeat(100) }) > player.readingTime({ change: "x" }));
  assert.ok(player.readingTime({ change: "x".repeat(9999) }) <= 7000);
});

test("nothing in the module can end the page's script element", () => {
  assert.ok(!/<\/script|<!--/i.test(text));
  assert.ok(!/innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(/.test(text), "text is never markup");
  assert.ok(!/https?:\/\/(?!www\.w3\.org)/.test(text), "nothing from the network");
});

const source = [
  "@property",
  "def schedule(",
  "    self, limit: int = 4,  # at most",
  ") -> None:",
  '    """Share out one step\'s budget.',
  "",
  "    More of it.",
  '    """',
  '    text = """not',
  '    a docstring"""',
  "    return text",
];

test("of a docstring only the first line is shown, and lines keep their place", () => {
  const shown = player.folded(source);
  assert.deepEqual(shown.map((line) => line.at), [0, 1, 2, 3, 4, 8, 9, 10]);
  assert.equal(shown[4].text, '    """Share out one step\'s budget.\u00a0…"""');
  assert.equal(shown[4].hidden, 3);
  for (const { at, text, hidden } of shown) if (!hidden) assert.equal(text, source[at]);
});

test("a function without a docstring of several lines stays whole", () => {
  for (const lines of [["def f():", '    """One line."""', "    pass"], ["def f():", "    pass"], ["x = 1"], ["def f():"], []]) {
    assert.deepEqual(player.folded(lines).map((line) => line.text), lines);
  }
  const late = ["def f():", '    """', "    First.", '    """', "    pass"];
  assert.deepEqual(player.folded(late).map((line) => line.text), ["def f():", '    """First.\u00a0…"""', "    pass"]);
});
