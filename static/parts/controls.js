// The settings: a slider and an exact field each, or a choice. The live ones are sent while a run goes on, so
// that the next step obeys; the others (with a lock) wait for the next run. Limits are the server's: whatever
// is typed is sent, and its sentence stands at the field.

import { $, $$, handle } from "../core/dom.js";
import { count } from "../core/format.js";
import { onTouch, touch } from "../core/schedule.js";
import { setError, store } from "../core/store.js";
import { isAuto, onSwitch, setAuto } from "./auto-switch.js";

const TYPING = 250; // ms of rest before a typed value counts
const DRAGGING = 60; // ms between values sent while a slider moves
const BUCKETS = [1, 8, 16, 32, 64, 128, 256]; // rows of a pass; a row more costs the next bucket

const fields = new Map($$("[data-setting]").map((field) => [field.dataset.setting, field]));
const sliderOf = (name) => handle(`${name}-slider`);
const isFixed = (name) => "fixed" in fields.get(name).dataset;

let send = () => false; // set by startControls
const sent = new Map(); // name -> JSON of the value the server has
const timers = new Map();

function parsed(text) {
  const number = Number(text);
  return text.trim() === "" ? null : Number.isNaN(number) ? text : number;
}

/** A seed past 2^53 goes as a string: JSON's numbers are doubles. */
function seedOf(text) {
  const digits = text.trim();
  if (!/^\d+$/.test(digits)) return digits || null;
  return Number.isSafeInteger(Number(digits)) ? Number(digits) : digits;
}

function read(name) {
  const field = fields.get(name);
  switch (field.dataset.kind) {
    case "number":
      if (isAuto(name)) return "auto";
      return field.validity.badInput ? "" : parsed(field.value);
    case "seed":
      return seedOf(field.value);
    case "text":
      return field.value.trim() === "" ? null : field.value;
    case "switch":
      return field.indeterminate || field.disabled ? null : field.checked;
    default:
      return $("input:checked", field)?.value ?? null;
  }
}

/** Show a value that the server says is in force. */
function write(name, value) {
  const field = fields.get(name);
  if (field.contains(document.activeElement) || sliderOf(name)?.matches(":active")) return;
  if (field.dataset.kind === "choice") {
    const option = $(`input[value="${CSS.escape(String(value))}"]`, field);
    if (option) option.checked = true;
  } else if (field.dataset.kind === "number" && value != null) {
    setAuto(name, value === "auto");
    if (value === "auto") return;
    field.value = value;
    sliderOf(name).value = value;
  }
}

/** All settings for a start; null means "choose for me" and is left to the server. */
export function allSettings() {
  const all = [...fields.keys()].map((name) => [name, read(name)]);
  return Object.fromEntries(all.filter(([, value]) => value !== null));
}

export const formLossy = () =>
  [read("threshold_single"), read("threshold_acc")].some((value) => typeof value === "number" && value < 1);

const listeners = [];
/** Call `listener(name, value)` whenever a setting of the form has changed. */
export const onSetting = (listener) => listeners.push(listener);

/** What stands in the form, by name; null is "choose for me". */
export const formValues = () => Object.fromEntries([...fields.keys()].map((name) => [name, read(name)]));

/** Put values into the form, as a person would. */
export function applySettings(values) {
  for (const [name, value] of Object.entries(values)) {
    put(name, value);
    settleDown(name, 0, () => changed(name));
  }
}

function put(name, value) {
  const field = fields.get(name);
  const slider = sliderOf(name);
  if (field.dataset.kind === "choice") {
    for (const option of $$("input", field)) option.checked = option.value === String(value);
  } else if (field.dataset.kind === "switch") field.checked = Boolean(value);
  else {
    setAuto(name, value === "auto");
    if (value === "auto") return;
    field.value = value ?? "";
  }
  if (slider) slider.value = value ?? field.placeholder;
}

function changed(name) {
  showError(name, null);
  for (const listener of listeners) listener(name, read(name));
  touch("form");
  if (isFixed(name) || !store.run?.live) return;
  const value = read(name);
  if (sent.get(name) === JSON.stringify(value)) return;
  if (send({ type: "update", settings: { [name]: value } })) sent.set(name, JSON.stringify(value));
}

/** Call after `wait` ms without another call of that key; `wait` 0 calls now. */
export function settleDown(key, wait, call) {
  clearTimeout(timers.get(key));
  timers.delete(key);
  if (wait === 0) call();
  else
    timers.set(
      key,
      setTimeout(() => timers.delete(key) && call(), wait),
    );
}

/** While a slider moves: the newest value at once, then at most one in DRAGGING ms. */
function throttle(key, call) {
  if (timers.has(key)) return;
  timers.set(
    key,
    setTimeout(() => timers.delete(key) && call(), DRAGGING),
  );
}

function showError(name, message) {
  const place = document.getElementById(`e-${name}`);
  if (!place) return false;
  place.hidden = !message;
  place.textContent = message ?? "";
  const field = fields.get(name) ?? handle(name);
  if (message) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
  place.closest("details")?.toggleAttribute("open", Boolean(message) || place.closest("details").open);
  if (!message && store.error?.field === name) setError(null);
  return true;
}

/** The server refused a value: its sentence stands at the field, and what is in force is known again. */
export function refuse({ field, message }) {
  if (!field) return;
  sent.delete(field);
  showError(field, message);
}

function connectFields() {
  for (const [name, field] of fields) {
    const slider = sliderOf(name);
    slider?.addEventListener("input", () => {
      setAuto(name, false);
      field.value = slider.value;
      throttle(name, () => changed(name));
    });
    slider?.addEventListener("change", () => settleDown(name, 0, () => changed(name)));
    onSwitch(name, () => settleDown(name, 0, () => changed(name)));
    field.addEventListener("input", () => {
      if (field.value !== "") setAuto(name, false);
      if (slider) slider.value = field.value === "" ? field.placeholder || slider.value : field.value;
      settleDown(name, TYPING, () => changed(name));
    });
    field.addEventListener("change", () => settleDown(name, 0, () => changed(name)));
  }
}

/** What is loaded decides which drafters there are and how deep they draft. */
function drawChoices() {
  const { model } = store;
  if (!model?.target) return;
  const kinds = new Map(model.drafters.map((drafter) => [drafter.kind, drafter]));
  const reason = model.drafters.find((drafter) => drafter.not_used)?.not_used ?? "not loaded";
  for (const option of $$("input", fields.get("drafter"))) {
    option.disabled = !kinds.has(option.value);
    if (option.disabled) option.parentElement.title = reason;
  }
  const chosen = read("drafter") ?? model.default_drafter;
  if (chosen && read("drafter") === null) write("drafter", chosen);
  const deepest = kinds.get(chosen)?.block_size;
  const block = fields.get("block_size");
  if (deepest) {
    block.placeholder = deepest;
    sliderOf("block_size").max = deepest;
    if (block.value === "") sliderOf("block_size").value = deepest;
  }
  const chat = fields.get("chat");
  if (chat.disabled || chat.indeterminate || !chat.dataset.known) {
    chat.disabled = !model.has_chat_template;
    chat.checked = Boolean(model.has_chat_template);
    chat.dataset.known = "1";
  }
}

function drawForm() {
  const budget = read("method") === "autoregressive" ? 0 : read("method") === "chain" ? null : read("budget");
  const rows = typeof budget === "number" ? budget + 1 : null;
  const bucket = BUCKETS.find((size) => size >= rows);
  $("#bucket").textContent =
    rows === null
      ? ""
      : bucket === rows
        ? `${rows} rows: bucket full`
        : bucket
          ? `${rows} of ${bucket} rows`
          : `${rows} rows`;
  const lossy = formLossy() ? "lossy" : "lossless";
  $("#threshold-badge").dataset.state = lossy;
  $("#threshold-badge").textContent = lossy;
  $("#system-aside").textContent = fields.get("system").value.trim() || "the template’s own";
  const prompt = store.run?.head.prompt;
  const counted = prompt && prompt.text === handle("prompt").value;
  $("#prompt-count").textContent = counted ? count(prompt.token_ids.length, "token") : "";
  drawSeed();
}

function drawSeed() {
  const seed = store.run?.head.settings.seed;
  const field = fields.get("seed");
  field.placeholder = seed == null ? "drawn" : String(seed);
  const keep = $("#keep-seed");
  keep.hidden = seed == null && field.value === "";
  keep.textContent = field.value === "" ? "keep" : "draw";
  keep.title =
    field.value === ""
      ? "use this run’s seed for the next run as well"
      : "let the next run draw its own seed";
}

function drawInForce() {
  const { run } = store;
  if (!run?.live || run.foreign) return;
  for (const name of fields.keys()) {
    if (isFixed(name) || timers.has(name)) continue;
    sent.set(name, JSON.stringify(run.settings[name]));
    if (name !== "block_size" || fields.get(name).value !== "") write(name, run.settings[name]);
  }
}

export function startControls(sender) {
  send = sender;
  connectFields();
  $("#keep-seed").addEventListener("click", () => {
    const field = fields.get("seed");
    field.value = field.value === "" ? String(store.run.head.settings.seed) : "";
    changed("seed");
  });
  onTouch(["model", "form"], drawChoices);
  onTouch(["settings"], drawInForce);
  onTouch(["form", "settings", "run"], drawForm);
  touch("form");
}
