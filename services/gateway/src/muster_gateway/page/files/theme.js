// Runs before the first paint, so that the page does not first flash in the other theme.
(function () {
  let stored = null;
  try {
    stored = localStorage.getItem("muster.theme");
  } catch (error) {
    // no storage in this browser: the system's choice counts
  }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
