"""Turns: whose debugger the person types to."""

from distlab.client import turns
from distlab.wire.messages import Answer


class Channel:
    """That to two ranks; the second stops while the person types to the first."""

    def __init__(self):
        self.asks, self.typed, self.arriving = {1: "> line 4\n(rank 1) "}, [], [{2: ""}, {2: "> line 4\n(rank 2) "}]
        self.ends = {1: None, 2: None}

    def hear(self, limit):
        self.asks |= self.arriving.pop(0) if self.arriving else {}

    def type(self, rank, line):
        self.asks.pop(rank, None)
        self.typed.append((rank, line))

    def ask(self, ranks):
        return {rank: Answer(0) for rank in ranks}


def test_a_rank_that_has_come_meanwhile_can_be_chosen(monkeypatch, capsys):
    lines, prompts = ["rank 2", "c"], []
    monkeypatch.setattr(turns, "can_type", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or lines.pop(0))
    channel = Channel()
    whose = turns.Turns(channel)
    whose.take()
    whose._expect = lambda ranks: None  # nobody is left to ask again
    whose.take()
    assert prompts == ["(rank 1) ", "(rank 2) "]
    assert channel.typed == [(2, ""), (2, "c\n")]
    assert "is not at a breakpoint" not in capsys.readouterr().out
