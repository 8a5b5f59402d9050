// One lane as it is read: what decodes, its text up to where the reader stands, its own scrubber.

import { el, handle, num, setText } from "../core/dom.js";
import { count, fixed, millis } from "../core/format.js";
import { literal } from "./text.js";

/** A lane's settings in a few words. */
export function laneWords({ method, drafter, budget }) {
  if (method === "autoregressive") return "autoregressive";
  const words = [method, drafter === "ngram" ? "n-gram" : drafter];
  if (budget != null) words.push(`budget ${budget}`);
  return words.filter(Boolean).join(" · ");
}

/** The settings of a run as listings say them; `settings` where they are known in full. */
export const wordsOf = (lane) => laneWords(lane.settings ?? { method: lane.run.method });

export class LaneView {
  /** @param {object} lane of core/lanes.js; `moved(at)`, `opened()`: what the reader asks for */
  constructor(lane, index, { moved, opened }) {
    this.lane = lane;
    this.groups = [];
    this.shown = 0; // groups that are not ahead
    const name = `lane ${index + 1}`;
    this.title = el("b", { class: "lanetitle" });
    this.facts = el("p", { class: "facts" });
    this.open = el("button", { type: "button", class: "quiet", title: "Show this run's step in the Step view" }, "Open");
    this.text = el("div", { class: "textbox", tabindex: 0, role: "region", "aria-label": `Text of ${name}` });
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      "aria-label": `Position in ${name}`,
      data: { testid: `lane-${index + 1}-at` },
    });
    this.root = el(
      "article",
      { class: "lane", "aria-label": name, data: { testid: `lane-${index + 1}`, run: lane.id } },
      el("div", { class: "lanehead" }, num(index + 1), this.title, this.open),
      this.facts,
      this.text,
      this.slider,
    );
    this.slider.addEventListener("input", () => moved(Number(this.slider.value)));
    this.open.addEventListener("click", opened);
    this.text.addEventListener("click", ({ target }) => {
      const step = target.closest("[data-step]")?.dataset.step;
      if (step !== undefined && getSelection().isCollapsed) moved(Number(step) + 1);
    });
  }

  append() {
    while (this.groups.length < this.lane.length) {
      const index = this.groups.length;
      const { texts, origins } = this.lane.steps[index];
      const group = el("span", { class: "step ahead", data: { group: index } });
      texts.forEach((text, j) =>
        group.append(el("span", { class: `t ${origins[j]}`, data: { step: index, origin: origins[j] } }, ...literal(text))),
      );
      this.groups.push(group);
      this.text.append(group);
    }
  }

  /** Mark the token of that index of the whole text as the first one that differs; null: none does. */
  mark(index) {
    const marked = this.text.querySelector(".parts");
    const token = index === null ? null : [...this.text.querySelectorAll(".t")][index];
    if (marked === token) return;
    marked?.classList.remove("parts");
    token?.classList.add("parts");
  }

  draw(playing) {
    const { lane } = this;
    this.append();
    for (; this.shown < lane.at; this.shown++) this.groups[this.shown].classList.remove("ahead");
    for (; this.shown > lane.at; this.shown--) this.groups[this.shown - 1].classList.add("ahead");
    this.groups.forEach((group, i) => group.classList.toggle("here", i === lane.at - 1 && !playing));
    this.root.toggleAttribute("data-playing", playing);
    this.root.dataset.at = lane.at;
    this.slider.max = lane.length;
    this.slider.value = lane.at;
    const [tokens, ms] = [lane.tokens[lane.at], lane.time[lane.at]];
    const speed = ms ? `${fixed((1000 * tokens) / ms, 1)} tok/s` : "";
    const words = [`${lane.at} of ${count(lane.length, "step")}`, count(tokens, "token"), `${millis(ms)} ms`, speed];
    setText(this.facts, words.filter(Boolean).join(" · "));
    this.slider.setAttribute("aria-valuetext", words.slice(0, 3).join(", "));
    setText(this.title, wordsOf(lane));
    if (playing) this.text.scrollTop = this.text.scrollHeight;
  }
}

/** The texts of two lanes part here: marks in both. */
export function markDifferences(views, differences) {
  const at = views.map(() => null);
  for (const { left, right, index } of differences) {
    if (index === null) continue;
    at[right] = index;
    at[left] = at[left] === null ? index : Math.min(at[left], index);
  }
  views.forEach((view, i) => view.mark(at[i]));
}

export const grid = handle("lane-grid");
