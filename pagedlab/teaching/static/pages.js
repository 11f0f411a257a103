
// --- the page of a lesson: its players and its charts -----------------------------------------------------

const heldIn = (place) => JSON.parse(place.querySelector("script").textContent);

for (const place of document.querySelectorAll("[data-pagedlab-plays]")) {
  const held = heldIn(place);
  Promise.resolve(held.packed ? unpack(held) : held).then((payload) => mount(place, payload));
}
for (const place of document.querySelectorAll("[data-pagedlab-draws]")) {
  const { data, layout } = heldIn(place);
  globalThis.Plotly.newPlot(place, data, { ...layout, autosize: true }, { displayModeBar: false, responsive: true });
}
