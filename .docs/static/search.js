"use strict";
/* Ranks the sections of sections.js for a question. A word counts more the fewer sections have it,
   and more in a title or a search word than in the text. */

const WEIGHTS = {title: 7, words: 6, page: 2, text: 1, code: 0.6};
const KINDS = {recipes: 1.2, manual: 1, lessons: 1, reference: 0.75, course: 0.35};
// Lists of links, and what has changed, are seldom the answer.
const PAGES = {index: 0.3, "recipes/index": 0.3, "lessons/index": 0.3, "manual/changes": 0.4};
const SMALL = new Set(("a an and are as at be by can do does for from get give has have how i if in is it me my not"
  + " of on or should so that the their them then this to use what when where which with you your using").split(" "));

const stem = (word) => word.length < 4 ? word : word.replace(/(?:ies)$/, "y")
  .replace(/([^s])(?:ing|ed|es|s)$/, "$1").replace(/(.{3})e$/, "$1").replace(/([^aeioul])\1$/, "$1");

function split(text) {
  const words = text.toLowerCase().match(/[^\W_][\w-]*|\d+/g) || [];
  return words.flatMap((word) => word.includes("-") || word.includes("_")
    ? [word, ...word.split(/[-_]/)] : [word]).filter(Boolean).map(stem);
}

function prepare(rows) {
  const pages = Object.fromEntries(rows.filter((row) => !row[1]).map((row) => [row[0], row[2]]));
  const sections = rows.map(([page, anchor, title, words, summary, text, code]) => {
    const fields = {title, words, page: pages[page] || "", text, code};
    const counts = Object.entries(fields).map(([name, content]) => {
      const found = new Map();
      for (const word of split(content)) found.set(word, (found.get(word) || 0) + 1);
      return [WEIGHTS[name], found];
    });
    const phrases = ` ${split(title).join(" ")} , ${words.split(",").map((each) => split(each).join(" ")).join(" , ")} `;
    return {page, anchor, title, summary, within: fields.page, counts, phrases};
  });
  const rarity = new Map();
  for (const {counts} of sections) {
    for (const word of new Set(counts.flatMap(([, found]) => [...found.keys()]))) {
      rarity.set(word, (rarity.get(word) || 0) + 1);
    }
  }
  return {sections, rarity};
}

function search({sections, rarity}, question, most = 20) {
  let asked = split(question);
  const telling = asked.filter((word) => !SMALL.has(word));
  asked = [...new Set(telling.length ? telling : asked)];
  const known = [...rarity.keys()];
  const results = sections.map((section) => {
    let score = 0, hits = 0;
    asked.forEach((word, place) => {
      const alike = rarity.has(word) ? [word] : known.filter((each) => each.startsWith(word)).slice(0, 30);
      let best = 0;
      for (const each of alike) {
        const worth = Math.log(1 + sections.length / rarity.get(each));
        for (const [weight, found] of section.counts) {
          const count = found.get(each);
          if (count) best = Math.max(best, worth * weight * (0.7 + 0.1 * Math.min(count, 3)));
        }
      }
      if (best) hits += 1;
      score += best;
      const pair = `${asked[place - 1]} ${word}`;
      if (place && section.phrases.includes(` ${pair} `)) score += 0.5 * best;
    });
    const kind = PAGES[section.page] || KINDS[section.page.split("/")[0]] || 1;
    return {section, score: score * kind * (hits / (asked.length || 1)) ** 0.5};
  });
  return results.filter((each) => each.score > 0).sort((a, b) => b.score - a.score).slice(0, most);
}

function show(index, question) {
  const results = search(index, question);
  document.getElementById("found").textContent = !question.trim() ? ""
    : results.length ? `Sections for “${question}”, the best first:` : `Nothing has “${question}”.`;
  document.getElementById("results").replaceChildren(...results.map(({section}) => {
    const entry = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
    link.href = `${section.page}.html${section.anchor && "#" + section.anchor}`;
    link.textContent = section.title;
    text.textContent = `${section.within === section.title ? "" : section.within + ": "}${section.summary} ...`;
    entry.append(link, text);
    return entry;
  }));
}

if (typeof module === "object") {
  module.exports = {prepare, search};
} else {
  const index = prepare(SECTIONS), field = document.getElementById("question");
  field.value = new URLSearchParams(location.search).get("q") || "";
  field.addEventListener("input", () => show(index, field.value));
  show(index, field.value);
  field.focus();
}
