// What a report carries: the run, its trace, and the analysis of all of its steps.

const read = (name) => JSON.parse(document.getElementById(`report-${name}`).textContent);

export const runId = read("run");
export const trace = read("trace");
export const analysis = read("analysis");
