// Asks the server for the results of the form and shows them; without this script the form does the same by itself.
"use strict";

const form = document.getElementById("search");
const results = document.getElementById("results");
let latest = 0;

async function search(query) {
  const mine = ++latest;
  results.setAttribute("aria-busy", "true");
  let html;
  try {
    const answer = await fetch("/search/results?" + query);
    html = await answer.text();
    if (!answer.ok) html = "";
    if (answer.status === 401) location.reload();
  } catch {
    html = "";
  }
  if (mine !== latest) return;  // another question was asked meanwhile
  results.removeAttribute("aria-busy");
  if (html) results.innerHTML = html;
  else results.textContent = "The server does not answer. Is it still running?";
}

function filled() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) query.append(name, value);
  return query.toString();
}

if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const query = filled();
    history.pushState(null, "", "/search?" + query);
    search(query);
  });
  window.addEventListener("popstate", () => location.reload());
}
