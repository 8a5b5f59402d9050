// The header: what decodes, whether it is lossless, whether the server is there; the theme; alerts.

import { $, el, handle, setText } from "../core/dom.js";
import { onTouch, touch } from "../core/schedule.js";
import { isLossy, setError, store } from "../core/store.js";
import { formLossy } from "./controls.js";

const connection = handle("connection");
const alert = handle("error");
let ticking = 0;

function drawEngine() {
  const source = store.run?.head ?? store.model;
  const engine = source?.engine;
  handle("engine").hidden = !engine;
  if (!engine) return;
  $("#chip-target").replaceChildren(source.target.name);
  const drafter = store.run
    ? store.run.head.drafter
    : store.model.drafters.find((d) => d.kind === store.model.default_drafter);
  $("#chip-drafter").replaceChildren(...drafterWords(drafter));
  const threads = `${engine.threads} thread${engine.threads === 1 ? "" : "s"}`;
  $("#chip-device").replaceChildren(
    engine.device,
    el("span", { class: "sub" }, ` ${engine.dtype}, ${threads}`),
  );
  for (const chip of ["target", "drafter", "device"])
    $(`#chip-${chip}`).title = $(`#chip-${chip}`).textContent;
}

function drafterWords(drafter) {
  const kind = { hybrid: "hybrid", dflash: "dflash", ngram: "n-gram" }[drafter?.kind] ?? "none";
  return drafter?.name && drafter.name !== drafter.kind
    ? [kind, el("span", { class: "sub" }, ` ${drafter.name}`)]
    : [kind];
}

/** Why no trained drafter is used: said where nobody can miss it. */
function drawNotice() {
  const reasons = [store.run?.head.drafter, ...(store.model?.drafters ?? [])].map(
    (drafter) => drafter?.not_used,
  );
  const reason = reasons.find(Boolean) ?? null;
  const notes = (store.run?.head ?? store.model)?.target?.notes ?? [];
  const notice = handle("notice");
  notice.hidden = !reason;
  if (reason) notice.replaceChildren(el("b", {}, "The trained drafter is not used: "), reason);
  $("#chip-target").parentElement.title = notes.join("\n");
}

function drawLossy() {
  const lossy = isLossy(formLossy());
  const badge = handle("lossy");
  badge.dataset.state = lossy ? "lossy" : "lossless";
  setText(badge, badge.dataset.state);
  badge.title = lossy
    ? "A threshold is below 1: committed tokens are no exact samples of the target"
    : "Thresholds are 1: committed tokens are exact samples of the target";
}

function drawConnection() {
  clearTimeout(ticking);
  const { state, retryAt } = store.connection;
  connection.dataset.state = state;
  const words = $("span", connection);
  if (state === "open") return setText(words, "connected");
  if (state === "connecting") return setText(words, "connecting…");
  const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  setText(words, seconds ? `reconnecting in ${seconds} s` : "reconnecting…");
  ticking = setTimeout(() => touch("connection"), 500);
}

function drawError() {
  const { error } = store;
  alert.hidden = !error;
  if (error) $("p", alert).textContent = error.message;
}

function switchTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("ddtree-theme", dataset.theme);
  } catch {
    // Storage may be forbidden: the choice then lasts as long as the page.
  }
  touch("theme");
}

$("#theme").addEventListener("click", switchTheme);
$("button", alert).addEventListener("click", () => setError(null));
onTouch(["model", "run"], drawEngine);
onTouch(["model", "run"], drawNotice);
onTouch(["run", "steps", "settings", "form"], drawLossy);
onTouch(["connection"], drawConnection);
onTouch(["error"], drawError);
