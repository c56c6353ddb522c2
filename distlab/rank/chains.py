"""What a program was handling when an error was raised.

Runs on every rank. log.py raises readable errors in the place of others with it; raised.py looks
for the learner's own error in a chain.
"""

from typing import NoReturn


def chain_of(error: BaseException) -> list[BaseException]:
    """An error, and those that were being handled when it was raised, the newest first.

    Not those that `raise ... from None` hides. A learner may have made a circle of them.
    """
    chain = [error]
    seen = {id(error)}
    while not error.__suppress_context__ and error.__context__ is not None:
        error = error.__context__
        if id(error) in seen:
            break
        seen.add(id(error))
        chain.append(error)
    return chain


def raise_instead(readable: Exception, error: BaseException) -> NoReturn:
    """Raise an error in the place of another one, with what the program was handling by then.

    Python would note the other one as what was being handled.
    """
    earlier = chain_of(error)[1:]
    try:
        raise readable
    finally:
        readable.__context__ = None
        if earlier and not any(readable is one for one in earlier):
            readable.__context__ = earlier[0]
