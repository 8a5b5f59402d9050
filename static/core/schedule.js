// Drawing: what changed is noted at once and drawn once a frame, so that frames from the server coalesce to
// the newest. A hidden page draws nothing and catches up when it is shown (browsers hold animation frames).

const parts = []; // {topics, draw}, in drawing order
const touched = new Set();
const later = []; // what measures or scrolls
let booked = false;
let restUntil = 0;
let drawing = false;

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

/** Call when everything of this frame has been drawn: measuring in between would lay the page out twice. */
export function afterDrawing(call) {
  later.push(call);
  if (!drawing) touch();
}

function flush() {
  booked = false;
  drawing = true;
  const started = performance.now();
  const changed = new Set(touched);
  touched.clear();
  for (const { topics, draw } of parts) {
    if (topics.some((topic) => changed.has(topic))) draw(changed);
  }
  for (const call of later.splice(0)) call();
  drawing = false;
  const now = performance.now();
  restUntil = now + (now - started); // at least half of the time belongs to the reader and to the decoder
}
