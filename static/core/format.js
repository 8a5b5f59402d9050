// Numbers as text. A hyphen is the minus, so that a figure copied from the page is still a number.

export const NONE = "·";

export const fixed = (value, digits = 3) => (value == null ? NONE : value.toFixed(digits));

/** A probability: three digits, and neither "0.000" for what is not zero nor "1.000" for what is not one. */
export function prob(value) {
  if (value == null) return NONE;
  if (value === 0 || value === 1) return String(value);
  if (value < 0.0005) return value.toExponential(0);
  return value > 0.9995 ? (Math.floor(value * 1e4) / 1e4).toFixed(4) : value.toFixed(3);
}

/** Milliseconds: three figures are enough. */
export const millis = (ms) => (ms == null ? NONE : ms.toFixed(ms >= 100 ? 0 : ms >= 10 ? 1 : 2));

/** Several numbers that are compared with each other: as many digits as it takes to tell them apart. */
export function apart(...values) {
  const different = new Set(values).size;
  for (let digits = 3; digits < 9; digits++) {
    const shown = values.map((value) => (value < 0.0005 ? prob(value) : value.toFixed(digits)));
    if (new Set(shown).size === different) return shown;
  }
  return values.map(String);
}

export const count = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

/** A setting's value in a sentence. */
export const setting = (value) => (value == null ? "default" : String(value));
