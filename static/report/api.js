// The HTTP API of a report: what the page asks for comes out of the file; the rest there is no server for.

import { analysis, runId, trace } from "./embedded.js";

export * from "original:core/api.js";

const none = (what) => Promise.reject(new Error(`a report has no ${what}`));

export const fetchSteps = (id, from, limit) =>
  Promise.resolve({ steps: trace.steps.slice(from, from + limit) });
export const fetchAnalysis = (id, from, to) =>
  analysis && from === analysis.first && to === analysis.last
    ? Promise.resolve(analysis)
    : none("analysis of a part of the steps");
export const fetchLineage = () =>
  Promise.resolve({ run_id: runId, parent: null, step: null, compared: 0, index: null, mine: null, theirs: null, forks: [] });
export const listRuns = () => none("list of runs");
export const listRaces = () => none("races");

const file = new Blob([JSON.stringify(trace)], { type: "application/json" });
const url = URL.createObjectURL(file);
export const traceUrl = () => url;
