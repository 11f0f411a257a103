// The pure parts of grids: what cells look like in each frame, where they lie, where a key takes the cursor.
import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";
import { test } from "vitest";

import * as player from "../../pagedlab/widgets/player.js";

const COUNT = 50;
const grid = { noun: "block", count: COUNT, kinds: [["free", "", "free"], ["owned", "#", "in use"]], looks: "0 1.0 1.7 1", legend: [["free", "free"]] };

// Frame after frame a run of cells takes another look.
const frames = Array.from({ length: 150 }, (_, at) => {
  const first = (7 * at) % 45;
  return { id: String(at), change: "x", cells: at % 5 === 4 ? undefined : `${at % 4}:${first}-${first + 3} ${first + 5};${(at + 1) % 4}:${(first + 20) % 45}` };
});

// The slow and obvious way: from the beginning, cell by cell.
function naive(index) {
  const looks = new Array(COUNT).fill(0);
  for (const { cells } of frames.slice(0, index + 1)) {
    for (const part of (cells ?? "").split(";").filter(Boolean)) {
      const [look, runs] = part.split(":");
      for (const run of runs.split(" ")) {
        const [first, last = first] = run.split("-").map(Number);
        for (let cell = first; cell <= last; cell += 1) looks[cell] = Number(look);
      }
    }
  }
  return looks;
}

test("a look is its kind and its owner", () => {
  const { looks } = new player.Cells({ grid, frames });
  assert.deepEqual(looks[0], { style: "free", owner: null, mark: "", title: "free" });
  assert.deepEqual(looks[2], { style: "owned", owner: 7, mark: "#", title: "in use" });
  assert.deepEqual(looks[3], { style: "owned", owner: null, mark: "#", title: "in use" });
});

test("the cells of a frame are the same whichever way it is reached", () => {
  const forwards = new player.Cells({ grid, frames });
  frames.forEach((_, at) => assert.deepEqual([...forwards.at(at)], naive(at)));
  const jumps = new player.Cells({ grid, frames });
  for (const at of [149, 0, 64, 63, 65, 32, 31, 33, 0, 1, 149, 148, 100]) assert.deepEqual([...jumps.at(at)], naive(at));
  assert.ok(jumps.keyframes.size <= 150 / 32 + 1);
});

test("cells that were handed out do not change later", () => {
  const cells = new player.Cells({ grid, frames });
  const before = cells.at(3);
  const copy = [...before];
  cells.at(4);
  cells.at(140);
  assert.deepEqual([...before], copy);
});

test("what a frame changes is told in order, and nothing of the first", () => {
  const cells = new player.Cells({ grid, frames });
  assert.deepEqual(cells.changedIn(0), []);
  assert.deepEqual(cells.changedIn(1), [7, 8, 9, 10, 12, 27]);
  assert.deepEqual(cells.changedIn(4), []);
});

test("a cell's history is the frames that change it", () => {
  const cells = new player.Cells({ grid, frames });
  const changes = frames.flatMap((_, at) => (at === 0 ? [] : cells.changedIn(at).includes(9) ? [at] : []));
  assert.deepEqual(cells.historyOf(9).filter((at) => at > 0), changes);
  assert.ok(changes.length > 3);
});

test("a cell has a key, and no other thing has one", () => {
  const cells = new player.Cells({ grid, frames });
  assert.equal(cells.numberOf("cell#17"), 17);
  for (const key of ["cell#50", "block:17", "", null, undefined]) assert.equal(cells.numberOf(key), -1);
});

test("cells fill the field and stay in it", () => {
  for (const [count, width, highest] of [[65, 700, 420], [4096, 660, 420], [16384, 660, 420], [100_000, 660, 620], [3, 700, 420], [4096, 300, 420]]) {
    const { columns, rows, size } = player.layOut(count, width, highest, 40);
    assert.ok(columns * rows >= count && (rows - 1) * columns < count, `${count}: no empty row`);
    assert.ok(columns * size <= width && rows * size <= highest, `${count}: inside`);
    const larger = size + 1;
    if (size < 40) assert.ok(Math.ceil(count / Math.floor(width / larger)) * larger > highest, `${count}: as large as can be`);
  }
  const { size, rows } = player.layOut(1_000_000, 300, 420, 40);
  assert.equal(size, 1, "too many for the field: a dot each, and higher");
  assert.ok(rows * 300 >= 1_000_000);
});

test("each cell is found at its middle, in any view", () => {
  const layout = { columns: 9, rows: 6 };
  for (const view of [{ size: 8, x: 0, y: 0 }, { size: 31, x: 40, y: 77 }]) {
    for (let cell = 0; cell < COUNT; cell += 1) {
      const px = ((cell % 9) + 0.5) * view.size - view.x;
      const py = (Math.floor(cell / 9) + 0.5) * view.size - view.y;
      assert.equal(player.cellAt(view, layout, COUNT, px, py), cell);
    }
    assert.equal(player.cellAt(view, layout, COUNT, 9 * view.size - view.x + 1, 1), -1, "beside the last column");
    assert.equal(player.cellAt(view, layout, COUNT, 8.5 * view.size - view.x, 5.5 * view.size - view.y), -1, "behind the last cell");
  }
});

test("zooming keeps what is under the pointer there", () => {
  const layout = { columns: 100, rows: 100 };
  const view = { size: 6, x: 120, y: 60 };
  const closer = player.zoomed(view, 24, 203, 111);
  assert.equal(player.cellAt(closer, layout, 10_000, 203, 111), player.cellAt(view, layout, 10_000, 203, 111));
  assert.deepEqual(player.zoomed(closer, 6, 203, 111), view);
});

test("a view shows nothing beyond the cells", () => {
  const layout = { columns: 10, rows: 10 };
  assert.deepEqual(player.within({ size: 20, x: -5, y: 900 }, layout, 150, 150), { size: 20, x: 0, y: 50 });
  assert.deepEqual(player.within({ size: 5, x: 30, y: 30 }, layout, 150, 150), { size: 5, x: 0, y: 0 });
});

test("keys move the cursor by one, by rows, to ends, and never out of the grid", () => {
  const after = (key, cell, ctrl = false) => player.cursorAfter(key, ctrl, cell, COUNT, 9, 3);
  assert.equal(after("ArrowRight", 8), 9);
  assert.equal(after("ArrowLeft", 0), 0);
  assert.equal(after("ArrowDown", 12), 21);
  assert.equal(after("ArrowDown", 48), 48);
  assert.equal(after("ArrowUp", 4), 4);
  assert.equal(after("Home", 13), 9);
  assert.equal(after("End", 13), 17);
  assert.equal(after("End", 47), 49);
  assert.equal(after("Home", 13, true), 0);
  assert.equal(after("End", 13, true), 49);
  assert.equal(after("PageDown", 4), 31);
  assert.equal(after("PageDown", 40), 49);
  assert.equal(after("PageDown", 44), 44);
  assert.equal(after("PageUp", 13), 4);
  assert.equal(after("x", 4), null);
  for (let cell = 0; cell < COUNT; cell += 1) {
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"]) {
      const to = after(key, cell);
      assert.ok(to >= 0 && to < COUNT, `${key} from ${cell} to ${to}`);
    }
  }
});

test("a picked object is judged, with the reason for just this one", () => {
  const question = { kind: "pick", fact: "block", answer: "7", reasons: { 0: "The null block." }, explanation: "The head." };
  assert.deepEqual(player.judge(question, " 7 "), { right: true, reason: "The head." });
  assert.deepEqual(player.judge(question, "0"), { right: false, reason: "The null block." });
  assert.match(player.judge(question, "12").reason, /^Not that one/);
  assert.deepEqual(player.judge(question, ""), { right: false, reason: "Click a block first, or type which.", invalid: true });
});

test("a payload that was compressed is read", async () => {
  const payload = { scene: { title: "שלום 🙂", frames: [1, 2, 3] } };
  const packed = deflateSync(JSON.stringify(payload)).toString("base64");
  assert.deepEqual(await player.unpack({ packed }), payload);
});
