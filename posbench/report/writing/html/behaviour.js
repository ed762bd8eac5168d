"use strict";
// What the page can do beyond being read: sort, hide lines, show values, download, change theme.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const visible = (element) => element.getClientRects().length > 0;

  // Theme: the system's, until the button is pressed.
  const theme = document.querySelector(".theme");
  const root = document.documentElement;
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  // Sorting: by the measure in sight; what has no number stays last.
  const key = (row, column) => {
    const cell = row.children[column];
    const shown = all(".reading", cell).find(visible);
    if (!shown) return cell.textContent;
    if ("value" in shown.dataset) return Number(shown.dataset.value);
    return cell.classList.contains("text") ? shown.textContent : null;
  };
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  const sort = (table, column, order) => {
    const sign = order === "descending" ? -1 : 1;
    const rows = all("tbody tr", table).map((row) => ({ row, key: key(row, column) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * compare(a.key, b.key);
    });
    table.tBodies[0].append(...rows.map(({ row }) => row));
    all("thead th", table).forEach((head, place) => {
      head.setAttribute("aria-sort", place === column ? order : "none");
    });
  };
  for (const button of all("thead button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      sort(head.closest("table"), head.cellIndex, order);
    });
  }
  for (const radio of all("input[type=radio]")) {
    radio.addEventListener("change", () => {
      const table = radio.closest(".part").querySelector("table");
      const head = table.querySelector("[aria-sort$=ending]");
      if (head) sort(table, head.cellIndex, head.getAttribute("aria-sort"));
    });
  }

  // Lines: pointing at one shows it alone, a click in the legend hides it.
  const focus = (picture, line) => {
    picture.classList.toggle("focused", line !== null);
    for (const part of all(".line, .named", picture)) {
      part.classList.toggle("on", part.dataset.line === line);
    }
  };
  const toggle = (figure, line) => {
    for (const part of all(`[data-line="${line}"]`, figure)) {
      if (part.matches(".item")) {
        part.setAttribute("aria-pressed", part.getAttribute("aria-pressed") === "false");
      } else part.classList.toggle("off");
    }
  };
  for (const item of all(".item")) {
    const picture = item.closest("svg");
    const line = item.dataset.line;
    item.setAttribute("role", "button");
    item.setAttribute("tabindex", "0");
    item.setAttribute("aria-pressed", "true");
    item.addEventListener("click", () => toggle(item.closest("figure"), line));
    item.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle(item.closest("figure"), line);
    });
    item.addEventListener("pointerenter", () => focus(picture, line));
    item.addEventListener("pointerleave", () => focus(picture, null));
  }

  // Values: of the point nearest to the pointer, on the line nearest to it.
  const toSegment = (p, a, b) => {
    const [x, y] = [b.x - a.x, b.y - a.y];
    const length = x * x + y * y;
    const share = length ? Math.max(0, Math.min(1, ((p.x - a.x) * x + (p.y - a.y) * y) / length)) : 0;
    return Math.hypot(p.x - a.x - share * x, p.y - a.y - share * y);
  };
  const toLine = (p, points) =>
    Math.min(...points.map((point, place) => toSegment(p, points[Math.max(0, place - 1)], point)));
  const lines = (picture) =>
    all(".line:not(.off)", picture).map((group) => ({
      id: group.dataset.line,
      points: all(".marker", group).map((marker) => {
        const { e, f } = marker.transform.baseVal[0].matrix;
        return { x: e, y: f, says: marker.getAttribute("aria-label") };
      }),
    }));
  const show = (figure, picture, p) => {
    const near = lines(picture)
      .map((line) => ({ ...line, far: toLine(p, line.points) }))
      .sort((a, b) => a.far - b.far)[0];
    figure.querySelector(".tip")?.remove();
    focus(picture, near && near.far < 40 ? near.id : null);
    if (!near || near.far >= 40) return;
    const far = (point) => Math.hypot(point.x - p.x, point.y - p.y);
    const point = near.points.reduce((a, b) => (far(b) < far(a) ? b : a));
    const tip = Object.assign(document.createElement("div"), { className: "tip" });
    tip.textContent = point.says;
    figure.append(tip);
    const place = new DOMPoint(point.x, point.y).matrixTransform(picture.getScreenCTM());
    const box = figure.getBoundingClientRect();
    const left = Math.min(place.x - box.left + 12, box.width - tip.offsetWidth);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${place.y - box.top - tip.offsetHeight - 10}px`;
  };
  for (const picture of all("figure svg")) {
    const figure = picture.closest("figure");
    for (const title of all("title", picture)) {
      title.parentNode.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    picture.addEventListener("pointermove", (event) => {
      if (event.target.closest(".item")) return;
      const inverse = picture.getScreenCTM().inverse();
      show(figure, picture, new DOMPoint(event.clientX, event.clientY).matrixTransform(inverse));
    });
    picture.addEventListener("pointerleave", () => {
      figure.querySelector(".tip")?.remove();
      focus(picture, null);
    });
  }

  // Download: the picture in sight, its looks written into it.
  const LOOKS = ["fill", "fill-rule", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
    "stroke-linejoin", "opacity", "paint-order", "font-family", "font-size", "text-anchor"];
  const standalone = (picture) => {
    const copy = picture.cloneNode(true);
    const originals = all("*", picture);
    all("*", copy).forEach((element, place) => {
      const looks = getComputedStyle(originals[place]);
      if (looks.display === "none") return element.classList.add("gone");
      for (const name of LOOKS) element.setAttribute(name, looks.getPropertyValue(name));
    });
    all(".gone, .hit", copy).forEach((element) => element.remove());
    const { width, height } = picture.viewBox.baseVal;
    const paper = document.createElementNS(picture.namespaceURI, "rect");
    const room = 16;
    const box = { x: -room, y: -room, width: width + 2 * room, height: height + 2 * room };
    for (const name in box) paper.setAttribute(name, box[name]);
    paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
    copy.prepend(paper);
    copy.setAttribute("viewBox", Object.values(box).join(" "));
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    return new XMLSerializer().serializeToString(copy);
  };
  for (const button of all(".download")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const figure = button.closest("figure");
      const picture = all("svg", figure).find(visible);
      const blob = new Blob([standalone(picture)], { type: "image/svg+xml" });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = figure.dataset.file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }
})();
