/* Keeps the live part of a page fresh: fetches the page again and swaps the part in. It leaves the
   part alone while the page is hidden, or while text in it is selected or something is typed. */
"use strict";
(function () {
  const control = document.querySelector("[data-pgqueue-refresh]");
  const live = document.getElementById("pgqueue-live");
  if (!control || !live) { return; }

  const every = Number(control.dataset.pgqueueRefresh) * 1000;
  const age = control.querySelector("[data-pgqueue-age]");
  const button = control.querySelector("[data-pgqueue-stop]");
  let updated = Date.now();
  let due = updated + every;
  let running = true;
  let asking = false;
  let trouble = "";

  function busy() {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) { return true; }
    const active = document.activeElement;
    return Boolean(active) && active.matches("input, textarea, select, #pgqueue-live a, #pgqueue-live button");
  }

  async function refresh() {
    asking = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", headers: { "X-Requested-With": "pgqueue" } });
      if (!answer.ok) { throw new Error("the server answered " + answer.status); }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("pgqueue-live");
      if (!fresh) { throw new Error("you are no longer logged in"); }
      if (running && !document.hidden && !busy()) {
        live.replaceChildren(...document.adoptNode(fresh).childNodes);
        updated = Date.now();
      }
      trouble = "";
    } catch (error) {
      trouble = "; not refreshed: " + error.message;
    }
    due = Date.now() + every;
    asking = false;
    say();
  }

  function say() {
    const seconds = Math.max(0, Math.round((Date.now() - updated) / 1000));
    age.textContent = (running ? "updated " : "stopped, updated ") + seconds + " s ago" + trouble;
  }

  button.addEventListener("click", function () {
    running = !running;
    button.textContent = running ? "Stop" : "Go on";
    due = Date.now();
    say();
  });

  setInterval(function () {
    say();
    if (running && !asking && !document.hidden && !busy() && Date.now() >= due) { refresh(); }
  }, 1000);

  control.hidden = false;
  say();
})();
