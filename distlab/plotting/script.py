"""The script of the player: what runs in the browser.

Called by `player`, which puts it into its HTML.
"""

from __future__ import annotations


def _compact(script: str) -> str:
    """A script on one line, without its comments."""
    lines = (line.strip() for line in script.splitlines())
    return "".join(line for line in lines if not line.startswith("//"))


# It runs in the handler of the image that it takes the place of, and so needs no id, no search and no finished page.
SCRIPT = _compact(
    """
function (img) {
  const SCALE = 1.6, RESTING = 700, ASIDE = 14;
  const MOVING = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 900;
  const text = atob(img.src.slice(img.src.indexOf(",") + 1));
  const row = document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
  const pictures = [...row.querySelectorAll("g.picture")], names = row.querySelector("g.names");
  const [width, height, left] = img.dataset.size.split(" ").map(Number), last = pictures.length - 1;
  let at = 0, timer = 0, frame = 0;

  const make = (tag, style, text = "") => {
    const made = document.createElement(tag);
    made.style.cssText = style;
    made.textContent = text;
    return made;
  };
  const font = "font-family:DejaVu Sans,Verdana,sans-serif;";
  const title = make("div", font + "font-size:15px;color:#797979;padding:4px", img.dataset.title);
  const key = make("div", font + "font-size:12px;color:#797979;padding:4px", img.dataset.key);
  const bar = make("div", "display:flex;gap:6px;align-items:center;padding:4px");
  bar.style.maxWidth = Math.max(280, width * SCALE) + "px";
  const button = (label, hint, act) => {
    const made = make("button", "min-width:2em", label);
    made.title = hint;
    made.onclick = act;
    bar.append(made);
    return made;
  };

  // The pictures lie on each other, large, beside the names of their lanes; one is visible.
  const svg = row.cloneNode(false);
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  svg.setAttribute("width", width * SCALE);
  svg.removeAttribute("height");
  svg.style.cssText = "display:block;max-width:100%;height:auto;padding-left:4px;box-sizing:border-box";
  names.removeAttribute("transform");
  pictures.forEach(picture => picture.setAttribute("transform", "translate(" + left + " 0)"));
  svg.append(names, ...pictures);

  const show = step => {
    at = Math.max(0, Math.min(last, step));
    pictures.forEach((picture, k) => picture.style.display = k === at ? "" : "none");
    slider.value = at;
    slider.setAttribute("aria-valuetext", pictures[at].querySelector("text").textContent);
  };
  const stop = () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    timer = frame = 0;
    svg.querySelectorAll("g.chip").forEach(chip => chip.remove());
    playing.textContent = "play";
  };
  // A click counts from where the one before it leads, and does not wait until that is shown.
  const settle = () => {
    const moving = frame;
    stop();
    if (moving) show(at + 1);
  };

  // What is sent moves beside its arrow; then the next picture is shown.
  const move = then => {
    const cell = (picture, key) => picture.querySelector("g.cell[data-at='" + key + "']");
    const place = cell => cell.transform.baseVal.getItem(0).matrix;
    const chips = [...pictures[at].querySelectorAll("g.move")].map(arrow => {
      const from = cell(pictures[at], arrow.dataset.from), to = cell(pictures[at], arrow.dataset.to);
      const chip = (arrow.dataset.first ? cell(pictures[0], arrow.dataset.first) : from).cloneNode(true);
      chip.setAttribute("class", "chip");
      chip.firstChild.setAttribute("stroke", "#797979");
      from.parentNode.append(chip);
      return {chip, x: place(from).e, y: place(from).f, down: place(to).f - place(from).f};
    });
    const began = performance.now();
    const tick = now => {
      const t = MOVING ? Math.min(1, Math.max(0, (now - began) / MOVING)) : 1, part = t * t * (3 - 2 * t);
      chips.forEach(({chip, x, y, down}) => {
        const aside = ASIDE * Math.sign(down) * Math.sin(Math.PI * part);
        chip.setAttribute("transform", "translate(" + (x + aside) + " " + (y + part * down) + ")");
      });
      if (t < 1) {
        frame = requestAnimationFrame(tick);
      } else {
        const next = at + 1;
        frame = 0;
        chips.forEach(({chip}) => chip.remove());
        show(next);
        then();
      }
    };
    frame = requestAnimationFrame(tick);
  };
  const play = () => {
    timer = 0;
    if (at < last) move(() => timer = setTimeout(play, RESTING)); else stop();
  };

  button("\\u2039", "one step back", () => {
    settle();
    show(at - 1);
  });
  const playing = button("play", "play or pause", () => {
    const pause = playing.textContent === "pause";
    settle();
    if (pause) return;
    if (at === last) show(0);
    playing.textContent = "pause";
    timer = setTimeout(play, RESTING / 2);
  });
  playing.style.minWidth = "4.5em";
  button("\\u203a", "one step on", () => {
    settle();
    if (at < last) move(() => {});
  });
  const slider = make("input", "flex:1");
  Object.assign(slider, {type: "range", min: 0, max: last, step: 1});
  slider.setAttribute("aria-label", "step");
  slider.oninput = () => {
    stop();
    show(Number(slider.value));
  };
  bar.append(slider);
  show(0);
  img.replaceWith(title, svg, bar, key);
}
"""
)
