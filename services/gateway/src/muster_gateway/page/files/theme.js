// Before the first paint: a stored choice must not flash the other one.
(function () {
  let stored = null;
  try {
    stored = localStorage.getItem("muster.theme");
  } catch (error) {
    // no storage in this browser: the system's choice it is
  }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
