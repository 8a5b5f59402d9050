// Drawing: what changed is noted at once and drawn once a frame, so that frames from the server coalesce to
// the newest. A hidden page draws nothing and catches up when it is shown (browsers hold animation frames).

const parts = []; // {topics, draw}, in drawing order
const touched = new Set();
const SETTLED = 250; // ms without a drawing

const settlers = []; // what waits for a quiet moment
const later = []; // what measures or scrolls
let booked = false;
let restUntil = 0;
let drawing = false;
let quiet = 0;

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

/** Call `call` whenever nothing has been drawn for a moment: the time for what cannot be seen yet. */
export const onSettled = (call) => settlers.push(call);

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
  restUntil = now + (now - started) / 2; // a third of the time, at least, is the reader's and the decoder's
  clearTimeout(quiet);
  quiet = setTimeout(() => settlers.forEach((call) => call()), SETTLED);
}
