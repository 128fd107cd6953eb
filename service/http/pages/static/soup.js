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
