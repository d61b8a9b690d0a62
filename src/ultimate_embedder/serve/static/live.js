// Shows what the server says: it sends parts of the page as HTML whenever they change. Nothing is computed here.
"use strict";

const RETRY_MS = 2000;
const connection = document.getElementById("connection");
const postponed = new Map();

function isSelected(element) {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && element.contains(selection.anchorNode);
}

function replace(id, html) {
  const element = document.getElementById(id);
  if (!element) return;
  if (isSelected(element)) {  // somebody is about to copy it
    postponed.set(id, html);
    return;
  }
  const scrolled = [...element.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  element.innerHTML = html;
  element.querySelectorAll(".wide").forEach((each, place) => { each.scrollLeft = scrolled[place] || 0; });
  const section = element.closest("section");
  if (section) section.hidden = html === "";
}

function say(words, kind) {
  connection.textContent = words;
  connection.className = kind;
}

async function connectAgain() {
  try {
    const answer = await fetch("/live/check");
    if (answer.status === 401) {
      say("The token has changed: open the link that serve printed.", "bad");
      return;
    }
  } catch { /* the server does not answer yet */ }
  setTimeout(connect, RETRY_MS);
}

function connect() {
  const source = new EventSource("/live");
  source.addEventListener("open", () => say("live", "good"));
  source.addEventListener("parts", (event) => {
    const { version, title, parts } = JSON.parse(event.data);
    if (version !== document.body.dataset.version) location.reload();
    document.title = title;
    for (const [id, html] of Object.entries(parts)) replace(id, html);
  });
  source.addEventListener("error", () => {
    say("The server does not answer. Trying again …", "bad");
    source.close();
    connectAgain();
  });
}

document.addEventListener("selectionchange", () => {
  for (const [id, html] of postponed) {
    if (!isSelected(document.getElementById(id))) {
      postponed.delete(id);
      replace(id, html);
    }
  }
});

connect();
