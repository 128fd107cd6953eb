"use strict";

// What pages cannot do without a script, each for elements that say so. Without it they work all the same.

// A job that is followed: its progress as it comes, and the page anew once it has begun, and once it has ended.
for (const place of document.querySelectorAll("[data-follow]")) {
  const bar = place.querySelector("progress");
  const said = place.querySelector("[data-said]");
  let known = null;
  const events = new EventSource(place.dataset.follow);
  events.addEventListener("progress", (event) => {
    const { done, total, message } = JSON.parse(event.data);
    if (known !== null && event.data !== known && place.dataset.state === "queued") {
      events.close();
      location.reload(); // it has begun: what the page says of its state is of before
      return;
    }
    known = event.data;
    if (total > 0) {
      bar.max = total;
      bar.value = done;
    }
    if (message) said.textContent = message;
  });
  events.addEventListener("done", () => {
    events.close();
    location.reload();
  });
}

// A field of text that takes a file: dropped on it, or chosen beside it.
for (const field of document.querySelectorAll("[data-drop]")) {
  const take = async (file) => {
    if (file) field.value = await file.text();
  };
  field.addEventListener("dragover", (event) => event.preventDefault());
  field.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length > 0) {
      event.preventDefault();
      take(event.dataTransfer.files[0]);
    }
  });
  for (const beside of field.form.querySelectorAll("[data-file]")) {
    beside.hidden = false;
    const chosen = beside.querySelector("input");
    chosen.addEventListener("change", () => take(chosen.files[0]));
  }
}

// A page that answers a form, and is not to be had again: loading it anew shows the page of this address, and sends
// nothing a second time.
for (const answer of document.querySelectorAll("[data-instead]")) history.replaceState(null, "", answer.dataset.instead);

// A form that takes long to fill in: what was sent stays in this tab until it was taken, so that it is there again where
// the session had ended, for the key that wrote it alone. It is taken, or given up, once another page is seen than its
// own, or the one to sign in on the way back to it.
const KEPT = "soup-kept";
const onTheWayTo = location.pathname === "/sign-in" ? document.querySelector("[name=next]").value : location.pathname;
if (onTheWayTo.split("?")[0] !== "/cook") sessionStorage.removeItem(KEPT);
for (const form of document.querySelectorAll("[data-keep]")) {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  if (kept && kept.of !== form.dataset.of) sessionStorage.removeItem(KEPT); // somebody else signed in
  else if (kept && !form.elements[form.dataset.keep].value) {
    for (const [name, value] of kept.given) {
      const field = form.elements[name];
      if (field?.type === "checkbox") field.checked = true;
      else if (field) field.value = value;
    }
    document.querySelector("[data-kept]").hidden = false;
  }
  form.addEventListener("submit", () => {
    const given = [...new FormData(form)].filter(([name]) => name !== "form");
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ of: form.dataset.of, given }));
    } catch {
      sessionStorage.removeItem(KEPT); // more than a browser keeps
    }
  });
}

// The playground: every model is asked by a request of its own, and its answer shown as it is written.
for (const form of document.querySelectorAll("[data-ask]")) {
  const place = document.querySelector("[data-answers]");
  const empty = document.querySelector("[data-answer]").content.firstElementChild;
  const [begin, stop, anew] = ["begin", "stop", "new"].map((name) => form.querySelector(`[data-${name}]`));
  const said = new Map(); // what was said before, in a conversation, by model
  let running = null;

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const others = (found) => found.map(([text, share]) => `${JSON.stringify(text)} ${percent(share)}`).join(", ");
  const element = (name, text, kind) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  // The tokens of one event, as the API sends those of conversations and of texts.
  const tokens = (logprobs) => {
    if (!logprobs) return [];
    if (logprobs.content) {
      return logprobs.content.map((one) => [one.token, one.logprob, one.top_logprobs.map((other) => [other.token, other.logprob])]);
    }
    return logprobs.tokens.map((token, n) => [token, logprobs.token_logprobs[n], Object.entries(logprobs.top_logprobs?.[n] ?? {}).sort((one, other) => other[1] - one[1])]);
  };

  const add = (shown, choice, state) => {
    const text = choice.delta ? choice.delta.content ?? "" : choice.text;
    const found = tokens(choice.logprobs);
    const probability = found.reduce((product, [, logprob]) => product * Math.exp(logprob), 1);
    const span = element("span", text, "token");
    for (const [token, logprob, top] of found) {
      state.count += 1;
      const rest = top.filter(([other]) => other !== token).map(([other, value]) => [other, Math.exp(value)]);
      const told = `${percent(Math.exp(logprob))}${rest.length ? "; " + others(rest) : ""}`;
      span.title = span.title ? `${span.title}\n${told}` : told; // a character of several tokens
      const rows = shown.querySelector("[data-rows]");
      if (rows.childElementCount < Number(rows.dataset.most)) {
        const row = element("tr", "");
        const head = element("th", "");
        head.scope = "row";
        head.append(element("code", JSON.stringify(token)));
        row.append(head, element("td", percent(Math.exp(logprob)), "number"), element("td", others(rest)));
        rows.append(row);
      }
    }
    if (found.length > 0) span.classList.add(`tenth-${Math.min(Math.floor(10 * probability), 9)}`);
    shown.querySelector("[data-text]").append(span);
    state.text += text;
    state.end = choice.finish_reason ?? state.end;
  };

  const fail = (shown, message) => {
    const problem = shown.querySelector("[data-problem]");
    problem.textContent = message;
    problem.hidden = false;
  };

  const ended = { stop: "it came to an end", length: "cut at the most it may write" };
  const end = (shown, state) => {
    shown.querySelector("[data-end]").textContent = `${state.count} tokens; ${ended[state.end] ?? "stopped"}`;
    shown.querySelector("[data-table]").hidden = state.count === 0;
  };

  // The whole text of an answer; nothing where it was refused or broke off.
  const ask = async (model, fields, shown, state, signal) => {
    const answer = await fetch(form.dataset.ask, { method: "POST", body: fields, signal });
    if (answer.status === 401) return fail(shown, "Your session has ended: sign in on another page, then ask again.");
    if (!answer.ok) return fail(shown, (await answer.json()).error.message);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let whole = false;
    for (let rest = "", part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        whole ||= data === "[DONE]";
        if (whole || !event.startsWith("data: ")) continue;
        const found = JSON.parse(data);
        if (found.error) return fail(shown, found.error.message);
        if (found.model !== model) shown.querySelector("[data-model]").textContent = `${model}: ${found.model}`;
        for (const choice of found.choices) add(shown, choice, state);
      }
    }
    if (!whole) return fail(shown, "The answer broke off. Ask again.");
    end(shown, state);
    return state.text;
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = new FormData(form);
    const names = [...given.keys()].filter((name) => name.startsWith("model-"));
    const models = [...new Set(names.map((name) => given.get(name).trim()).filter(Boolean))];
    const chat = given.get("kind") === "chat";
    if (models.length === 0) return form.elements["model-1"].focus();
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    place.replaceChildren();
    const asked = String(new URLSearchParams(models.map((model) => ["model", model]))).replaceAll("%2F", "/").replaceAll("%40", "@");
    history.replaceState(null, "", `${form.getAttribute("action")}?${asked}`);
    for (const link of document.querySelectorAll("[data-compare]")) link.href = `${link.dataset.compare}?${asked}`;
    [begin.disabled, stop.hidden, anew.hidden] = [true, false, !chat];
    await Promise.all(models.map(async (model) => {
      const shown = empty.cloneNode(true);
      shown.setAttribute("aria-label", model);
      shown.querySelector("[data-model]").textContent = model;
      const before = chat ? said.get(model) ?? [] : [];
      for (const one of before) shown.querySelector("[data-turns]").append(element("p", one.content, `turn ${one.role}`));
      if (chat) shown.querySelector("[data-turns]").append(element("p", given.get("prompt"), "turn user"));
      place.append(shown);
      const fields = new URLSearchParams([...given].filter(([name]) => !names.includes(name)));
      fields.set("model-1", model);
      fields.set("before", JSON.stringify(before));
      const state = { text: "", end: null, count: 0 };
      try {
        const text = await ask(model, fields, shown, state, signal);
        if (chat && text !== undefined) {
          said.set(model, [...before, { role: "user", content: given.get("prompt") }, { role: "assistant", content: text }]);
        }
      } catch (error) {
        if (signal.aborted) end(shown, state);
        else fail(shown, "The connection broke. Ask again.");
      }
    }));
    [begin.disabled, stop.hidden] = [false, true];
    if (chat) form.elements.prompt.select();
  });
  stop.addEventListener("click", () => running?.abort());
  anew.addEventListener("click", () => {
    running?.abort();
    said.clear();
    place.replaceChildren();
    anew.hidden = true;
    form.elements.prompt.focus();
  });
}

// Sliders that write a recipe: each moves its number, and a number its slider. What is cooked is asked at once, beside
// the adapters that it was mixed from, and the prompt stays where it is.
for (const form of document.querySelectorAll("[data-mix]")) {
  const [cook, said, problem] = ["cook", "said", "problem"].map((name) => form.querySelector(`[data-${name}]`));
  const prompt = document.querySelector("[data-ask]");
  for (const slider of form.querySelectorAll("[data-slider]")) {
    const number = form.elements[slider.dataset.slider];
    slider.closest("[hidden]").hidden = false;
    slider.addEventListener("input", () => (number.value = slider.value));
    number.addEventListener("input", () => (slider.value = number.value));
  }
  const fail = (message) => {
    said.textContent = "";
    problem.textContent = message;
    problem.hidden = false;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    [cook.disabled, problem.hidden, said.textContent] = [true, true, "It is cooked."];
    try {
      const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      const place = new URL(answer.url);
      if (answer.ok && place.pathname === prompt.getAttribute("action")) {
        const models = place.searchParams.getAll("model");
        for (const field of prompt.querySelectorAll("[name^=model-]")) field.value = models.shift() ?? "";
        history.replaceState(null, "", place.pathname + place.search);
        said.textContent = `Cooked: ${prompt.elements["model-1"].value}`;
        if (prompt.elements.prompt.value.trim()) prompt.requestSubmit();
        else prompt.elements.prompt.focus();
      } else if (answer.ok) {
        location.assign(place); // its job goes on, or the session has ended
      } else {
        const told = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#what + .lead");
        fail(told?.textContent ?? "It could not be cooked.");
      }
    } catch {
      fail("The connection broke. Cook it again.");
    }
    cook.disabled = false;
  });
}
