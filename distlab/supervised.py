"""`SupervisedThread`: a thread that cannot die without anybody knowing.

Base class of two threads on every rank, the watchdog (rank/watchdog.py) and the one that posts
calls in checked mode (rank/checks.py), and in the notebook's kernel of the readers of connections
(notebook/connection.py) and of the start ahead (notebook/ahead.py).
"""

import threading


class SupervisedThread(threading.Thread):
    """A daemon thread that reports what ends it, and then says that what it served is lost.

    Nobody waits for a thread that serves others, so nobody sees the exception that ends one:
    Python prints a traceback, and the program goes on. What the thread has kept up to date for
    others, such as the processes of a host, still holds the values of its last moment. They look
    healthy, and everybody waits for an answer that no one is left to give. So whatever happens in
    `serve`, `on_error` is told, and `on_end` tells those who rely on the thread that it is gone:
    they replace a rank or a host, or do without.

    A subclass handles what it expects to go wrong inside of `serve`, and goes on there. If even
    `on_error` raises, `on_end` is still called, and Python prints the traceback.
    """

    def __init__(self, name: str):
        super().__init__(name=name, daemon=True)

    def serve(self) -> None:
        """Do the thread's work; return when there is no more of it."""
        raise NotImplementedError

    def on_error(self, error: BaseException) -> None:
        """Report the exception that has ended `serve`."""
        raise NotImplementedError

    def on_end(self) -> None:
        """Mark what the thread served as lost; the last thing that the thread does."""
        raise NotImplementedError

    def run(self) -> None:
        """Serve, and in the end have it said that the thread is gone, whatever has ended it."""
        try:
            self.serve()
        except BaseException as error:
            self.on_error(error)
        finally:
            self.on_end()
