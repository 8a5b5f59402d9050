// Undo and redo of settings, and presets: named sets of them, built in or the reader's own. A preset is one
// change; values typed or dragged one after the other into one field are one change, too.

import { $, el, handle } from "../core/dom.js";
import { stored, storing } from "../core/memory.js";
import { onTouch } from "../core/schedule.js";
import { applySettings, formValues, onSetting } from "./controls.js";

const ONE_CHANGE = 1000; // ms between values of one field that count as one change
const KEPT = 200;
const KEY = "ddtree-presets";

/** Of the settings a preset holds; the rest belong to a run. */
const HELD = [
  "method",
  "drafter",
  "budget",
  "block_size",
  "temperature",
  "top_p",
  "top_k",
  "threshold_single",
  "threshold_acc",
  "max_new_tokens",
];
const LOSSLESS = { threshold_single: 1, threshold_acc: 1 };
const WHOLE = { top_p: 1, top_k: 0, ...LOSSLESS };
const BUILT_IN = {
  "Greedy tree": { method: "ddtree", budget: 15, block_size: null, temperature: 0, ...WHOLE },
  "Sampled tree": { method: "ddtree", budget: 15, block_size: null, temperature: 1, ...WHOLE },
  "Wide tree": { method: "ddtree", budget: 63, block_size: null, ...LOSSLESS },
  Chain: { method: "chain", budget: 7, block_size: null, ...LOSSLESS },
  "Plain decoding": { method: "autoregressive", ...LOSSLESS },
};

const past = []; // {from, to, at}: values by name
const future = [];
const known = new Map(Object.entries(formValues()));
const undoButton = handle("undo");
const redoButton = handle("redo");
const presets = handle("preset");
const nameField = handle("preset-name");
const said = $("#history-said");

let applying = false;

const own = () => stored(KEY) ?? {};
const words = (values) =>
  Object.entries(values)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value ?? "default"}`)
    .join(", ");

function draw() {
  undoButton.disabled = past.length === 0;
  redoButton.disabled = future.length === 0;
  const [back, again] = [past.at(-1), future.at(-1)];
  undoButton.title = back ? `Undo: back to ${words(back.from)} (Ctrl Z)` : "Nothing to undo";
  redoButton.title = again ? `Redo: ${words(again.to)} (Ctrl Shift Z)` : "Nothing to redo";
}

function note(name, value) {
  const from = known.get(name);
  known.set(name, value);
  if (applying || from === value) return;
  const last = past.at(-1);
  const now = performance.now();
  if (last && last.name === name && now - last.at < ONE_CHANGE) {
    last.to[name] = value;
    last.at = now;
  } else past.push({ name, from: { [name]: from }, to: { [name]: value }, at: now });
  if (past.length > KEPT) past.shift();
  future.length = 0;
  presets.value = "";
  draw();
}

function put(values) {
  applying = true;
  applySettings(values);
  applying = false;
}

function move(from, to, side, verb) {
  const change = from.pop();
  if (!change) return;
  put(change[side]);
  to.push({ ...change, at: -Infinity });
  presets.value = "";
  said.textContent = `${verb}: ${words(change[side])}`;
  draw();
}

export const undo = () => move(past, future, "from", "Undone");
export const redo = () => move(future, past, "to", "Redone");

/** Change several settings at once, as one step of the history. */
export function changeTogether(values) {
  const now = formValues();
  const names = Object.keys(values).filter((name) => now[name] !== values[name]);
  if (names.length === 0) return;
  const pick = (all) => Object.fromEntries(names.map((name) => [name, all[name]]));
  past.push({ name: null, from: pick(now), to: pick(values), at: -Infinity });
  future.length = 0;
  put(pick(values));
  draw();
}

// ---- presets ----

function fillPresets(chosen = "") {
  const group = (label, names) =>
    names.length ? [el("optgroup", { label }, ...names.map((name) => el("option", { value: name }, name)))] : [];
  presets.replaceChildren(
    el("option", { value: "" }, "choose…"),
    ...group("built in", Object.keys(BUILT_IN)),
    ...group("your own", Object.keys(own())),
  );
  presets.value = chosen;
  handle("preset-delete").hidden = !(chosen in own());
}

function choose() {
  const name = presets.value;
  handle("preset-delete").hidden = !(name in own());
  const values = own()[name] ?? BUILT_IN[name];
  if (values) changeTogether(values);
  presets.value = name;
}

function save() {
  const name = nameField.value.trim();
  const wrong = name === "" ? "Give the preset a name." : name in BUILT_IN ? `“${name}” is a built-in preset: choose another name.` : "";
  nameField.setCustomValidity(wrong);
  if (wrong) return nameField.reportValidity();
  const now = formValues();
  storing(KEY, { ...own(), [name]: Object.fromEntries(HELD.map((held) => [held, now[held]])) });
  nameField.value = "";
  $("#preset-save").open = false;
  fillPresets(name);
  said.textContent = `Preset ${name} saved`;
}

function forget() {
  const { [presets.value]: gone, ...rest } = own();
  if (gone) storing(KEY, rest);
  fillPresets();
  presets.focus();
}

undoButton.addEventListener("click", undo);
redoButton.addEventListener("click", redo);
presets.addEventListener("change", choose);
handle("preset-save").addEventListener("click", save);
handle("preset-delete").addEventListener("click", forget);
nameField.addEventListener("input", () => nameField.setCustomValidity(""));
nameField.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  save();
});
onSetting(note);
onTouch(["settings", "model"], () => {
  // what the server says is in force, and defaults that came with the model, are nobody's change here
  for (const [name, value] of Object.entries(formValues())) known.set(name, value);
});
fillPresets();
draw();
