"""A class: assignments made of lessons and answers, and how submitted ones are marked.

It runs where a teacher runs it. `assignments` builds what `labs` makes of a lab, for `python -m
distlab class`. `for_nbgrader` and `for_gradescope` are called by these two; they read what was
`handed_in`, and have it marked by `marking`. There are two kinds of processes beside that one.
A `judge` decides (`judge_process` starts it, `signing` says that a verdict is its own): by the text
of `cells` and their `statements`, `submission` finds what an answer needs, and `suspicions` what a
person has to look at. A `runner` calls what a student wrote (`answer`), on ranks and nowhere else;
`runner_process` starts it.
"""
