// The websocket of a report: the trace in the file as the frames of a run that has ended.

import { runId, trace } from "./embedded.js";

const started = () => ({
  type: "started",
  seq: 0,
  run_id: runId,
  state: trace.summary ? "finished" : "interrupted",
  created_at: trace.created_at,
  prompt: trace.prompt,
  settings: trace.settings,
  drafter: trace.drafter,
  target: trace.target,
  engine: trace.engine,
  stop_token_ids: trace.stop_token_ids,
  forked_from: trace.forked_from ?? null,
  steps: trace.steps.length,
});

export class Socket {
  constructor({ frame, state }) {
    setTimeout(() => {
      state("open", null);
      const send = (one) => frame(one, performance.now());
      send(started());
      trace.steps.forEach((step, i) => send({ type: "step", seq: i + 1, run_id: runId, step }));
      const seq = trace.steps.length + 1;
      if (trace.summary) send({ type: "finished", seq, run_id: runId, summary: trace.summary });
    });
  }

  /** There is nobody to send to. */
  send() {
    return false;
  }
}
