"use strict";
/* Ranks the sections of sections.js for a question. A word counts more the fewer sections have it,
   and more in a title or a search word than in the text. */

const WEIGHTS = {title: 7, words: 6, page: 2, text: 1, code: 0.6};
const KINDS = {reference: 0.75, course: 0.35};
// Lists of links, and what has changed, are seldom the answer.
const PAGES = {index: 0.3, "recipes/index": 0.3, "lessons/index": 0.3, "manual/changes": 0.4};
const SMALL = new Set(("a all an and any are as at be by can do does for from get give has have how i if in into is it"
  + " many me much my not of on or should so some that the their them then there this to use using what when where"
  + " which with without you your").split(" "));

const stem = (word) => word.length < 4 ? word : word.replace(/ies$/, "y")
  .replace(/([^s])(?:ing|ed|es|s)$/, "$1").replace(/(.{3})e$/, "$1").replace(/([^aeioul])\1$/, "$1");

function split(text) {
  const words = text.toLowerCase().match(/[^\W_][\w-]*/g) || [];
  return words.flatMap((word) => [word, ...word.split(/[-_]/)]).filter(Boolean).map(stem);
}

function prepare(rows) {
  const pages = Object.fromEntries(rows.filter((row) => !row[1]).map((row) => [row[0], row[2]]));
  const sections = rows.map(([page, anchor, title, words, summary, text, code]) => {
    const within = pages[page] || "";
    const fields = Object.entries({title, words, page: within, text, code})
      .map(([name, content]) => [WEIGHTS[name], new Set(split(content))]);
    const worth = PAGES[page] || KINDS[page.split("/")[0]] || 1;
    return {page, anchor, title, summary, within, fields, worth};
  });
  const rarity = new Map();
  for (const {fields} of sections) {
    for (const word of new Set(fields.flatMap(([, found]) => [...found]))) {
      rarity.set(word, (rarity.get(word) || 0) + 1);
    }
  }
  return {sections, rarity};
}

// The word itself, or words that begin with it, or the longest one that it begins with.
function alike(word, rarity) {
  if (rarity.has(word)) return [word];
  const longer = [...rarity.keys()].filter((each) => each.startsWith(word));
  const shorter = [...word].map((_, cut) => word.slice(0, -cut)).filter((each) => each.length > 2 && rarity.has(each));
  return longer.length ? longer.slice(0, 30) : shorter.slice(0, 1);
}

function search({sections, rarity}, question, most = 20) {
  const words = [...new Set(split(question))], telling = words.filter((word) => !SMALL.has(word));
  const asked = (telling.length ? telling : words).map((word) => alike(word, rarity));
  const results = sections.map((section) => {
    const points = asked.map((words) => Math.max(0, ...words.flatMap((word) => section.fields.map(
      ([weight, found]) => found.has(word) ? weight * Math.log(1 + sections.length / rarity.get(word)) : 0))));
    const sum = points.reduce((one, other) => one + other, 0);
    return {section, score: sum * section.worth * points.filter(Boolean).length / points.length};
  });
  return results.filter(({score}) => score > 0).sort((one, other) => other.score - one.score).slice(0, most);
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
