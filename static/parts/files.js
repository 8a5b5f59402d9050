// Traces as files: export the run shown, import one by button or by dropping it on the page.

import { $, el, handle } from "../core/dom.js";
import { importTrace, traceUrl } from "../core/api.js";
import { onTouch } from "../core/schedule.js";
import { setError, store } from "../core/store.js";

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

/** Give a file to the server; only when it took it does the page show it. */
const exportRun = () => save(traceUrl(store.run.id), `${store.run.id}.json`);

async function open(file) {
  setError(null);
  try {
    const { run_id } = await importTrace(file);
    watch(run_id);
  } catch (fault) {
    setError({ message: `${file.name} was not imported: ${fault.message}` });
  }
}

function carriesFile(event) {
  return [...(event.dataTransfer?.types ?? [])].includes("Files");
}

export function startFiles(watchRun) {
  watch = watchRun;
  exportButton.addEventListener("click", exportRun);
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
    if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
  });
  onTouch(["run", "steps"], () => (exportButton.disabled = !store.run || store.run.newest < 0));
}
