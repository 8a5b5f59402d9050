// Measuring a budget for real: the same prompt, settings and seed with another budget, on a connection of its
// own, so that the page goes on showing the run whose estimate it stands beside.

import { touch } from "../core/schedule.js";

const states = new Map(); // by run id

const NOTHING = { runs: [], at: null, error: null, socket: null, stop: null };

/** What is being measured for the run of this id: {runs, at: words, error, stop()}. */
export const measuring = (id) => states.get(id) ?? states.set(id, { ...NOTHING, runs: [] }).get(id);
/** [{budget, tau, tokens_per_second, run_id}] measured for the run of this id. */
export const measured = (id) => measuring(id).runs;

function end(state, error = null) {
  state.socket?.close();
  Object.assign(state, { socket: null, at: null, stop: null, error });
  touch("analysis");
}

/** @param {object} run whose settings in force are taken, but for the budget */
export function startMeasuring(run, budget) {
  const state = measuring(run.id);
  if (state.socket) return;
  const { head } = run;
  const settings = { ...run.outlines.at(-1).settings, budget, seed: head.settings.seed };
  for (const name of Object.keys(settings)) if (settings[name] === null) delete settings[name];
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(`${scheme}//${location.host}/ws/decode`);
  let runId = null;
  const stop = () => (runId ? socket.send(JSON.stringify({ type: "stop" })) : end(state));
  Object.assign(state, { socket, stop, at: `Measuring ${budget}…`, error: null });
  const frames = {
    hello: () => runId ?? socket.send(JSON.stringify({ type: "start", prompt: head.prompt.text, settings })),
    started: (frame) => (runId = frame.run_id),
    step: ({ step }) => (state.at = `Measuring ${budget}: step ${step.index}`),
    finished({ summary }) {
      if (summary.finish_reason !== "cancelled" && summary.finish_reason !== "error")
        state.runs.push({ budget, run_id: runId, ...summary });
      end(state, summary.finish_reason === "error" ? `The run with budget ${budget} failed.` : null);
    },
    error: ({ message }) => end(state, `Budget ${budget} was not measured: ${message}`),
  };
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    frames[frame.type]?.(frame);
    touch("analysis");
  };
  socket.onclose = () => state.socket === socket && end(state, `Budget ${budget} was not measured: the connection broke.`);
  touch("analysis");
}
