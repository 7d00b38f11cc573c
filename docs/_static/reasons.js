// The field on the page "Troubleshooting by message": a pasted message, whose names and numbers differ from job to job,
// leads to its row and remedy. The site's own search finds only pages that have every word.

// A shorter match says nothing: "{location} is {state}" is in many messages.
const LEAST_LETTERS = 8;

const plain = (text) => text.replaceAll("`", "").replace(/\s+/g, " ").trim().toLowerCase();

// What stays the same in a message, in order; `{…}` differs, and `…` at the end stands for the remedy.
const fixedParts = ({ message, remedy }) =>
  plain(message.replace(/…$/, remedy.replace(/\.$/, "")))
    .split(/\{\w+\}/)
    .map((part) => part.trim())
    .filter((part) => part);

// How many letters of a row are in the pasted text, in their order; 0: some are not.
const matchedLetters = (pasted, row) => {
  const text = plain(pasted);
  if (text === row.code) return Infinity;
  let end = 0;
  let letters = 0;
  for (const part of fixedParts(row)) {
    const at = text.indexOf(part, end);
    if (at < 0) return 0;
    end = at + part.length;
    letters += part.length;
  }
  return letters >= LEAST_LETTERS ? letters : 0;
};

// The rows of which the pasted text may be, the likeliest first, three at most.
const rowsOf = (pasted, rows) =>
  rows
    .map((row) => ({ row, letters: matchedLetters(pasted, row) }))
    .filter((each) => each.letters > 0)
    .sort((one, other) => other.letters - one.letters)
    .slice(0, 3)
    .map((each) => each.row);

const readRows = (section) =>
  [...section.querySelectorAll("li")].flatMap((item) => {
    const found = /^(\w+): (.*)$/s.exec(item.textContent.trim());
    if (!found || !item.querySelector("code")) return [];
    const [, code, message] = found;
    item.id ||= `reason-${code}`;
    const said = item.parentElement.previousElementSibling; // who can act, and what to do
    return [{ code, message, remedy: said.textContent.replace(/^[^.]*\. /, ""), html: said.innerHTML, id: item.id }];
  });

const addField = (section) => {
  const rows = readRows(section);
  const form = document.createElement("form");
  form.innerHTML =
    '<label>Paste a message or a code: <input type="search" size="60"></label><div role="status" aria-live="polite"></div>';
  const [input, answer] = [form.querySelector("input"), form.querySelector("div")];
  const show = () => {
    const found = rowsOf(input.value, rows);
    answer.replaceChildren(
      ...found.map((row) => {
        const line = document.createElement("p");
        line.innerHTML = `<a href="#${row.id}"><code>${row.code}</code></a> ${row.html}`;
        return line;
      }),
    );
    if (!found.length && input.value.trim()) answer.textContent = "No row has such a message.";
  };
  input.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  section.querySelector("h1").after(form);
};

if (typeof module !== "undefined") module.exports = { rowsOf };
else
  document.addEventListener("DOMContentLoaded", () => {
    const section = document.getElementById("troubleshooting-by-message");
    if (section) addField(section);
  });
