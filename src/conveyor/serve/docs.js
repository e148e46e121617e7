"use strict";
const at = id => document.getElementById(id);
const made = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind || "" });

function answers(responses) {
  const table = document.createElement("table");
  for (const [status, one] of Object.entries(responses)) {
    const row = table.insertRow();
    row.append(made("th", status), made("td", one.description));
  }
  return table;
}

function example(path, method, body) {
  const place = location.origin + path;
  if (method === "get") return "curl " + place;
  return body["image/jpeg"] ? "curl --data-binary @photo.jpg " + place : "curl -H 'Content-Type: application/json' -d @request.json " + place;
}

function show(api) {
  at("title").textContent = api.info.title;
  at("paths").replaceChildren(...Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => {
    const part = document.createElement("section"), head = made("h2", "");
    head.append(made("span", method.toUpperCase(), "method"), path);
    part.append(head, made("p", one.summary));
    if (one.description) part.append(made("p", one.description, "soft"));
    part.append(made("pre", example(path, method, one.requestBody ? one.requestBody.content : {})), answers(one.responses));
    return part;
  })));
}

async function load() {
  const headers = at("token").value ? { Authorization: "Bearer " + at("token").value } : {};
  try {
    const response = await fetch("openapi.json", { headers });
    at("ask").className = response.status === 401 ? "shown" : "";
    const found = await response.json();
    at("status").textContent = response.ok ? "" : found.error;
    if (response.ok) show(found);
  } catch (error) { at("status").textContent = "The server did not answer. Is it still running?"; }
}

at("ask").addEventListener("submit", event => { event.preventDefault(); load(); });
load();
