// A run being watched. Of every step a small outline is kept for as long as the page lives; whole steps are
// kept for the newest and the last visited ones, and fetched again when the reader goes further back: a page
// may watch thousands of steps.

import { fetchSteps } from "./api.js";
import { committedOrigin } from "./step.js";

const WHOLE_STEPS = 160; // kept in memory
const PAGE = 64; // steps fetched at once

const STAGES = ["draft", "build", "encode", "verify", "sample", "commit", "other", "total"];

function changeBetween(before, after) {
  const names = Object.keys(after).filter((name) => before[name] !== after[name]);
  return names.map((name) => ({ name, from: before[name], to: after[name] }));
}

function outlineOf(step) {
  const texts = step.committed?.texts ?? [];
  const accepted = Math.min(step.accept?.accept_token_num ?? 0, texts.length);
  return {
    index: step.index,
    texts,
    origins: texts.map((_, j) => committedOrigin(step, j)),
    accepted,
    committed: texts.length,
    lossy: step.settings.threshold_single < 1 || step.settings.threshold_acc < 1,
    failed: step.error !== null,
    settings: step.auto ? { ...step.settings, budget: "auto" } : step.settings, // as they were asked for
  };
}

export class Run {
  /** @param {object} started the frame of that name */
  constructor(started) {
    this.id = started.run_id;
    this.head = started;
    this.state = started.state;
    this.settings = started.settings;
    this.place = null;
    this.progress = null;
    this.pace = null;
    this.summary = null;
    this.outlines = [];
    this.ready = 0; // outlines 0..ready-1 are there
    this.whole = new Map(); // index -> step, in order of use
    this.sums = { steps: 0, committed: 0, accepted: 0, timed: Object.fromEntries(STAGES.map((s) => [s, 0])) };
    this.lossy = false;
    this.fetching = new Map();
  }

  get live() {
    return ["waiting", "prefill", "running", "paused"].includes(this.state);
  }

  /** Index of the newest step, -1 before the first. */
  get newest() {
    return this.outlines.length - 1;
  }

  add(step) {
    this.keep(step);
    if (this.outlines[step.index]) return;
    const outline = outlineOf(step);
    this.outlines[step.index] = outline;
    while (this.outlines[this.ready]) this.settle(this.ready++);
    const { sums } = this;
    sums.steps += 1;
    sums.committed += outline.committed;
    sums.accepted += outline.accepted;
    for (const stage of STAGES) sums.timed[stage] += step.timing_ms?.[stage] ?? 0;
    this.lossy ||= outline.lossy;
  }

  /** An outline whose predecessors are there: its settings are compared with theirs, equal ones shared. */
  settle(index) {
    const outline = this.outlines[index];
    const before = this.outlines[index - 1]?.settings;
    outline.changes = before ? changeBetween(before, outline.settings) : [];
    if (before && outline.changes.length === 0) outline.settings = before;
  }

  keep(step) {
    this.whole.delete(step.index);
    this.whole.set(step.index, step);
    if (this.whole.size > WHOLE_STEPS) this.whole.delete(this.whole.keys().next().value);
  }

  /** A whole step if it is at hand, else null; `fetch` brings it. */
  step(index) {
    const step = this.whole.get(index);
    if (step) this.keep(step);
    return step ?? null;
  }

  /** Fetch the step and its neighbours; resolves when they are at hand. */
  fetch(index) {
    const from = Math.max(0, index - PAGE / 2);
    const to = Math.min(this.newest, from + PAGE - 1);
    if (!this.fetching.has(from)) {
      this.fetching.set(
        from,
        this.fill(from, to).finally(() => this.fetching.delete(from)),
      );
    }
    return this.fetching.get(from);
  }

  /** Fetch steps from..to, both included: also what a slow viewer was not sent. A page may end early. */
  async fill(from, to) {
    for (let at = from; at <= to;) {
      const { steps } = await fetchSteps(this.id, at, Math.min(PAGE, to - at + 1));
      for (const step of steps) this.add(step);
      if (steps.length === 0) return;
      at += steps.length;
    }
  }
}
