// What the page remembers from visit to visit; storage may be forbidden, and then it remembers nothing.

export function stored(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

export function storing(key, value) {
  try {
    if (value == null) localStorage.removeItem(key);
    else localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // It then lasts as long as the page.
  }
}
