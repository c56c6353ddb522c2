"""distlab.plotting.LivePlot in a real kernel: what a front end is told, with a person at it and without."""

import pytest
from jupyter_client.manager import start_new_kernel

CODE = """\
from distlab import plotting
from distlab.plotting import live

live.PAUSE_SECONDS = 0.0
with plotting.LivePlot("digits") as picture:
    for epoch in range(3):
        picture.add("loss", "rank 0", epoch, 1.0 / (epoch + 1))
        picture.update()
"""


@pytest.mark.parametrize(("watched", "updates"), [(True, 3), (False, 0)])
def test_one_picture_takes_the_place_of_another(watched, updates):
    """One output is made; where a person watches it is updated in place, and the last update is the whole picture."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        messages = []
        client.execute_interactive(CODE, allow_stdin=watched, output_hook=messages.append, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    told = [(m["header"]["msg_type"], m["content"]) for m in messages if "display" in m["header"]["msg_type"]]
    assert [kind for kind, _ in told] == ["display_data"] + ["update_display_data"] * updates
    assert len({content["transient"]["display_id"] for _, content in told}) == 1
    pictures = [content["data"]["image/png"] for _, content in told]
    assert len(set(pictures)) == max(1, updates)  # the last update repeats what the last epoch showed
    assert told[-1][1]["data"]["text/plain"] == "<Figure size 480x340 with 1 Axes>"
