// Tokens as people see them: literally. Space, newline, tab and characters that cannot be seen become quiet
// marks; bytes that are no text come from the server as <F0><9F>.

import { el } from "./dom.js";

const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/;
const MARKS = { "\n": "↵", "\t": "⇥", "\u00a0": "⍽" };

/** [{text, mark}]: runs of literal characters, and the marks between them. */
export function parts(text) {
  if (text === "") return [{ text: "∅", mark: true }];
  const out = [];
  const put = (piece, mark) => {
    const last = out.at(-1);
    if (last && last.mark === mark) last.text += piece;
    else out.push({ text: piece, mark });
  };
  const inner = { from: text.search(/[^ ]/), to: text.trimEnd().length };
  [...text].reduce((at, char) => {
    const edge = inner.from < 0 || at < inner.from || at >= inner.to;
    if (char === " " && edge) put("␣", true);
    else if (MARKS[char]) put(MARKS[char], true);
    else if (UNSEEN.test(char))
      put(`<U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`, true);
    else put(char, false);
    return at + char.length;
  }, 0);
  return out;
}

/** A token as one string, marks included. */
export const visible = (text) =>
  parts(text)
    .map((part) => part.text)
    .join("");

/** A token as an element, isolated so that right-to-left text disturbs nothing around it. */
export function tok(text, className = "tk") {
  const shown = parts(text).map((part) => (part.mark ? el("i", { class: "sp" }, part.text) : part.text));
  return el("bdi", { class: className }, ...shown);
}

/** A token in quotation marks. */
export const quoted = (text) => el("q", {}, tok(text));

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
/** Text for Plotly, which reads tags and entities in strings: after this it reads none. */
export const plotly = (text) => text.replace(/[&<>]/g, (char) => ENTITIES[char]);

/** A token cut to at most `length` characters, for a node. */
export function cut(shown, length) {
  let left = length;
  const out = [];
  for (const part of shown) {
    const chars = [...part.text];
    if (chars.length > left) {
      out.push({ ...part, text: chars.slice(0, Math.max(left - 1, 0)).join("") + "…" });
      return out;
    }
    out.push(part);
    left -= chars.length;
  }
  return out;
}
