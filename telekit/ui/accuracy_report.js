// The page of a comparison: the table shows what the charts select. Text goes in as text, never as HTML.
const SHOWN = 500;
const RANK = { error: 0, warning: 1, skip: 2, pass: 3 };
const spec = JSON.parse(document.getElementById("spec").textContent);
const rows = spec.datasets.rows;
const state = { span: null, results: null, words: "" };

function cell(row, text, kind) {
  const td = document.createElement("td");
  td.textContent = text;
  if (kind) td.className = kind;
  row.append(td);
}

function draw() {
  const [low, high] = state.span ?? [-Infinity, Infinity];
  const found = rows.filter((r) => r.place >= low && r.place <= high
    && (!state.results || state.results.includes(r.result))
    && (r.name + r.target).toLowerCase().includes(state.words));
  found.sort((a, b) => RANK[a.result] - RANK[b.result] || a.place - b.place);
  const body = document.getElementById("rows");
  body.replaceChildren(...found.slice(0, SHOWN).map((r) => {
    const line = document.createElement("tr");
    const other = r.target && r.golden && r.target !== r.golden ? `${r.golden} (target: ${r.target})` : r.name;
    cell(line, other);
    cell(line, r.result, r.result);
    cell(line, r.error === null ? "" : r.error.toPrecision(4));
    cell(line, r.why);
    cell(line, r.figures);
    return line;
  }));
  const more = found.length > SHOWN ? `, the first ${SHOWN} shown` : "";
  document.getElementById("count").textContent = `${found.length} of ${rows.length} rows${more}`;
}

document.getElementById("search").addEventListener("input", (event) => {
  state.words = event.target.value.toLowerCase();
  draw();
});
vegaEmbed("#chart", spec, { actions: { export: true, source: false, compiled: false, editor: false } }).then(({ view }) => {
  view.addSignalListener("brush", (_, value) => { state.span = value.place ?? null; draw(); });
  view.addSignalListener("chosen", (_, value) => { state.results = value.result ?? null; draw(); });
  globalThis.report = { view, state };
});
draw();
