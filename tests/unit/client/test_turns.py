"""Turns: whose debugger the person types to."""

from distlab.client import turns
from distlab.wire.messages import COMMUNICATING, Answer, RankStatus


class Channel:
    """That to two ranks; the second stops while the person types to the first, which then waits for it."""

    def __init__(self):
        self.asks, self.typed, self.arriving = {1: "> line 4\n(rank 1) "}, [], [{}, {2: "> line 4\n(rank 2) "}]
        self.ends = {1: None, 2: None}

    def hear(self, limit):
        self.asks |= self.arriving.pop(0) if self.arriving else {}

    def type(self, rank, line):
        self.asks.pop(rank, None)
        self.typed.append((rank, line))

    def ask(self, ranks):
        return {rank: Answer(0, RankStatus(rank, COMMUNICATING)) if self.typed else Answer(0) for rank in ranks}


def test_a_rank_that_has_come_meanwhile_can_be_chosen(monkeypatch, capsys):
    lines, prompts = ["rank 2", "c", "rank 3", "c"], []
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or lines.pop(0))
    channel, turn = Channel(), -1
    for last in (2, 2, 1, 1):
        turn = turns.take(channel, turn)
        assert turn == last
    assert prompts == ["(rank 1) ", "(rank 2) ", "(rank 1) ", "(rank 1) "]
    assert channel.typed == [(2, "c\n"), (1, "c\n")]
    assert capsys.readouterr().out.endswith("rank 3 is not at a breakpoint: rank 1 can be chosen\n")
