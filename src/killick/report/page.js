"use strict";

// Sorting: a first click sorts up, a second down; rows without a number come last.
function sortBy(table, column, descending) {
  const body = table.tBodies[0];
  const order = (row) => {
    const text = row.cells[column].dataset.order;
    return text === "" ? null : Number(text);
  };
  const rows = [...body.rows].map((row, place) => ({ row, place, value: order(row) }));
  rows.sort((a, b) => {
    if (a.value === null || b.value === null) {
      return (a.value === null) - (b.value === null) || a.place - b.place;
    }
    return (descending ? b.value - a.value : a.value - b.value) || a.place - b.place;
  });
  body.append(...rows.map((each) => each.row));
}

for (const table of document.querySelectorAll("table.arms")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const descending = now === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortBy(table, column, descending);
    });
  });
}

// Light and dark: as the system has it, or as chosen until the page is reloaded.
const theme = document.getElementById("theme");
const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : darkSystem.matches;
};
const nameTheme = () => {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", isDark() ? "Light theme" : "Dark theme");
};
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
darkSystem.addEventListener("change", nameTheme);
theme.hidden = false;
nameTheme();

// Saving a figure: with colors in place of the page's variables.
const colors = JSON.parse(document.getElementById("colors").textContent);
function save(button) {
  const drawing = button.closest(".panel").querySelector("svg");
  const text = new XMLSerializer()
    .serializeToString(drawing)
    .replace(/var\(--([\w-]+)\)/g, (_, role) => colors.light[role]);
  const place = text.indexOf(">") + 1;
  const whole = `${text.slice(0, place)}<style>${colors.dark}</style>${text.slice(place)}`;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([whole], { type: "image/svg+xml" }));
  link.download = `${button.dataset.save}.svg`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
for (const button of document.querySelectorAll("button[data-save]")) {
  button.hidden = false;
  button.addEventListener("click", () => save(button));
}

// On paper all folded tables are open.
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.more")) part.open = true;
});
