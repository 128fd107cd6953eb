"use strict";

// Optional improvements of the pages, each for elements with a data attribute. Every page works without scripts.

// A running job: show its progress, and reload the page when the job starts and when it ends.
for (const container of document.querySelectorAll("[data-follow]")) {
  const progressBar = container.querySelector("progress");
  const status = container.querySelector("[data-said]");
  let lastData = null;
  let pause = 5000;
  const follow = () => {
    const events = new EventSource(container.dataset.follow);
    events.addEventListener("open", () => (pause = 5000));
    events.addEventListener("progress", (event) => {
      const { done, total, message } = JSON.parse(event.data);
      if (lastData !== null && event.data !== lastData && container.dataset.state === "queued") {
        events.close();
        location.reload(); // the job has started, and the page shows its old state
        return;
      }
      lastData = event.data;
      if (total > 0) {
        progressBar.max = total;
        progressBar.value = done;
      }
      if (message) status.textContent = message;
    });
    events.addEventListener("done", () => {
      events.close();
      location.reload();
    });
    events.addEventListener("error", async () => {
      if (events.readyState !== EventSource.CLOSED) return; // the browser connects again
      const page = await fetch(location.href, { redirect: "manual" }).catch(() => null);
      if (page?.type === "opaqueredirect" || page?.status === 404) {
        location.reload(); // the session has ended, or the job is gone
        return;
      }
      setTimeout(follow, pause); // refused, as during an outage
      pause = Math.min(2 * pause, 60000);
    });
  };
  follow();
}

// A text field: fill it with a file that is dropped on it or chosen in the file input beside it.
for (const field of document.querySelectorAll("[data-drop]")) {
  const fill = async (file) => {
    if (file) field.value = await file.text();
  };
  field.addEventListener("dragover", (event) => event.preventDefault());
  field.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length > 0) {
      event.preventDefault();
      fill(event.dataTransfer.files[0]);
    }
  });
  for (const picker of field.form.querySelectorAll("[data-file]")) {
    picker.hidden = false;
    const input = picker.querySelector("input");
    input.addEventListener("change", () => fill(input.files[0]));
  }
}

// The answer to a form that must not be sent twice: change the URL, so that a reload does not resend the form.
for (const answer of document.querySelectorAll("[data-instead]")) history.replaceState(null, "", answer.dataset.instead);

// A form that takes long to fill in: save its fields in this tab when it is sent, and restore them if the session had
// ended, for the same key only. They are deleted once another page is opened than that of the form, or the sign-in page
// on the way back to it.
const STORAGE_KEY = "soup-kept";
const destination = location.pathname === "/sign-in" ? document.querySelector("[name=next]").value : location.pathname;
if (destination.split("?")[0] !== "/cook") sessionStorage.removeItem(STORAGE_KEY);
for (const form of document.querySelectorAll("[data-keep]")) {
  const saved = JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "null");
  if (saved && saved.of !== form.dataset.of) sessionStorage.removeItem(STORAGE_KEY); // another key has signed in
  else if (saved && !form.elements[form.dataset.keep].value) {
    for (const [name, value] of saved.given) {
      const field = form.elements[name];
      if (field?.type === "checkbox") field.checked = true;
      else if (field) field.value = value;
    }
    document.querySelector("[data-kept]").hidden = false;
  }
  form.addEventListener("submit", () => {
    const fields = [...new FormData(form)].filter(([name]) => name !== "form");
    try {
      sessionStorage.setItem(STORAGE_KEY, JSON.stringify({ of: form.dataset.of, given: fields }));
    } catch {
      sessionStorage.removeItem(STORAGE_KEY); // too large for the browser's storage
    }
  });
}

// The playground: send a request for each model, and show the answers as they are streamed.
for (const form of document.querySelectorAll("[data-ask]")) {
  const container = document.querySelector("[data-answers]");
  const template = document.querySelector("[data-answer]").content.firstElementChild;
  const [begin, stop, restart] = ["begin", "stop", "new"].map((name) => form.querySelector(`[data-${name}]`));
  const conversations = new Map(); // the messages of a conversation, by model
  let running = null;

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const describe = (alternatives) => alternatives.map(([text, share]) => `${JSON.stringify(text)} ${percent(share)}`).join(", ");
  const element = (name, text, kind) => {
    const node = document.createElement(name);
    node.textContent = text;
    if (kind) node.className = kind;
    return node;
  };

  // The tokens of an event of a chat or text completion, as [token, log probability, alternatives].
  const tokens = (logprobs) => {
    if (!logprobs) return [];
    if (logprobs.content) {
      return logprobs.content.map((item) => [item.token, item.logprob, item.top_logprobs.map(({ token, logprob }) => [token, logprob])]);
    }
    return logprobs.tokens.map((token, n) => [token, logprobs.token_logprobs[n], Object.entries(logprobs.top_logprobs?.[n] ?? {}).sort(([, first], [, second]) => second - first)]);
  };

  const add = (reply, choice, state) => {
    const text = choice.delta ? choice.delta.content ?? "" : choice.text;
    const chosen = tokens(choice.logprobs);
    const probability = chosen.reduce((product, [, logprob]) => product * Math.exp(logprob), 1);
    const span = element("span", text, "token");
    for (const [token, logprob, top] of chosen) {
      state.count += 1;
      const alternatives = top.filter(([text]) => text !== token).map(([text, value]) => [text, Math.exp(value)]);
      const description = `${percent(Math.exp(logprob))}${alternatives.length ? "; " + describe(alternatives) : ""}`;
      span.title = span.title ? `${span.title}\n${description}` : description; // several tokens are one character
      const rows = reply.querySelector("[data-rows]");
      if (rows.childElementCount < Number(rows.dataset.most)) {
        const row = element("tr", "");
        const head = element("th", "");
        head.scope = "row";
        head.append(element("code", JSON.stringify(token)));
        row.append(head, element("td", percent(Math.exp(logprob)), "number"), element("td", describe(alternatives)));
        rows.append(row);
      }
    }
    if (chosen.length > 0) span.classList.add(`tenth-${Math.min(Math.floor(10 * probability), 9)}`);
    reply.querySelector("[data-text]").append(span);
    state.text += text;
    state.end = choice.finish_reason ?? state.end;
  };

  const fail = (reply, message) => {
    const problem = reply.querySelector("[data-problem]");
    problem.textContent = message;
    problem.hidden = false;
  };

  const endings = { stop: "finished", length: "reached the maximum" };
  const end = (reply, state) => {
    reply.querySelector("[data-end]").textContent = `${state.count} tokens, ${endings[state.end] ?? "stopped"}`;
    reply.querySelector("[data-table]").hidden = state.count === 0;
  };

  // Show an answer and return its text; undefined if it was refused or broke off.
  const ask = async (model, fields, reply, state, signal) => {
    const answer = await fetch(form.dataset.ask, { method: "POST", body: fields, signal });
    if (answer.status === 401) return fail(reply, "Your session has ended: sign in on another page, then ask again.");
    if (!answer.ok) return fail(reply, (await answer.json()).error.message);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let complete = false;
    for (let rest = "", chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
      const events = (rest + chunk.value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const body = event.replace(/^data: /, "");
        complete ||= body === "[DONE]";
        if (complete || !event.startsWith("data: ")) continue;
        const message = JSON.parse(body);
        if (message.error) return fail(reply, message.error.message);
        if (message.model !== model) reply.querySelector("[data-model]").textContent = `${model}: ${message.model}`;
        for (const choice of message.choices) add(reply, choice, state);
      }
    }
    if (!complete) return fail(reply, "The answer is incomplete. Ask again.");
    end(reply, state);
    return state.text;
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const data = new FormData(form);
    const names = [...data.keys()].filter((name) => name.startsWith("model-"));
    const models = [...new Set(names.map((name) => data.get(name).trim()).filter(Boolean))];
    const chat = data.get("kind") === "chat";
    if (models.length === 0) return form.elements["model-1"].focus();
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    container.replaceChildren();
    const query = String(new URLSearchParams(models.map((model) => ["model", model]))).replaceAll("%2F", "/").replaceAll("%40", "@");
    history.replaceState(null, "", `${form.getAttribute("action")}?${query}`);
    for (const link of document.querySelectorAll("[data-compare]")) link.href = `${link.dataset.compare}?${query}`;
    [begin.disabled, stop.hidden, restart.hidden] = [true, false, !chat];
    await Promise.all(models.map(async (model) => {
      const reply = template.cloneNode(true);
      reply.setAttribute("aria-label", model);
      reply.querySelector("[data-model]").textContent = model;
      const earlier = chat ? conversations.get(model) ?? [] : [];
      for (const { role, content } of earlier) reply.querySelector("[data-turns]").append(element("p", content, `turn ${role}`));
      if (chat) reply.querySelector("[data-turns]").append(element("p", data.get("prompt"), "turn user"));
      container.append(reply);
      const fields = new URLSearchParams([...data].filter(([name]) => !names.includes(name)));
      fields.set("model-1", model);
      fields.set("before", JSON.stringify(earlier));
      const state = { text: "", end: null, count: 0 };
      try {
        const text = await ask(model, fields, reply, state, signal);
        if (chat && text !== undefined) {
          conversations.set(model, [...earlier, { role: "user", content: data.get("prompt") }, { role: "assistant", content: text }]);
        }
      } catch (error) {
        if (signal.aborted) end(reply, state);
        else fail(reply, "The connection broke. Ask again.");
      }
    }));
    if (running.signal !== signal) return; // another request has replaced this one
    [begin.disabled, stop.hidden] = [false, true];
    if (chat) form.elements.prompt.select();
  });
  stop.addEventListener("click", () => running?.abort());
  restart.addEventListener("click", () => {
    running?.abort();
    conversations.clear();
    container.replaceChildren();
    restart.hidden = true;
    form.elements.prompt.focus();
  });
}

// The sliders of a mixture: keep each slider and its number equal. Mixing replaces the models of the playground by the
// mixture and its ingredients, keeps the prompt, and sends it at once.
for (const form of document.querySelectorAll("[data-mix]")) {
  const [mix, status, problem] = ["mix-button", "said", "problem"].map((name) => form.querySelector(`[data-${name}]`));
  const prompt = document.querySelector("[data-ask]");
  for (const slider of form.querySelectorAll("[data-slider]")) {
    const number = form.elements[slider.dataset.slider];
    slider.closest("[hidden]").hidden = false;
    slider.addEventListener("input", () => (number.value = slider.value));
    number.addEventListener("input", () => (slider.value = number.value));
  }
  const fail = (message) => {
    status.textContent = "";
    problem.textContent = message;
    problem.hidden = false;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    [mix.disabled, problem.hidden, status.textContent] = [true, true, "Mixing …"];
    try {
      const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      const destination = new URL(answer.url);
      if (answer.ok && destination.pathname === prompt.getAttribute("action")) {
        const models = destination.searchParams.getAll("model");
        for (const field of prompt.querySelectorAll("[name^=model-]")) field.value = models.shift() ?? "";
        history.replaceState(null, "", destination.pathname + destination.search);
        status.textContent = `Mixed: ${prompt.elements["model-1"].value}`;
        if (prompt.elements.prompt.value.trim()) prompt.requestSubmit();
        else prompt.elements.prompt.focus();
      } else if (answer.ok) {
        location.assign(destination); // the session has ended
      } else {
        const message = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#what + .lead");
        fail(message?.textContent ?? "It could not be mixed.");
      }
    } catch {
      fail("The connection broke. Mix it again.");
    }
    mix.disabled = false;
  });
}
