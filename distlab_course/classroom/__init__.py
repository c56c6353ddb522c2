"""A class: assignments made of lessons and answers, and how submitted ones are marked.

It runs where a teacher runs it. `assignments` builds what `labs` makes of a lab, for `python -m
distlab class`. `for_nbgrader` and `for_gradescope` are called by these two; they have notebooks
marked by `marking`, whose `judge` decides. A `runner` calls what a student wrote (`submission`), on
ranks and nowhere else; `suspicions` says what a person has to look at.
"""
