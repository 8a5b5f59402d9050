// Traces as files: export the run shown, import one by button or by dropping it on the page.

import { $, el, handle } from "../core/dom.js";
import { importTrace, perfettoUrl, traceUrl } from "../core/api.js";
import { onTouch } from "../core/schedule.js";
import { setError, store } from "../core/store.js";
import { openFile } from "./paste.js";

const exportButton = handle("export");
const input = handle("file");
const zone = $("#dropzone");

let watch = () => {};

/** Let the browser save what an address answers with; the server names the file unless `name` does. */
export function save(url, name = "") {
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

const exportRun = () => save(traceUrl(store.run.id), `${store.run.id}.json`);

/** Give a file to the server; only when it took it does the page show it. */
async function open(file) {
  setError(null);
  try {
    const { run_id } = await importTrace(file);
    watch(run_id);
  } catch (fault) {
    setError({ message: `${file.name} was not imported: ${fault.message}` });
  }
}

/** Where the Inspector is open everything is for it, and elsewhere what can be no trace. */
const toInspect = (file) =>
  store.tab === "inspect" || handle("paste-dialog").open || /\.(npz|npy|safetensors|pt|pth|pkl|pickle)$/i.test(file.name);

function carriesFile(event) {
  return [...(event.dataTransfer?.types ?? [])].includes("Files");
}

export function startFiles(watchRun) {
  watch = watchRun;
  exportButton.addEventListener("click", exportRun);
  handle("perfetto").addEventListener("click", () => save(perfettoUrl(store.run.id)));
  handle("import").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    const [file] = input.files;
    if (file) open(file);
    input.value = ""; // the same file may be chosen again
  });
  addEventListener("dragover", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    zone.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) zone.hidden = true;
  });
  addEventListener("drop", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    zone.hidden = true;
    const [file] = event.dataTransfer.files;
    if (file) (toInspect(file) ? openFile : open)(file);
  });
  onTouch(["run", "steps"], () => {
    for (const button of [exportButton, handle("perfetto")]) button.disabled = !store.run || store.run.newest < 0;
  });
}
