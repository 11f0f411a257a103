// What players of a page share, what objects are, what is looped and what goes into a picture: the pure parts.
import assert from "node:assert/strict";
import { test } from "vitest";

import * as player from "../../pagedlab/widgets/player.js";

const frames = (...records) => records.map((record, at) => ({ id: String(at), record, change: "x" }));

test("a scene finds the moment of another at the same event, or the last one before it", () => {
  const step = new player.Course({ traces: ["t"], frames: frames(5, 9, 12, 12, 20) });
  const rows = new player.Course({ traces: ["t"], frames: frames(8, 10, 12, 30) });
  const found = [0, 1, 2, 3, 4].map((at) => rows.nearest(step.at(at)));
  assert.deepEqual(found, [0, 0, 2, 2, 2]);
  assert.deepEqual([0, 1, 2, 3].map((at) => step.nearest(rows.at(at))), [0, 1, 3, 4]);
});

test("two views of one scene are at the same frame, even where several frames show one event", () => {
  const [one, other] = [1, 2].map(() => new player.Course({ traces: ["t"], frames: frames(5, 9, 12, 12, 12) }));
  for (const at of [0, 1, 2, 3, 4]) assert.equal(other.nearest(one.at(at)), at);
});

test("scenes of different traces, and those of none, leave each other alone", () => {
  const one = new player.Course({ traces: ["t"], frames: frames(5, 9) });
  const other = new player.Course({ traces: ["u"], frames: frames(5, 9) });
  const bare = new player.Course({ frames: frames(5, 9, 10) });
  assert.equal(other.nearest(one.at(1)), -1);
  assert.equal(bare.nearest(one.at(1)), -1);
  assert.equal(one.nearest(bare.at(1)), -1);
});

test("of a scene of two traces each follows its own", () => {
  const both = new player.Course({
    traces: ["t", "u"],
    frames: [[0, 0], [1, 4], [0, 7], [1, 9]].map(([trace, record], at) => ({ id: String(at), trace, record })),
  });
  const [t, u] = ["t", "u"].map((trace) => new player.Course({ traces: [trace], frames: frames(0, 3, 5, 8, 9) }));
  assert.deepEqual([0, 1, 2, 3].map((at) => t.nearest(both.at(at))), [0, 0, 2, 2]);
  assert.deepEqual([1, 3].map((at) => u.nearest(both.at(at))), [1, 4]);
  assert.deepEqual([0, 1, 2, 4].map((at) => both.nearest(u.at(at))), [0, 0, 2, 3], "the last frame that u had by then");
});

function peer(page, traces) {
  const one = { traces, told: [], kin: 0 };
  one.light = (thing) => one.told.push(thing?.value ?? null);
  one.follow = (position) => one.told.push(position);
  one.meet = () => {
    one.kin = page.kinOf(one).length;
  };
  page.join(one);
  return one;
}

test("a page tells all of what is selected, newcomers too, and all others of where one is", () => {
  const document = {};
  const page = player.Page.of(document);
  assert.equal(player.Page.of(document), page, "one for a document, whoever asks");
  const [one, two] = [peer(page, ["t"]), peer(page, ["t", "u"])];
  page.select({ kind: "request", value: "A" }, one);
  page.lead(one, "here");
  const three = peer(page, ["v"]);
  assert.deepEqual([one.told, two.told, three.told], [[null, "A"], [null, "A", "here"], ["A"]]);
  assert.deepEqual([one.kin, two.kin, three.kin], [1, 1, 0]);
  page.leave(two);
  assert.deepEqual([page.players.length, one.kin], [2, 0]);
});

test("a thing is found where it is, where it is held and where it is listed", () => {
  const A = { kind: "request", value: "A" };
  assert.ok(player.isOf({ request: "A", row: 1 }, A));
  assert.ok(player.isOf({ block: 7, owner: "A", holders: 1 }, A));
  assert.ok(!player.isOf({ block: 7, owner: "B", holders: 1 }, A));
  assert.ok(player.isOf({ block: 7 }, { kind: "block", value: "7" }));
  assert.ok(player.isOf({ row: 0, blocks: "1 7 12" }, { kind: "block", value: "7" }));
  assert.ok(!player.isOf({ row: 0, blocks: "1 77 12" }, { kind: "block", value: "7" }));
  assert.ok(!player.isOf({ block: 7, owner: "", holders: 0 }, { kind: "request", value: "" }), "a free block is not of “”");
  assert.deepEqual(player.thingsOf({ row: 1, request: "A", tokens: 9 }), [A, { kind: "row", value: "1" }]);
  assert.deepEqual(player.thingsOf({ left: 3 }), []);
});

test("an object is called by its kind and its tooltip", () => {
  const body = (title) => [9, 9, 1, {}, [["text", 0, 0], ["box", 0, 0, 9, 9, "", "", null, title]]];
  assert.equal(player.calledBy("tok:A:0", body("A, position 0")), "token · A, position 0");
  assert.equal(player.calledBy("block:7", body("block 7: free")), "block 7: free");
  assert.equal(player.calledBy("budget", body(undefined)), "budget");
  assert.equal(player.calledBy("slot:A:10", body(undefined)), "slot · A 10");
  assert.equal(player.brief("x".repeat(10_000)).length, 80);
  assert.equal(player.brief("🙂".repeat(50), 50), `${"🙂".repeat(49)}…`, "no half of a character");
});

test("the history of an actor has the frames in which something happens to it", () => {
  const data = [
    { set: [["a", 0, 0, 0], ["b", 0, 0, 0]] }, {}, { set: [["a", 0, 5, 0]] }, { focus: ["a"] }, { drop: ["a"] }, { set: [["b", 1, 0, 0]] },
  ].map((frame, at) => ({ id: String(at), change: "x", ...frame }));
  const timeline = new player.Timeline({ format: "pagedlab-scene", version: 1, frames: data, bodies: [] });
  assert.deepEqual(timeline.historyOf("a"), [0, 2, 3, 4]);
  assert.deepEqual(timeline.historyOf("b"), [0, 5]);
  assert.deepEqual(timeline.historyOf("c"), []);
});

test("a loop goes from its end to its start, whichever was set first", () => {
  const loop = new player.Loop(9);
  assert.deepEqual([loop.after(3), loop.after(9)], [4, -1]);
  loop.from(4);
  assert.deepEqual([loop.start, loop.end, loop.after(9)], [4, 9, 4]);
  loop.to(6);
  assert.deepEqual([4, 5, 6, 8, 1].map((at) => loop.after(at)), [5, 6, 4, 4, 4]);
  loop.to(3);
  assert.deepEqual([loop.start, loop.end], [0, 3], "an end before the start begins anew");
  loop.from(7);
  assert.deepEqual([loop.start, loop.end], [7, 9]);
  loop.clear();
  assert.deepEqual([loop.isOn, loop.after(9)], [false, -1]);
});

test("a loop of one frame is refused, and what was there stays", () => {
  const loop = new player.Loop(9);
  loop.from(2);
  assert.deepEqual([loop.from(9), loop.to(0), loop.start, loop.end], [false, false, 2, 9]);
  assert.equal(new player.Loop(0).from(0), false);
});

test("a computed colour becomes one that every program knows", () => {
  assert.deepEqual(player.plainColour("rgb(10, 92, 199)"), ["#0a5cc7", 1]);
  assert.deepEqual(player.plainColour("rgba(0, 0, 0, 0.5)"), ["#000000", 0.5]);
  assert.deepEqual(player.plainColour("color(srgb 1 0.5 0 / 0.25)"), ["#ff8000", 0.25]);
  assert.deepEqual(player.plainColour("color(srgb 1.2 -0.1 0)"), ["#ff0000", 1]);
  assert.deepEqual(player.plainColour("none"), ["none", 1]);
});

test("what XML cannot hold is replaced, all else stays", () => {
  assert.equal(player.plainText("a\u0000\u0008b\ud800c\ufffe"), "a\ufffd\ufffdb\ufffdc\ufffd");
  const fine = "<img onerror> & \t\n שלום 🙂 \u202e";
  assert.equal(player.plainText(fine), fine);
});

test("a caption is broken into lines that fit, with nothing lost", () => {
  const measure = (piece, isBold) => [...piece].length * (isBold ? 2 : 1);
  const lines = player.wrap([["One two. ", true], ["three four five six seven", false]], 20, measure);
  assert.deepEqual(lines, [[["One two. ", true]], [["three four five six ", false]], [["seven", false]]]);
  for (const line of player.wrap([["x".repeat(45), false]], 20, measure)) assert.ok(measure(line[0][0], false) <= 20);
  const cut = player.wrap([["word ".repeat(200), false]], 20, measure, 3);
  assert.equal(cut.length, 3);
  assert.equal(cut[2].at(-1)[0], "…");
});
