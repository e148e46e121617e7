"use strict";
const at = id => document.getElementById(id);
const [drop, file, status, best, ask, token] = ["drop", "file", "status", "best", "ask", "token"].map(at);
let turn = 0, last = null, shown = null;

function say(text, bad) { status.textContent = text; status.className = bad ? "bad" : ""; }

function show(answer) {
  at("model").textContent = answer.model + ", version " + answer.version;
  const rows = answer.labels || answer.best;
  best.setAttribute("aria-label", answer.labels ? "All labels above their thresholds" : "The five most probable classes");
  best.replaceChildren(...rows.map(one => {
    const row = document.createElement("li"), percent = (100 * one.probability).toFixed(1) + " %";
    for (const [name, text] of [["label", one.label], ["percent", percent], ["track", ""]]) {
      const part = document.createElement("span");
      part.className = name; part.textContent = text; row.append(part);
    }
    const bar = document.createElement("div");
    bar.className = "bar"; row.lastChild.append(bar); row.lastChild.style.display = "block";
    requestAnimationFrame(() => requestAnimationFrame(() => { bar.style.width = percent.replace(" ", ""); }));
    return row;
  }));
  say((rows.length ? "" : "No label reaches its threshold. ") + "Answered in " + Math.max(1, Math.round(answer.milliseconds)) + " ms");
}

async function classify(photograph) {
  if (!photograph) return;
  const mine = ++turn;
  last = photograph;
  if (shown) URL.revokeObjectURL(shown);
  const picture = new Image();
  picture.alt = photograph.name || "the photograph";
  picture.src = shown = URL.createObjectURL(photograph);
  drop.replaceChildren(picture);
  best.replaceChildren();
  say("Looking at it …");
  try {
    const headers = token.value ? { Authorization: "Bearer " + token.value } : {};
    const response = await fetch("classify", { method: "POST", body: photograph, headers });
    const answer = await response.json();
    if (mine !== turn) return;
    ask.className = response.status === 401 ? "shown" : "";
    if (response.ok) show(answer); else say(answer.error, true);
  } catch (error) {
    if (mine === turn) say("The server did not answer. Is it still running?", true);
  }
}

drop.addEventListener("click", () => file.click());
file.addEventListener("change", () => { classify(file.files[0]); file.value = ""; });
ask.addEventListener("submit", event => { event.preventDefault(); classify(last); });
addEventListener("paste", event => classify([...event.clipboardData.files][0]));
addEventListener("dragover", event => { event.preventDefault(); drop.className = "over"; });
addEventListener("dragleave", event => { if (!event.relatedTarget) drop.className = ""; });
addEventListener("drop", event => { event.preventDefault(); drop.className = ""; classify(event.dataTransfer.files[0]); });
