"""JupyterLab as `python -m distlab lab` starts it: `python -m distlab_course.jupyter OPTIONS`.

Runs in a person's own process. It is JupyterLab with two differences on the terminal: the address
is printed also where the token is the person's own, and ipyparallel's extension causes no warning.
"""

from typing import Any

import ipyparallel
from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import LabApp

# what Jupyter asks of an extension, under its present name and the one before
POINTS = "_jupyter_server_extension_points"
BEFORE = "_jupyter_server_extension_paths"


def main() -> None:
    """Be JupyterLab, with the arguments of this process."""
    if not hasattr(ipyparallel, POINTS) and hasattr(ipyparallel, BEFORE):
        setattr(ipyparallel, POINTS, getattr(ipyparallel, BEFORE))
    start = ServerApp.start

    def start_and_say_where(server: Any) -> None:
        server.io_loop.add_callback(say_where, server)  # once it listens
        start(server)

    setattr(ServerApp, "start", start_and_say_where)  # noqa: B010 - a type checker refuses `=`
    LabApp.launch_instance()


def say_where(server: Any) -> None:
    """Print the address, unless Jupyter prints it: it does for a token that it has made itself."""
    provider = server.identity_provider
    if provider.token and not provider.token_generated:
        print(f"JupyterLab is at {server.connection_url}lab and asks for your token.", flush=True)


if __name__ == "__main__":
    main()
