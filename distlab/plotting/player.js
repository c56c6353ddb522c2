// The player of an algorithm's steps: one picture of the figure at a time, large, with buttons and a slider.
//
// Runs in the browser, in the handler of the figure's image, which it takes the place of; so it needs no id, no search
// and no finished page. It draws nothing: what is seen are panes onto the image. Lengths are in inches of the figure.
function (image) {
  const {title, key, dpi, origin, size, names, cell, pictures} = JSON.parse(image.dataset.steps);
  const SCALE = 160, RESTING = 700, ASIDE = 0.14;
  const MOVING = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 900;
  const last = pictures.length - 1;
  let at = 0, timer = 0, frame = 0;

  const make = (tag, style, text = "") => {
    const made = document.createElement(tag);
    made.style.cssText = style;
    made.textContent = text;
    return made;
  };
  const shape = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    return made;
  };

  const svg = shape("svg", {viewBox: "0 0 " + (size[0] + ASIDE) + " " + size[1], width: SCALE * (size[0] + ASIDE)});
  const name = shape("title", {});
  svg.setAttribute("role", "img");
  svg.append(name);
  svg.style.cssText = "display:block;max-width:100%;height:auto";
  // A pane is as large as a part of the figure, and shows the part whose left upper corner it is turned to.
  const turn = (pane, corner) => pane.setAttribute("viewBox", [...corner, ...pane.size].join(" "));
  const pane = (x, y, [width, height]) => {
    const made = shape("svg", {x, y, width, height}), [left, top] = origin;
    const extent = {width: image.naturalWidth / dpi, height: image.naturalHeight / dpi};
    made.append(shape("image", {href: image.src, x: left, y: top, ...extent}));
    made.size = [width, height];
    svg.append(made);
    return made;
  };
  const lanes = pane(0, 0, [names, size[1]]), picture = pane(names, 0, [size[0] - names, size[1]]);

  const show = step => {
    at = Math.max(0, Math.min(last, step));
    const [left, top] = pictures[at].corner;
    turn(lanes, [0, top]);
    turn(picture, [left, top]);
    slider.value = at;
    slider.setAttribute("aria-valuetext", pictures[at].heading);
    name.textContent = (title ? title + ": " : "") + pictures[at].heading;
  };
  const stop = () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    timer = frame = 0;
    svg.querySelectorAll(".chip").forEach(chip => chip.remove());
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
    const [left, top] = pictures[at].corner;
    const chips = pictures[at].moves.map(({looks, start, end}) => {
      const x = names + start[0] - left, y = start[1] - top, chip = pane(x, y, cell);
      chip.setAttribute("class", "chip");
      turn(chip, looks);
      return {chip, x, y, down: end[1] - start[1]};
    });
    const began = performance.now();
    const tick = now => {
      const t = MOVING ? Math.min(1, Math.max(0, (now - began) / MOVING)) : 1, done = t * t * (3 - 2 * t);
      chips.forEach(({chip, x, y, down}) => {
        chip.setAttribute("x", x + ASIDE * Math.sign(down) * Math.sin(Math.PI * done));
        chip.setAttribute("y", y + done * down);
      });
      if (t < 1) {
        frame = requestAnimationFrame(tick);
      } else {
        frame = 0;
        chips.forEach(({chip}) => chip.remove());
        show(at + 1);
        then();
      }
    };
    frame = requestAnimationFrame(tick);
  };
  const play = () => {
    timer = 0;
    if (at < last) move(() => timer = setTimeout(play, RESTING)); else stop();
  };

  const bar = make("div", "display:flex;gap:6px;align-items:center;padding:4px");
  bar.style.maxWidth = Math.max(280, size[0] * SCALE) + "px";
  const button = (label, hint, act) => {
    const made = make("button", "min-width:2em", label);
    made.title = hint;
    made.onclick = act;
    bar.append(made);
    return made;
  };
  button("\u2039", "one step back", () => {
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
  button("\u203a", "one step on", () => {
    settle();
    if (at < last) move(() => {});
  });
  const slider = make("input", "flex:1");
  Object.assign(slider, {type: "range", min: 0, max: last, step: 1});
  slider.setAttribute("aria-label", "step");
  slider.setAttribute("data-lm-suppress-shortcuts", "true"); // arrows are JupyterLab's keys from cell to cell
  slider.oninput = () => {
    stop();
    show(Number(slider.value));
  };
  bar.append(slider);
  show(0);
  const font = "font-family:DejaVu Sans,Verdana,sans-serif;color:inherit;padding:4px;";
  image.replaceWith(make("div", font + "font-size:15px", title), svg, bar, make("div", font + "font-size:12px", key));
}
