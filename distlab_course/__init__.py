"""What learners read and build: algorithms, data, data parallelism, checkpoints; exercises, figures, practice hosts."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("loopback_interface", "practice_hosts"):  # they are needed in the notebook's kernel only
        from distlab_course import practice

        return getattr(practice, name)
    if name == "probe":
        from distlab_course.probing import probe

        return probe
    raise AttributeError(f"module 'distlab_course' has no attribute {name!r}.")
