/* Three things that pages do without a script, too, but less well: a list's checkbox for all of its rows,
   suggestions for each word of a search and not only for the first, and the live part of a page, which is fetched again and replaced. Refreshing pauses while the page
   is hidden, text in the part is selected, the table of a chart is open, or the user types. */
"use strict";
(function () {
  const all = document.querySelector("[data-pgqueue-all]");
  if (all) {
    all.hidden = false;
    all.addEventListener("change", function () {
      document.getElementsByName("_selected_action").forEach(function (box) { box.checked = all.checked; });
    });
  }

  const search = document.querySelector("[data-pgqueue-complete]");
  if (search && search.list) {
    const options = Array.from(search.list.options);
    const words = options.map(function (option) { return option.value; });
    search.addEventListener("input", function () {
      const before = search.value.replace(/\S*$/, "");
      options.forEach(function (option, place) { option.value = before + words[place]; });
    });
  }

  const control = document.querySelector("[data-pgqueue-refresh]");
  const live = document.getElementById("pgqueue-live");
  if (!control || !live) { return; }

  const every = Number(control.dataset.pgqueueRefresh) * 1000;
  const age = control.querySelector("[data-pgqueue-age]");
  const button = control.querySelector("[data-pgqueue-stop]");
  const stop = button.textContent;
  let updated = Date.now();
  let due = live.querySelector("form[data-pgqueue-drive]") ? updated : updated + every;
  let running = true;
  let asking = false;
  let trouble = "";

  function busy() {
    if (live.querySelector("figure details[open]")) { return true; }
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) { return true; }
    const active = document.activeElement;
    return Boolean(active) && active.matches("input, textarea, select, #pgqueue-live a, #pgqueue-live button");
  }

  async function refresh() {
    asking = true;
    try {
      // A bulk action's page has this form: posting it runs the next steps.
      const drive = live.querySelector("form[data-pgqueue-drive]");
      if (drive) { await fetch(drive.action, { method: "POST", body: new FormData(drive), credentials: "same-origin", redirect: "manual" }); }
      const answer = await fetch(location.href, { credentials: "same-origin", headers: { "X-Requested-With": "pgqueue" } });
      if (!answer.ok) { throw new Error(control.dataset.status.replace("%s", answer.status)); }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("pgqueue-live");
      if (!fresh) { throw new Error(control.dataset.logout); }
      if (running && !document.hidden && !busy()) {
        const open = Array.from(live.querySelectorAll("details[id][open]"), function (each) { return each.id; });
        live.replaceChildren(...document.adoptNode(fresh).childNodes);
        for (const id of open) { document.getElementById(id)?.setAttribute("open", ""); }
        updated = Date.now();
      }
      trouble = "";
    } catch (error) {
      trouble = "; " + control.dataset.trouble.replace("%s", error.message);
    }
    due = Date.now() + (live.querySelector("form[data-pgqueue-drive]") ? 0 : every);
    asking = false;
    say();
  }

  function say() {
    const seconds = Math.max(0, Math.round((Date.now() - updated) / 1000));
    const told = running ? control.dataset.updated : control.dataset.stopped;
    age.textContent = told.replace("%s", seconds) + trouble;
  }

  button.addEventListener("click", function () {
    running = !running;
    button.textContent = running ? stop : control.dataset.go;
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
