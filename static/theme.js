// A classic script, run before the first paint: the stored theme, or else the system's.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("ddtree-theme");
  } catch {
    // Storage may be forbidden; the system's preference then stands.
  }
  if (theme !== "light" && theme !== "dark") {
    theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.dataset.theme = theme;
})();
