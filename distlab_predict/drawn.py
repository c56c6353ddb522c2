"""How often tokens reach a rank or a host, if a router chooses their experts by chance.

Called by torch_routing.py and routing.py; plain numbers, which need no torch. It runs anywhere.

A token goes to k of E experts, k different ones, each set of them as likely as any other. A rank
has b of the experts, side by side. The k experts are all elsewhere in C(E - b, k) of C(E, k) cases,
so the token reaches the rank with the probability 1 - C(E - b, k) / C(E, k), and on average as many
of the E / b ranks as the sum of their probabilities. 8 of 128 experts are on 6.6 of 16 ranks.

If the router first chooses g of G groups of e = E / G experts, a rank with a part of a group is
reached if its group is chosen (g / G) and then one of its b among the g e that are left. A rank
with s whole groups has j of the chosen ones with the probability C(s, j) C(G - s, g - j) / C(G, g),
and then j e of the g e that are left.
"""

from dataclasses import dataclass
from math import comb


@dataclass(frozen=True)
class Drawn:
    """How the experts of a token are drawn.

    Attributes:
        options: of them there are so many,
        chosen: and a token has so many of them, all different.
        groups, groups_chosen: they are in so many groups, of equal sizes and side by side, and a
            token's are from so many of these.
        each: the options that are one: 8, if a number is that of a rank with eight experts.
    """

    options: int
    chosen: int
    groups: int = 1
    groups_chosen: int = 1
    each: int = 1

    @property
    def parts(self) -> int:
        """How many there are of those that are one."""
        return self.options // self.each

    def reached(self) -> float:
        """The probability that a token has any expert of one part."""
        left = self.groups_chosen * self.options // self.groups
        of_group = self.options // self.groups
        if self.each % of_group and of_group % self.each:  # a part cuts groups: as without them
            return _any_of(self.each, self.options, self.chosen)
        whole = self.each // of_group
        if whole == 0:
            share = self.groups_chosen / self.groups
            return share * _any_of(self.each, left, self.chosen)
        found = 0.0
        for number in range(min(whole, self.groups_chosen) + 1):
            ways = comb(whole, number) * comb(self.groups - whole, self.groups_chosen - number)
            share = ways / comb(self.groups, self.groups_chosen)
            found += share * _any_of(number * of_group, left, self.chosen)
        return found

    def in_words(self) -> str:
        """How many parts the experts of a token are in."""
        number = self.reached() * self.parts
        return (
            f"routing: the {self.chosen} of {self.options} experts of a token are in {number:.2f} "
            f"of {self.parts} equal parts, on average, as if chosen by chance"
        )


def _any_of(some: int, options: int, chosen: int) -> float:
    """The probability that any of some options is among the chosen ones."""
    return 1 - comb(options - some, chosen) / comb(options, chosen)
