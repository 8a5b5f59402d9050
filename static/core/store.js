// The state of the page, and the only place where it changes. Panes read it when they draw; topics tell them
// when: connection, model, run (head, state, summary), steps (a new outline), view (the step shown),
// node (the selected one), settings (in force), error, whatif (the marker), tab (what the centre shows),
// list (of stored runs).

import { Run } from "./run.js";
import { touch } from "./schedule.js";
import { telling, viewOf } from "./step.js";

export const store = {
  connection: { state: "connecting", retryAt: null },
  model: null, // the newest hello
  run: null,
  at: -1, // index of the step shown
  follow: true, // show every new step
  view: null, // what viewOf made of it; null: nothing to show, or on its way
  inspected: null, // the view of the Inspector's tree
  pasted: null, // the same while its tab is open: shown instead of a step
  selected: null, // node
  whatif: null, // budget of the what-if marker; null: as run
  tab: "step", // step | whatif | acceptance
  list: null, // the list of stored runs: {search, sort, order}; null: not shown
  error: null, // {message, field}
  received: 0, // when the newest frame came
};

export function setConnection(state, retryAt) {
  store.connection = { state, retryAt };
  touch("connection");
}

export function setModel(hello) {
  store.model = hello;
  touch("model");
}

export function setError(error) {
  store.error = error;
  touch("error");
}

/** The run of a `started` frame; a second one of the same run (after a reconnection) renews its head. */
export function watchRun(started) {
  if (store.run?.id === started.run_id) {
    Object.assign(store.run, { head: started, state: started.state, settings: started.settings });
  } else {
    store.run = new Run(started);
    store.follow = true;
    leaveInspector();
    store.whatif = null;
    show(-1);
  }
  setError(null);
  touch("run", "steps", "view", "settings");
}

/** Change what is known of the run being watched. */
export function updateRun(changes, ...topics) {
  Object.assign(store.run, changes);
  touch("run", ...topics);
}

export function addStep(step, received) {
  store.run.add(step);
  store.received = received;
  touch("steps");
  if (store.follow && step.index === store.run.newest) show(step.index);
}

/** Steps that came over HTTP were added to the run. */
export function stepsArrived() {
  touch("steps");
  if (store.follow && store.run.newest >= 0) show(store.run.newest);
}

function show(index) {
  store.at = index;
  const { run } = store;
  const step = index < 0 ? null : run.step(index);
  store.view = null;
  if (step) settle(viewOf(step));
  else if (index >= 0) fetchAndShow(run, index);
  touch("view");
}

function settle(view) {
  store.view = view;
  if (!store.pasted) store.selected = telling(view);
}

async function fetchAndShow(run, index) {
  try {
    await run.fetch(index);
  } catch (fault) {
    return setError({ message: `Step ${index} could not be fetched: ${fault.message}` });
  }
  const step = run.step(index);
  if (store.run !== run || store.at !== index || !step) return;
  settle(viewOf(step));
  touch("view");
}

/** The reader goes to a step; going to the newest one follows what comes. */
export function goTo(index, follow = false) {
  const { run } = store;
  leaveInspector();
  if (!run || run.newest < 0) return touch("view", "steps");
  const to = Math.min(Math.max(index, 0), run.newest);
  store.follow = follow || (run.live && to === run.newest);
  show(to);
  touch("steps");
}

export function setFollow(follow) {
  if (follow) goTo(store.run?.newest ?? 0, true);
  else store.follow = false;
  touch("steps");
}

/** Show the Inspector's tree (null: it has none): the same panes, without a run. `kept`: the same tree, walked
 * or encoded anew, so what is selected stays. */
export function showPasted(view, kept = false) {
  store.inspected = view;
  if (!kept && view) store.selected = view.size ? 1 : 0;
  if (store.tab === "inspect") store.pasted = view;
  else setTab("inspect");
  touch("view", "steps");
}

export const leavePasted = () => setTab("step");

/** Steps are shown, so the Inspector is not. */
function leaveInspector() {
  if (store.tab === "inspect") setTab("step");
}

/** Whether steps pass by: then only what can be seen is drawn, the rest in a quiet moment. */
export const passing = () => store.follow && !store.pasted && store.run?.state === "running";

/** What the tree, the walk and the table show. */
export const shownView = () => store.pasted ?? store.view;

export function selectNode(n) {
  if (n == null || n === store.selected) return;
  store.selected = n;
  touch("node");
}

/** Move the what-if marker; null: as run. It stays where it is from step to step. */
export function setWhatif(budget) {
  if (budget === store.whatif) return;
  store.whatif = budget;
  touch("whatif");
}

/** Show the list of stored runs as {search, sort, order}; null closes it. */
export function setList(list) {
  store.list = list;
  touch("list");
}

export function setTab(tab) {
  store.tab = tab;
  const pasted = tab === "inspect" ? store.inspected : null;
  if (pasted !== store.pasted) {
    store.pasted = pasted;
    const view = shownView();
    if (view) store.selected = pasted ? Math.min(1, view.size) : telling(view);
    touch("view", "steps", "node");
  }
  touch("tab", "size");
}

/** Whether what is shown leaves the target's distribution. */
export function isLossy(formLossy) {
  const { run } = store;
  if (!run) return formLossy;
  const { threshold_single, threshold_acc } = run.settings;
  return run.lossy || threshold_single < 1 || threshold_acc < 1 || run.summary?.lossy === true;
}
