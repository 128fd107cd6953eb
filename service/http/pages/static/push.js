"use strict";

// A folder is pushed: its files are hashed and uploaded in parts, and named by a form at the end. What is there is not
// sent again, and what broke off goes on where it ended: the server is asked what it holds.
for (const form of document.querySelectorAll("[data-push]")) {
  const part = (name) => form.querySelector(`[data-${name}]`);
  const [target, listed, begin, stop, running, said, problem] =
    ["target", "files", "begin", "stop", "running", "said", "problem"].map(part);
  const chooser = form.querySelector("input[type=file]");
  const bar = running.querySelector("progress");
  const [texts, blobs] = [form.dataset.texts, form.dataset.blobs].map((names) => names.split(" "));
  const [partBytes, mostBytes, longest] = [form.dataset.part, form.dataset.most, form.dataset.longest].map(Number);
  const TRIES = 4;
  let files = new Map();
  let sending = null;

  class Refused extends Error {}

  const size = (bytes) => {
    const units = ["bytes", "kB", "MB", "GB"];
    let unit = 0;
    for (; bytes >= 999.5 && unit < units.length - 1; unit += 1) bytes /= 1000;
    return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
  };

  const fail = (message) => {
    problem.textContent = message;
    problem.hidden = false;
  };

  // --- which files -------------------------------------------------------------------------------

  // Why a folder cannot be pushed; nothing where it can.
  const wrong = (all) => {
    if (!files.has("adapter_config.json")) return "The folder has no adapter_config.json: it is not an adapter's.";
    if (!files.has("adapter_model.safetensors")) {
      const other = [...all.keys()].find((name) => /\.(bin|pt|pth|ckpt|pkl)$/.test(name));
      return `The folder has no adapter_model.safetensors${other ? `: ${other} is a pickle, save it as safetensors first` : ""}.`;
    }
    const long = texts.find((name) => files.has(name) && files.get(name).size > longest);
    if (long) return `${long} has ${size(files.get(long).size)}, and this page takes ${size(longest)}: use soup push.`;
    const large = blobs.find((name) => files.has(name) && files.get(name).size > mostBytes);
    if (large) return `${large} has ${size(files.get(large).size)}, and this server takes ${size(mostBytes)}.`;
    return "";
  };

  const take = async (folder, all) => {
    files = new Map([...texts, ...blobs].filter((name) => all.has(name)).map((name) => [name, all.get(name)]));
    problem.hidden = true;
    said.textContent = "";
    const rows = [...files].map(([name, file]) => `${name}, ${size(file.size)}`);
    if (all.size > files.size) rows.push(`${all.size - files.size} more, which are not sent`);
    listed.replaceChildren(...rows.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    const found = wrong(all);
    if (found) return fail(found);
    const name = folder.toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[._-]+/, "").slice(0, 64);
    if (!form.elements.name.value) form.elements.name.value = `${form.dataset.namespace}/${name || "adapter"}`;
    try {
      const about = files.get("soup.json") ?? files.get("adapter_config.json");
      form.elements.domain.placeholder = JSON.parse(await about.text()).domain ?? "";
    } catch {
      // what is no JSON is refused by the server, which says where
    }
  };

  chooser.addEventListener("change", () => {
    const chosen = [...chooser.files];
    const [folder] = chosen[0]?.webkitRelativePath.split("/") ?? [""];
    const top = chosen.filter((file) => file.webkitRelativePath.split("/").length <= 2);
    if (chosen.length > 0) take(folder, new Map(top.map((file) => [file.name, file])));
  });

  const promised = (call) => new Promise(call);
  const entries = async (folder) => {
    const reader = folder.createReader();
    const found = [];
    for (let some = null; some === null || some.length > 0; found.push(...some)) {
      some = await promised((done, failed) => reader.readEntries(done, failed)); // a hundred at a time
    }
    return found;
  };

  target.addEventListener("dragover", (event) => {
    event.preventDefault();
    target.classList.add("over");
  });
  target.addEventListener("dragleave", () => target.classList.remove("over"));
  target.addEventListener("drop", async (event) => {
    event.preventDefault();
    target.classList.remove("over");
    const dropped = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    try {
      const folder = dropped.find((entry) => entry.isDirectory);
      const inside = (folder ? await entries(folder) : dropped).filter((entry) => entry.isFile);
      const all = await Promise.all(inside.map((entry) => promised((done, failed) => entry.file(done, failed))));
      if (dropped.length > 1 && folder) return fail("Drop one folder at a time.");
      await take(folder?.name ?? "", new Map(all.map((file) => [file.name, file])));
    } catch {
      fail("The folder could not be read: drop it again, or choose it.");
    }
  });

  // --- sending -----------------------------------------------------------------------------------

  // What the server answers; raises Refused with what it says, and TypeError where it cannot be reached.
  const ask = async (path, options) => {
    const headers = { ...options.headers, "soup-form": form.elements.form.value };
    const answer = await fetch(path, { ...options, headers, signal: sending.signal });
    if (answer.ok) return answer.json();
    if (answer.status === 401) throw new Refused("Your session has ended: sign in on another page, then push again.");
    const told = await answer.json().catch(() => ({ error: { message: `Something before the server answered ${answer.status}.` } }));
    const passing = [408, 416, 429, 502, 503, 504].includes(answer.status); // another try may do, where the server says how far it is
    if (passing) throw new TypeError(told.error.message);
    throw new Refused([told.error.message, ...(told.error.problems ?? []).slice(1)].join(" "));
  };

  const patiently = async (call) => {
    let tries = 0;
    const onward = () => { tries = 0; };
    for (;;) {
      try {
        tries += 1;
        return await call(onward);
      } catch (error) {
        if (!(error instanceof TypeError) || tries >= TRIES) throw error;
        await new Promise((done) => setTimeout(done, 500 * 2 ** tries));
      }
    }
  };

  const upload = async (name, file, tell) => {
    const bytes = await file.arrayBuffer();
    const hashed = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const digest = `sha256:${[...hashed].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    await patiently(async (onward) => {
      const held = await ask(`${form.dataset.uploads}?digest=${digest}`, {});
      if (held.there) return tell(name, bytes.byteLength);
      const wanted = JSON.stringify({ digest, size: bytes.byteLength });
      const open = { method: "POST", body: wanted, headers: { "content-type": "application/json" } };
      const { id, offset } = held.upload ?? (await ask(form.dataset.uploads, open));
      const place = `${form.dataset.uploads}/${id}`;
      for (let at = offset; at < bytes.byteLength; ) {
        const until = Math.min(at + partBytes, bytes.byteLength);
        tell(name, at);
        const headers = { "content-range": `${at}-${until - 1}`, "content-type": "application/octet-stream" };
        await ask(place, { method: "PATCH", body: bytes.slice(at, until), headers });
        at = until;
        onward();
      }
      await ask(`${place}?digest=${digest}`, { method: "PUT" });
      tell(name, bytes.byteLength);
    });
    return digest;
  };

  const push = async () => {
    if (!crypto.subtle) throw new Refused("Browsers hash files only on pages that come by https, or from this machine: use soup push.");
    const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string"));
    const large = blobs.filter((name) => files.has(name));
    const sent = new Map(large.map((name) => [name, 0]));
    bar.max = Math.max(1, large.reduce((sum, name) => sum + files.get(name).size, 0));
    const tell = (name, bytes) => {
      sent.set(name, bytes);
      bar.value = [...sent.values()].reduce((sum, one) => sum + one, 0);
      said.textContent = `Sending ${name}: ${size(bar.value)} of ${size(bar.max)}.`;
    };
    for (const name of large) fields.set(name, await upload(name, files.get(name), tell));
    for (const name of texts) if (files.has(name)) fields.set(name, await files.get(name).text());
    said.textContent = "Everything is sent; it is looked at.";
    return ask(form.getAttribute("action"), { method: "POST", body: fields });
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (files.size === 0) return fail("Choose a folder first.");
    problem.hidden = true;
    sending = new AbortController();
    [begin.disabled, stop.hidden, running.hidden] = [true, false, false];
    try {
      const made = await push();
      const link = Object.assign(document.createElement("a"), { href: `/models/${made.ref}`, textContent: made.ref });
      said.replaceChildren("Pushed: ", link, ...made.warnings.map((one) => ` ${one}`));
      link.focus();
    } catch (error) {
      said.textContent = "";
      if (sending.signal.aborted) said.textContent = "Stopped. What is sent is kept for a while: push again to go on.";
      else if (error instanceof Refused) fail(error.message);
      else if (error instanceof TypeError) fail("The server cannot be reached, or is full: push again to go on where it ended.");
      else fail("A file could not be read: choose the folder again.");
    }
    [begin.disabled, stop.hidden, running.hidden] = [false, true, true];
  });
  stop.addEventListener("click", () => sending?.abort());
}
