"use strict";

// The form that pushes a folder: hash its large files, upload them in parts, then send the form with their digests.
// Files that the server has are not sent again, and an interrupted upload is resumed.
for (const form of document.querySelectorAll("[data-push]")) {
  const find = (name) => form.querySelector(`[data-${name}]`);
  const [target, fileList, begin, stop, running, status, problem] =
    ["target", "files", "begin", "stop", "running", "said", "problem"].map(find);
  const chooser = form.querySelector("input[type=file]");
  const progressBar = running.querySelector("progress");
  const [texts, blobs] = [form.dataset.texts, form.dataset.blobs].map((names) => names.split(" "));
  const [partBytes, mostBytes, longest] = [form.dataset.part, form.dataset.most, form.dataset.longest].map(Number);
  const MAX_ATTEMPTS = 4;
  let files = new Map();
  let proposedName = "";
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

  // --- choosing files -------------------------------------------------------------------------------

  // The reason why a folder cannot be pushed, empty if it can.
  const reasonAgainst = (all) => {
    if (!files.has("adapter_config.json")) return "The folder has no adapter_config.json: it is not an adapter folder.";
    if (!files.has("adapter_model.safetensors")) {
      const pickle = [...all.keys()].find((name) => /\.(bin|pt|pth|ckpt|pkl)$/.test(name));
      return `The folder has no adapter_model.safetensors${pickle ? `: ${pickle} is a pickle, save it as safetensors first` : ""}.`;
    }
    const long = texts.find((name) => files.has(name) && files.get(name).size > longest);
    if (long) return `${long} has ${size(files.get(long).size)}, and this page takes ${size(longest)}: use soup push.`;
    const large = blobs.find((name) => files.has(name) && files.get(name).size > mostBytes);
    if (large) return `${large} has ${size(files.get(large).size)}, and this server takes ${size(mostBytes)}.`;
    return "";
  };

  const chooseFiles = async (folder, all) => {
    files = new Map([...texts, ...blobs].filter((name) => all.has(name)).map((name) => [name, all.get(name)]));
    problem.hidden = true;
    status.textContent = "";
    const rows = [...files].map(([name, file]) => `${name}, ${size(file.size)}`);
    if (all.size > files.size) rows.push(`${all.size - files.size} more, which are not sent`);
    fileList.replaceChildren(...rows.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    const reason = reasonAgainst(all);
    if (reason) return fail(reason);
    const name = folder.toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[._-]+/, "").slice(0, 64);
    if (["", proposedName].includes(form.elements.name.value)) {
      form.elements.name.value = proposedName = `${form.dataset.namespace}/${name || "adapter"}`;
    }
    try {
      const config = files.get("soup.json") ?? files.get("adapter_config.json");
      form.elements.domain.placeholder = JSON.parse(await config.text()).domain ?? "";
    } catch {
      // the server refuses malformed JSON with a better message
    }
  };

  chooser.addEventListener("change", () => {
    const chosen = [...chooser.files];
    const [folder] = chosen[0]?.webkitRelativePath.split("/") ?? [""];
    const top = chosen.filter((file) => file.webkitRelativePath.split("/").length <= 2);
    if (chosen.length > 0) chooseFiles(folder, new Map(top.map((file) => [file.name, file])));
  });

  const toPromise = (call) => new Promise(call);
  const entries = async (folder) => {
    const reader = folder.createReader();
    const children = [];
    for (let batch = null; batch === null || batch.length > 0; children.push(...batch)) {
      batch = await toPromise((done, failed) => reader.readEntries(done, failed)); // at most a hundred entries
    }
    return children;
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
      const all = await Promise.all(inside.map((entry) => toPromise((done, failed) => entry.file(done, failed))));
      if (dropped.length > 1 && folder) return fail("Drop one folder at a time.");
      await chooseFiles(folder?.name ?? "", new Map(all.map((file) => [file.name, file])));
    } catch {
      fail("The folder could not be read: drop it again, or choose it.");
    }
  });

  // --- sending -----------------------------------------------------------------------------------

  // The JSON that the server answers; throws Refused with its message, or TypeError if another attempt may succeed.
  const ask = async (path, options) => {
    const headers = { ...options.headers, "soup-form": form.elements.form.value };
    const answer = await fetch(path, { ...options, headers, signal: sending.signal });
    if (answer.ok) return answer.json();
    if (answer.status === 401) throw new Refused("Your session has ended: sign in on another page, then push again.");
    const body = await answer.json().catch(() => ({ error: { message: `Something before the server answered ${answer.status}.` } }));
    const isTemporary = [408, 416, 429, 502, 503, 504].includes(answer.status);
    if (isTemporary) throw new TypeError(body.error.message);
    throw new Refused([body.error.message, ...(body.error.problems ?? []).slice(1)].join(" "));
  };

  const retry = async (call) => {
    let attempts = 0;
    const resetAttempts = () => { attempts = 0; };
    for (;;) {
      try {
        attempts += 1;
        return await call(resetAttempts);
      } catch (error) {
        if (!(error instanceof TypeError) || attempts >= MAX_ATTEMPTS) throw error;
        await new Promise((done) => setTimeout(done, 500 * 2 ** attempts));
      }
    }
  };

  const upload = async (name, file, showProgress) => {
    const bytes = await file.arrayBuffer();
    const hashed = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const digest = `sha256:${[...hashed].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    await retry(async (resetAttempts) => {
      const state = await ask(`${form.dataset.uploads}?digest=${digest}`, {});
      if (state.there) return showProgress(name, bytes.byteLength);
      const body = JSON.stringify({ digest, size: bytes.byteLength });
      const open = { method: "POST", body, headers: { "content-type": "application/json" } };
      const { id, offset } = state.upload ?? (await ask(form.dataset.uploads, open));
      const path = `${form.dataset.uploads}/${id}`;
      for (let start = offset; start < bytes.byteLength; ) {
        const end = Math.min(start + partBytes, bytes.byteLength);
        showProgress(name, start);
        const headers = { "content-range": `${start}-${end - 1}`, "content-type": "application/octet-stream" };
        await ask(path, { method: "PATCH", body: bytes.slice(start, end), headers });
        start = end;
        resetAttempts();
      }
      await ask(`${path}?digest=${digest}`, { method: "PUT" });
      showProgress(name, bytes.byteLength);
    });
    return digest;
  };

  const push = async () => {
    if (!crypto.subtle) throw new Refused("Browsers hash files only on pages that come by https, or from this machine: use soup push.");
    const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string"));
    const large = blobs.filter((name) => files.has(name));
    const sent = new Map(large.map((name) => [name, 0]));
    progressBar.max = Math.max(1, large.reduce((sum, name) => sum + files.get(name).size, 0));
    const showProgress = (name, bytes) => {
      sent.set(name, bytes);
      progressBar.value = [...sent.values()].reduce((sum, count) => sum + count, 0);
      status.textContent = `Sending ${name}: ${size(progressBar.value)} of ${size(progressBar.max)}.`;
    };
    for (const name of large) fields.set(name, await upload(name, files.get(name), showProgress));
    for (const name of texts) if (files.has(name)) fields.set(name, await files.get(name).text());
    status.textContent = "All files are sent. The server checks them.";
    return ask(form.getAttribute("action"), { method: "POST", body: fields });
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (files.size === 0) return fail("Choose a folder first.");
    problem.hidden = true;
    sending = new AbortController();
    [begin.disabled, stop.hidden, running.hidden] = [true, false, false];
    try {
      const adapter = await push();
      const link = Object.assign(document.createElement("a"), { href: `/models/${adapter.ref}`, textContent: adapter.ref });
      status.replaceChildren("Pushed: ", link, ...adapter.warnings.map((warning) => ` ${warning}`));
      link.focus();
    } catch (error) {
      status.textContent = "";
      if (sending.signal.aborted) status.textContent = "Stopped. Push again to resume: the server keeps the sent parts for a while.";
      else if (error instanceof Refused) fail(error.message);
      else if (error instanceof TypeError) fail("The server cannot be reached, or is full: push again to resume.");
      else fail("A file could not be read: choose the folder again.");
    }
    [begin.disabled, stop.hidden, running.hidden] = [false, true, true];
  });
  stop.addEventListener("click", () => sending?.abort());
}
