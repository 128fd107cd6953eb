// The search of the documentation: the sections that have all words, those with the words in the heading first.

(() => {
  const { up } = document.currentScript.dataset;
  const [form, input, results] = [".find", "#find", ".results"].map((name) => document.querySelector(name));
  const [status, list] = [results.querySelector("[role=status]"), results.querySelector("ol")];
  const MOST = 20;
  const AROUND = 80;
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());

  const load = () => {
    const script = document.createElement("script");
    script.src = `${up}/sections.js`;
    script.addEventListener("load", show);
    document.head.append(script);
  };

  const score = ([title, heading, , text], words) => {
    const fields = [heading, title, text].map((field) => field.toLowerCase());
    if (!words.every((word) => fields.some((field) => field.includes(word)))) return 0;
    const hits = (field) => words.filter((word) => field.includes(word)).length;
    const phrase = fields[0].includes(words.join(" ")) ? 20 : 0;
    return phrase + 10 * hits(fields[0]) + 5 * hits(fields[1]) + hits(fields[2]);
  };

  const row = ([title, heading, url, text], words) => {
    const [item, link, excerpt] = ["li", "a", "p"].map((tag) => document.createElement(tag));
    link.href = `${up}/${url}`;
    link.textContent = heading === title ? title : `${title}: ${heading}`;
    const start = Math.max(0, text.toLowerCase().indexOf(words[0]) - AROUND);
    excerpt.textContent = (start ? "… " : "") + text.slice(start, start + 2.5 * AROUND);
    excerpt.className = "quiet";
    item.append(link, excerpt);
    return item;
  };

  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    results.hidden = words.length === 0;
    if (results.hidden || !window.SECTIONS) return;
    const hits = window.SECTIONS.map((section) => [score(section, words), section]).filter(([points]) => points > 0);
    hits.sort(([one], [other]) => other - one);
    status.textContent = `${hits.length} ${hits.length === 1 ? "section" : "sections"}`;
    list.replaceChildren(...hits.slice(0, MOST).map(([, section]) => row(section, words)));
  };

  input.addEventListener("focus", load, { once: true });
  input.addEventListener("input", show);
})();
