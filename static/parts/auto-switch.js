// A number that may be "auto": a switch stands beside its slider. Pressed, the field is empty and the slider
// keeps the number that comes back when the switch is released.

import { handle } from "../core/dom.js";

const switchOf = (name) => handle(`${name}-auto`);

export const isAuto = (name) => switchOf(name)?.getAttribute("aria-pressed") === "true";

export function setAuto(name, on) {
  const button = switchOf(name);
  if (!button || on === isAuto(name)) return;
  const [field, slider] = [handle(name), handle(`${name}-slider`)];
  button.setAttribute("aria-pressed", String(on));
  field.placeholder = on ? "auto" : "";
  if (on) field.value = "";
  else if (field.value === "") field.value = slider.value;
  slider.classList.toggle("off", on);
}

/** Call `changed` when a person has pressed or released the switch of that setting, where it has one. */
export function onSwitch(name, changed) {
  switchOf(name)?.addEventListener("click", () => {
    setAuto(name, !isAuto(name));
    changed();
  });
}
