"""How Sphinx builds the site: README, lessons with their saved outputs, reports, API. Run by: make
site.

The source folder is the project's root, so that the links between README, lessons and diagrams hold
on the site, too. Nothing is executed.
"""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import distlab  # noqa: E402

project = "distlab"
author = "the authors of distlab"
release = distlab.__version__
html_title = "distlab"
root_doc = "README"
include_patterns = [
    "README.md",
    "TEACHING.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "notebooks/**.ipynb",
    "docs/**.md",
]
include_patterns += ["notebooks/cheat_sheet.md", "benchmarks/README.md"]
exclude_patterns = ["**/.ipynb_checkpoints"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"
nb_render_error_lexer = "text"  # a report is no traceback of Python
nb_merge_streams = True
nb_output_stderr = "show"
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
suppress_warnings = [
    "mystnb.unknown_mime_type",
    "misc.highlighting_failure",  # a cell with %%writefile holds a file that is not Python
]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
default_role = "literal"  # a name between single backticks, in docstrings

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["first"]  # index.html, which leads to README.html
html_show_copyright = False
html_theme_options = {"footer_icons": []}

ANSWERS = "notebooks/solutions/"  # which the search does not show
PARTS = {
    "0": "The core course",
    "1": "Messages and algorithms",
    "2": "Training",
    "3": "Starting and backends",
    "4": "Remote calls",
    "5": "Sharding and pipelines",
    "6": "Machines",
}
# "owner/name", where a workflow publishes the site
REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")


def toctree(caption: str, pages: list[str], glob: bool = False) -> str:
    options = [":hidden:", f":caption: {caption}", ":maxdepth: 1", *([":glob:"] if glob else [])]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def contents() -> str:
    """The site's table of contents, which README gets here."""
    labs = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    trees = [
        toctree(name, [f"notebooks/{lab}" for lab in labs if lab[0] == part])
        for part, name in PARTS.items()
    ]
    pages = (
        "course",
        "install",
        "package",
        "scripts",
        "explain",
        "testing",
        "portability",
        "hosts",
        "speed",
    )
    above = [  # or they would stand below 30 labs
        toctree("distlab", [f"docs/{page}" for page in pages]),
        toctree(
            "Reference", ["docs/api", "notebooks/cheat_sheet", "benchmarks/README", "CHANGELOG"]
        ),
        toctree("For teachers and developers", ["TEACHING", "CONTRIBUTING"]),
        toctree("When something goes wrong", ["docs/silent_mistakes", "docs/reports/*"], glob=True),
    ]
    trees = [*above, *trees, toctree("Answers", [f"{ANSWERS}*"], glob=True)]
    return "".join(trees)


def buttons(page: str) -> str:
    """The line below a lesson's title: where to run it."""
    name = Path(page).name
    links = [f"{{download}}`Download <{name}.ipynb>`"]
    if REPOSITORY:
        if page == f"notebooks/{name}":  # make colab builds no answers
            colab = f"https://colab.research.google.com/github/{REPOSITORY}/blob/colab/{name}.ipynb"
            links.append(f"[Open in Colab]({colab})")
        links.append(
            f"[Open in Binder](https://mybinder.org/v2/gh/{REPOSITORY}/HEAD?urlpath=lab/tree/{page}.ipynb)"
        )
    return " · ".join(links)


def picture_of(cell: dict) -> dict[str, str]:
    """How the picture that a cell has drawn is shown, with its width on the page and with words for
    it: those that were saved with it, or its code. Empty without a picture.
    """
    pictures = [
        output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    if not pictures:
        return {}
    saved = pictures[0]["metadata"].get("image/png", {})
    text = "".join(pictures[0]["data"].get("text/plain", ""))
    code = "".join(cell["source"]).strip().splitlines()
    drawn = f"drawn by {code[-1].strip()}" if text.startswith("<Figure") else text
    options = {"alt": saved.get("alt") or drawn}
    widths = {picture["metadata"].get("image/png", {}).get("width") for picture in pictures}
    if len(widths) == 1 and "width" in saved:  # a sharp picture has more pixels
        options["width"] = f"{saved['width']}px"
    return options


def prepare(app, page: str, source: list[str]) -> None:
    """README gets the table of contents; each lesson its buttons, the colours of its code, and what
    it folds.
    """
    if page == root_doc:
        source[0] += contents()
    elif page.startswith("notebooks/") and source[0].startswith("{"):
        notebook = json.loads(source[0])
        notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        for cell in notebook["cells"]:
            # the reader is asked for a prediction first
            if cell["metadata"].get("jupyter", {}).get("outputs_hidden"):
                cell["metadata"].setdefault("tags", []).append("hide-output")
            if options := picture_of(cell):
                cell["metadata"]["mystnb"] = {"image": options}
        first = notebook["cells"][0]["source"]
        notebook["cells"][0]["source"] = [first[0], "\n", buttons(page) + "\n", *first[1:]]
        source[0] = json.dumps(notebook)


def leave_answers_out(app, env) -> None:
    """Keep the words of answers out of the search: somebody who looks for a call is still to solve
    its exercise.
    """
    for page in env.found_docs:
        if page.startswith(ANSWERS):
            env.metadata[page]["nosearch"] = True


def as_rst(app, what: str, name: str, thing, options, lines: list[str]) -> None:
    """A docstring as reStructuredText: an indented block after an empty line is code, and a star is
    a star.
    """
    done, indented, code = [], False, False
    for line in lines:
        before, indented = indented, line.startswith(" ") if line else indented
        if indented and not before and done and not done[-1]:
            code = True
            done += ["::", ""]
        code = code and indented
        parts = [line] if code else re.split(r"(`[^`]*`)", line)
        done.append(
            "".join(
                part if code or part.startswith("`") else part.replace("*", "\\*") for part in parts
            )
        )
    lines[:] = done


def setup(app) -> None:
    app.connect("source-read", prepare)
    app.connect("env-updated", leave_answers_out)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon
