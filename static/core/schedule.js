// Drawing: what changed is noted at once and drawn once a frame, so that frames from the server coalesce to
// the newest. A hidden page draws nothing and catches up when it is shown (browsers hold animation frames).

const parts = []; // {topics, draw}, in drawing order
const touched = new Set();
let booked = false;
let restUntil = 0;

/** Call `draw(changed)` in the next frame after any of the topics was touched. */
export function onTouch(topics, draw) {
  parts.push({ topics, draw });
}

export function touch(...topics) {
  for (const topic of topics) touched.add(topic);
  if (booked) return;
  booked = true;
  const rest = restUntil - performance.now();
  if (rest > 1 && !document.hidden) setTimeout(() => requestAnimationFrame(flush), rest);
  else requestAnimationFrame(flush);
}

function flush() {
  booked = false;
  const started = performance.now();
  const changed = new Set(touched);
  touched.clear();
  for (const { topics, draw } of parts) {
    if (topics.some((topic) => changed.has(topic))) draw(changed);
  }
  const now = performance.now();
  restUntil = now + (now - started); // at least half of the time belongs to the reader and to the decoder
}
