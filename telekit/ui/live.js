// A chart is embedded once; afterwards only rows travel. The figure's data-drawn counts finished drawings.
const kit = () => (globalThis.__telekit ??= { waiting: [] });
const runtime = () => kit().embed
  ? Promise.resolve(kit().embed)
  : new Promise((ready) => kit().waiting.push(ready));

const isDark = () => document.body.dataset.jpThemeLight === "false";

// ipywidgets names a slider's handle and a dropdown for the eye only; say the same to a screen reader
function nameControls(panel) {
  for (const row of panel?.querySelectorAll(".widget-inline-hbox") ?? []) {
    const label = row.querySelector(".widget-label")?.textContent;
    for (const control of row.querySelectorAll("[role=slider], select, input"))
      if (label && !control.ariaLabel) control.ariaLabel = label;
  }
}

function render({ model, el }) {
  const figure = el.appendChild(document.createElement("figure"));
  const caption = figure.appendChild(document.createElement("figcaption"));
  const canvas = figure.appendChild(document.createElement("div"));
  figure.className = "telekit-chart";
  figure.setAttribute("role", "group");
  let api = null, shown = 0, busy = Promise.resolve(), fresh = false;
  const get = (key) => structuredClone(model.get(key));

  const tell = () => {
    caption.textContent = model.get("title");
    figure.setAttribute("aria-label", model.get("title") || get("spec").description || "chart");
    figure.classList.toggle("stale", model.get("stale"));
  };
  const embed = async () => {
    const vegaEmbed = await runtime();
    api?.finalize();
    api = await vegaEmbed(canvas, { ...get("spec"), datasets: get("datasets") }, {
      mode: "vega-lite", renderer: "svg", actions: false, config: get("looks")[isDark() ? "dark" : "light"],
      tooltip: { theme: isDark() ? "dark" : "light" },
    });
    nameControls(el.closest(".telekit-panel"));
  };
  const push = async () => {
    for (const [name, rows] of Object.entries(get("datasets"))) api.view.data(name, rows);
    await api.view.runAsync();
  };
  const step = (work) => (busy = busy.then(work)
    .catch((error) => { canvas.textContent = `This chart could not be drawn: ${error.message}`; })
    .then(() => { tell(); figure.dataset.drawn = ++shown; }));

  // both change events of one message fire before the microtask: decide there whether to embed or to push
  const changed = () => queueMicrotask(() => {
    const work = fresh || !api ? embed : push;
    fresh = false;
    step(work);
  });
  for (const event of ["change:spec", "change:laid_out"]) model.on(event, () => { fresh = true; changed(); });
  model.on("change:datasets", changed);
  model.on("change:title", tell);
  model.on("change:stale", tell);
  const theme = new MutationObserver(() => step(embed));
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  tell();
  step(embed);
  return () => { theme.disconnect(); api?.finalize(); };
}

export default { render };
