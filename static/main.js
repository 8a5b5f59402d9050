// The page: frames come in, the store changes, panes draw. Panes draw in the order of these imports.

import { $, handle } from "./core/dom.js";
import { touch } from "./core/schedule.js";
import { Socket } from "./core/socket.js";
import {
  addStep,
  setConnection,
  setError,
  setModel,
  stepsArrived,
  store,
  updateRun,
  watchRun,
} from "./core/store.js";
import "./parts/tabs.js"; // first: what is hidden has no size
import "./panes/tree.js";
import "./panes/scrubber.js"; // plots before lists: a plot measures, and the lists would be laid out twice
import "./panes/walk.js";
import "./panes/nodes.js";
import "./panes/whatif.js";
import "./panes/why.js";
import "./panes/text.js";
import "./panes/tiles.js";
import "./panes/analysis.js";
import "./panes/encoding.js";
import "./panes/inspect.js";
import { startLanes } from "./panes/lanes.js";
import { forgetRun, linkedRun, startAddress, visit } from "./parts/address.js";
import { refuse, startControls } from "./parts/controls.js";
import { startRunbar } from "./parts/runbar.js";
import "./parts/header.js";
import "./parts/blank.js";
import "./parts/legend.js";
import { startFiles } from "./parts/files.js";
import { startPaste } from "./parts/paste.js";
import { startRuns } from "./parts/runs.js";
import { startLossless } from "./parts/lossless.js";
import "./parts/history.js";
import "./parts/race-form.js";
import "./parts/images.js";
import "./parts/lineage.js";
import "./parts/keys.js";
import "./parts/split.js";
import "./parts/terms.js";
import "./parts/tour.js";

const asked = new Set(); // runs that were opened, not started: the form's settings are not theirs

const FRAMES = {
  hello: (frame) => setModel(frame),
  started(frame) {
    store.starting = false;
    watchRun(frame);
    store.run.foreign = asked.has(frame.run_id);
    store.run.recorded ??= ["finished", "interrupted"].includes(frame.state);
    const prompt = handle("prompt");
    if (prompt.value === "") prompt.value = frame.prompt.text;
  },
  step: (frame, received) => addStep(frame.step, received),
  settings: ({ settings, pace }) => updateRun({ settings, pace }, "settings"),
  state: ({ state, place, progress }) => updateRun({ state, place, progress }),
  finished: ({ summary }) => updateRun({ state: "finished", summary }),
  async lagging({ run_id, from, to }) {
    const { run } = store;
    if (run?.id !== run_id) return;
    try {
      await run.fill(from, to);
      stepsArrived();
    } catch (fault) {
      setError({ message: `Steps ${from} to ${to} could not be fetched: ${fault.message}` });
    }
  },
  error(frame) {
    store.starting = false;
    setError(frame);
    refuse(frame);
    if (frame.code === "not_found") forgetRun();
    touch("run");
  },
};

function receive(frame, received) {
  const foreign = frame.run_id !== undefined && frame.type !== "started" && frame.run_id !== store.run?.id;
  if (!foreign) FRAMES[frame.type]?.(frame, received);
}

/** What a new connection asks for: the run that was being watched, from the step after the last one seen. */
function resume() {
  store.starting = false;
  const { run } = store;
  if (run) return { type: "watch", run_id: run.id, after: run.ready - 1 };
  const linked = linkedRun();
  if (!linked) return null;
  asked.add(linked);
  return { type: "watch", run_id: linked, after: -1 };
}

const socket = new Socket({ frame: receive, state: setConnection, resume });
const send = (message) => socket.send(message);

function watch(runId) {
  asked.add(runId);
  if (!send({ type: "watch", run_id: runId, after: -1 }))
    setError({ message: "Not connected: the run cannot be opened now." });
}

startControls(send);
startRunbar(send);
startFiles(watch);
startPaste();
startLossless();
startRuns(visit);
startLanes(watch);
startAddress(watch);
new ResizeObserver(() => touch("size")).observe($(".centre"));
touch("view", "steps", "run", "model", "connection", "theme", "tab");
