// Runs side by side: what is known of each, where its reader stands, and how the positions are linked. The
// replay clock is in measured time: a step's text appears when the lane's own steps have taken that long.

/** One run: its steps' texts and times, as far as they have come. */
export class Lane {
  constructor(run) {
    this.id = run.run_id;
    this.run = run;
    this.steps = []; // of the outline
    this.time = [0]; // [k]: ms the first k steps took
    this.tokens = [0]; // [k]: tokens the first k steps committed
    this.over = false; // every step has come
    this.at = 0; // steps shown
  }

  get length() {
    return this.steps.length;
  }

  add({ first, steps, total, state }) {
    for (const step of steps.slice(Math.max(this.length - first, 0))) {
      this.steps.push(step);
      this.time.push(this.time.at(-1) + (step.ms ?? 0));
      this.tokens.push(this.tokens.at(-1) + step.texts.length);
    }
    this.run.state = state;
    this.over = ["finished", "interrupted"].includes(state) && this.length >= total;
  }

  /** How many steps are over at a moment of measured time. */
  atTime(ms) {
    let k = this.at <= this.length && this.time[this.at] <= ms ? this.at : 0;
    while (k < this.length && this.time[k + 1] <= ms) k++;
    return k;
  }

  /** How many steps it took to commit so many tokens. */
  atToken(count) {
    const k = this.tokens.findIndex((committed) => committed >= count);
    return k < 0 ? this.length : k;
  }
}

/** The last moment that can be shown fairly: no further than the slowest lane's news. */
export function horizon(list) {
  const running = list.filter((lane) => !lane.over);
  const bounds = (running.length ? running : list).map((lane) => lane.time.at(-1));
  return running.length ? Math.min(...bounds) : Math.max(...bounds, 0);
}

/** Move lane `index` to `at` steps, and the others with it. */
export function moveTogether(list, index, at, link) {
  const moved = list[index];
  moved.at = Math.min(Math.max(at, 0), moved.length);
  for (const lane of list) {
    if (lane === moved || link === "none") continue;
    if (link === "time") lane.at = lane.atTime(moved.time[moved.at]);
    else if (link === "token") lane.at = lane.atToken(moved.tokens[moved.at]);
    else lane.at = Math.min(moved.at, lane.length);
  }
}
