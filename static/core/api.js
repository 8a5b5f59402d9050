// The HTTP API. Every refusal becomes an Error whose message is the server's own sentence.

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the server does not answer");
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  const body = await response.json().catch(() => ({}));
  const error = new Error(body.message ?? `the server answered ${response.status}`);
  throw Object.assign(error, { status: response.status });
}

const post = (path, body, type = "application/json") =>
  call(path, { method: "POST", headers: { "Content-Type": type }, body });

/** A page of the list: {search, sort, order, after, limit}. */
export const listRuns = (query = {}) => call(`/api/runs?${new URLSearchParams(query)}`);
/** What a run was forked from, what was forked from it, and where its text parts from its parent's. */
export const fetchLineage = (id) => call(`/api/runs/${encodeURIComponent(id)}/lineage`);
export const fetchRun = (id) => call(`/api/runs/${encodeURIComponent(id)}`);
/** New tags, new notes, or both. */
export const editRun = (id, edit) =>
  call(`/api/runs/${encodeURIComponent(id)}`, {
    method: "PATCH",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(edit),
  });
export const deleteRun = (id) => call(`/api/runs/${encodeURIComponent(id)}`, { method: "DELETE" });
export const restoreRun = (id) => call(`/api/runs/${encodeURIComponent(id)}/restore`, { method: "POST" });
export const runsFileUrl = (ids) => `/api/runs/export?ids=${ids.join(",")}`;
export const tableUrl = (query) => `/api/runs.csv?${new URLSearchParams(query)}`;
export const importTrace = (file) => post("/api/traces", file);
/** Read what was pasted or dropped: text or a file's bytes, with the file's name. */
export const inspect = (data, name) =>
  post(`/api/inspections?${new URLSearchParams({ name })}`, data, "application/octet-stream");
/** Start a check of a step: {draws, seed}; ask after it, cancel it. */
export const startCheck = (run, step, asked) =>
  post(`/api/runs/${encodeURIComponent(run)}/steps/${step}/lossless`, JSON.stringify(asked));
export const askCheck = (id) => call(`/api/checks/${id}`);
export const cancelCheck = (id) => call(`/api/checks/${id}`, { method: "DELETE" });
export const fetchInspected = (id, index) => call(`/api/inspections/${id}/trees/${index}`);
export const walkInspected = (id, index, coins) =>
  post(`/api/inspections/${id}/trees/${index}/walk`, JSON.stringify(coins));
export const perfettoUrl = (id) => `/api/runs/${encodeURIComponent(id)}/perfetto`;
export const traceUrl = (id) => `/api/runs/${encodeURIComponent(id)}/trace`;
/** What-if by budget and acceptance of the steps from..to, both included. */
export const fetchAnalysis = (id, from, to) =>
  call(`/api/runs/${encodeURIComponent(id)}/analysis?from=${from}&to=${to}`);
/** Steps of a run from index `from` on, at most `limit`. */
export const fetchSteps = (id, from, limit) =>
  call(`/api/runs/${encodeURIComponent(id)}/steps?from=${from}&limit=${limit}`);
export const startRace = (prompt, lanes) => post("/api/races", JSON.stringify({ prompt, lanes }));
export const stopRace = (id) => call(`/api/races/${encodeURIComponent(id)}/stop`, { method: "POST" });
export const listRaces = () => call("/api/races");
export const fetchRace = (id) => call(`/api/races/${encodeURIComponent(id)}`);
/** Texts, origins and measured times of a run's steps from index `from` on. */
export const fetchOutline = (id, from) => call(`/api/runs/${encodeURIComponent(id)}/outline?from=${from}`);
/** Figures of runs side by side, and where their texts part. */
export const fetchLanes = (ids) => call(`/api/lanes?${new URLSearchParams(ids.map((id) => ["run", id]))}`);
