"""What distlab shows fits a real JupyterLab's pane, and can be read in both themes."""

import pytest
from nbformat.v4 import new_code_cell

from .test_lab import open_notebook, run_all

CELLS = {
    "start": (
        "import sys\n"
        "import distlab\n"
        "from distlab_course import figures\n"
        "cluster = distlab.Cluster(4)"
    ),
    "deadlock": (
        "%%px\n"
        "right, left = (rank + 1) % world_size, (rank - 1) % world_size\n"
        "theirs = torch.zeros(1)\n"
        "dist.recv(theirs, src=left)\n"
        "dist.send(torch.ones(1) * rank, dst=right)"
    ),
    "picture": "figures.who_waits(sys.last_value)",
    "mismatch": "%%px --check\ndist.all_reduce(torch.ones(1 + rank))",
    "argument": "cluster.run(lambda rank, n: rank, ranks=[7])",
    "left": "%%px\nimport warnings\ndist.isend(torch.ones(1), dst=(rank + 1) % 4)\n"
    "if rank == 0:\n    warnings.warn('a warning that is longer than a pane is wide')",
    "forgotten": "import torch\nimport torch.distributed as dist\ndist.all_reduce(torch.ones(1))",
    "verdict": (
        "def scale_by_rank(tensor):\n"
        "    tensor + rank\n\n"
        "distlab.check('scale_by_rank', scale_by_rank)"
    ),
}
THEMES = "JupyterLab Light", "JupyterLab Dark"

# Of what distlab shows as HTML: words that are cut, squares that are torn from their ranks, what is
# wider than its pane, and text with too little contrast.
FAULTS = """() => {
  const faults = [];
  const lines = range => {
    const rows = [...range.getClientRects()].filter(r => r.width > 1);
    return new Set(rows.map(r => Math.round(r.top))).size;
  };
  const parts = color => color.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], below) =>
    [r, g, b].map((part, at) => part * a + below[at] * (1 - a));
  const page = node => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      layers.unshift(parts(getComputedStyle(at).backgroundColor));
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const luminance = color => color.map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const outputs = ".jp-Notebook .jp-OutputArea-output.jp-RenderedHTML";
  for (const output of document.querySelectorAll(outputs)) {
    if (output.scrollWidth > output.clientWidth + 1) {
      faults.push("wider: " + output.innerText.slice(0, 60));
    }
    for (const kept of output.querySelectorAll("span[style*=nowrap]")) {
      if (lines(kept) > 1) faults.push("torn: " + kept.innerText);
    }
    const texts = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (!text.data.trim()) continue;
      for (const {0: word, index} of text.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        if (lines(range) > 1) faults.push("cut: " + word);
      }
      const below = page(text.parentElement);
      const ink = over(parts(getComputedStyle(text.parentElement).color), below);
      const both = [luminance(below), luminance(ink)].map(one => one + 0.05);
      const contrast = Math.max(...both) / Math.min(...both);
      if (contrast < 4.5) {
        faults.push(`contrast ${contrast.toFixed(2)}: ${text.data.slice(0, 40)}`);
      }
    }
  }
  return faults;
}"""
PICTURES = (
    "() => [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output img')]"
    ".map(image => image.alt)"
)
ERRORS = """() => {
  const stderr = '.jp-Notebook [data-mime-type="application/vnd.jupyter.stderr"]';
  return [...document.querySelectorAll(stderr)].map(shown => shown.innerText.trim());
}"""

pytestmark = pytest.mark.timeout(600)


def test_reports_fit_their_pane(page, lab, tmp_path):
    """At 900 and at 1400 pixels no word is cut, and each text has its contrast.

    A picture has an alternative text, and the error that JupyterLab shows by itself only has the
    name. A cell that forgot %%px gets its hint.
    """
    # so that no output is far from the screen and not drawn
    page.set_viewport_size({"width": 900, "height": 2400})
    tagged = {"tags": ["raises-exception"]}
    lab.write("panes.ipynb", [new_code_cell(source, metadata=tagged) for source in CELLS.values()])
    open_notebook(page, lab, "panes.ipynb")
    run_all(page)
    page.wait_for_function(f"() => ({ERRORS})().length === 4")
    *own, of_torch = page.evaluate(ERRORS)
    assert own == [
        f"{name} (see above)" for name in ("DeadlockError", "RankError", "ArgumentError")
    ]
    assert "Default process group has not been initialized" in of_torch
    waits = ", ".join(f"rank {rank} waits for rank {(rank - 1) % 4}" for rank in range(4))
    assert page.evaluate(PICTURES) == [f"who waits for whom: {waits}"]
    for words in (
        "DeadlockError: 4 of 4 ranks wait for each other",
        "ranks must be a list of different ranks",
        "started operations and did not wait",
        "this cell ran in the notebook. Begin the cell with %%px.",
    ):
        page.locator(".jp-RenderedHTML").get_by_text(words).first.wait_for()
    for width in (900, 1400):
        page.set_viewport_size({"width": width, "height": 2400})
        for theme in THEMES:
            page.evaluate(
                "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
                theme,
            )
            page.wait_for_function(
                "theme => document.body.dataset.jpThemeName === theme", arg=theme
            )
            page.wait_for_timeout(500)  # the new sheet of styles
            page.screenshot(path=tmp_path / f"{width} {theme}.png")
            assert page.evaluate(FAULTS) == [], (width, theme)
    assert page.complaints == []
    assert lab.stop() == []
