"""A class: assignments made of lessons and answers, and how submitted ones are marked. Runs where a teacher runs it.

`assignments` builds, for `python -m distlab class`; `for_nbgrader` is called by nbgrader; `judge` decides, in a process
of its own, and what a student wrote (`submission`) runs on the judge's ranks only.
"""
