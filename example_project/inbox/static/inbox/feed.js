// Refresh the feed every two seconds, without the form: a choice under way is not lost.
"use strict";

async function refresh() {
  if (!document.hidden) {
    try {
      const response = await fetch(location.href);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (response.ok && fresh) part.replaceWith(document.adoptNode(fresh));
      }
    } catch (error) {
      // The server is away: the next try follows.
    }
  }
  setTimeout(refresh, 2000);
}

setTimeout(refresh, 2000);
