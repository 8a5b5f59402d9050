// The tabs of the centre. A button names its view in data-tab; a panel names the views it shows in data-tabs
// (several tabs may share one). The view "step" is the centre itself: tree, walk and table.

import { $, $$ } from "../core/dom.js";
import { onTouch } from "../core/schedule.js";
import { setTab, store } from "../core/store.js";

const list = $('.tabs[role="tablist"]');
const tabs = $$('[role="tab"]', list);
const panels = $$("[data-tabs]");
const centre = $(".centre");

function drawTabs() {
  const { tab } = store;
  for (const button of tabs) {
    const on = button.dataset.tab === tab;
    button.setAttribute("aria-selected", String(on));
    button.tabIndex = on ? 0 : -1;
  }
  centre.dataset.tab = tab;
  for (const panel of panels) {
    const on = panel.dataset.tabs.split(" ").includes(tab);
    panel.hidden = !on;
    if (on) panel.setAttribute("aria-labelledby", `tab-${tab}`);
  }
}

/** Show the view of this name and put the focus on its tab. */
export function openTab(name) {
  setTab(name);
  tabs.find((button) => button.dataset.tab === name)?.focus();
}

for (const button of tabs) button.addEventListener("click", () => setTab(button.dataset.tab));
list.addEventListener("keydown", (event) => {
  const at = tabs.findIndex((tab) => tab.dataset.tab === store.tab);
  const to = {
    ArrowLeft: (at - 1 + tabs.length) % tabs.length,
    ArrowRight: (at + 1) % tabs.length,
    Home: 0,
    End: tabs.length - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  openTab(tabs[to].dataset.tab);
});
onTouch(["tab"], drawTabs);
