"""Make pages as a crawler finds them, with known duplicates: `crawl(seed)`."""

import html
import itertools
import random
from typing import NamedTuple

from data_pipelines import sources

TEMPLATES = (
    "The hotel {0} stands in the middle of {1}, a few steps from the old market and from the harbour. All {2} rooms "
    "have a bath, a desk and a view of the gardens, and breakfast is served from seven to ten in the hall on the "
    "ground floor. Guests of the hotel may leave their bicycles in the yard, and the host will gladly give them a map "
    "of the walks in the neighbourhood. The last bus to the station goes at {2} minutes past eleven.",
    "Nothing was found for your search for {0} in the shop of {1}. It may be that the article has been sold, or that "
    "the name was not written as it is in our list of {2} things. Try fewer words, look at the list of makers in the "
    "column on the left, or write to us what you are looking for: we answer all letters in the order in which they "
    "come, and often we can still get what has not been made for years.",
)
SPAM = (
    lambda draw: " ".join(["buy cheap watches online now"] * draw.randint(30, 60)),
    lambda draw: " ".join(f"#{draw.choice(NAMES)}" for _ in range(draw.randint(60, 90))),
    lambda draw: "\n".join(f"• {draw.choice(NAMES)} {draw.choice(NAMES)} of the {n}" for n in range(60)),
    lambda draw: " ".join(f"{draw.randint(1, 10**6)}" for _ in range(120)),
    lambda draw: "\n".join(f"{a} and the {draw.choice(NAMES)} of {a} have …" for a in draw.sample(NAMES, 30)),
    lambda draw: " ".join(draw.sample(NAMES, 20)),
)
SYLLABLES = "ba ke lo mi nur ta ven dor sha pel qui ras tol um wex yar zen fi gro hul".split()
NAMES = ["".join(parts).capitalize() for parts in itertools.product(SYLLABLES[:12], SYLLABLES[8:])]


class Page(NamedTuple):
    """text: as it is crawled. kind: unique, or what is to be found. own: its own lines; others are boilerplate."""

    text: str
    kind: str
    own: tuple[str, ...]
    around: tuple[str, ...]


def crawl(seed: int, count: int = 1000) -> list[Page]:
    """Return `count` pages of sites with headers and footers: about 55% are unique, the others copies, pages of
    templates, or no prose."""
    draw = random.Random(seed)
    with open(sources.embedded()[0]) as novels:
        paragraphs = [line.strip() for line in novels if len(line.split()) > 25]
    begin = draw.randrange(len(paragraphs))
    fresh = iter(paragraphs[begin:] + paragraphs[:begin])
    sites = [_site(draw, number) for number in range(30)]
    sizes = [draw.choice((1, 2, 4, 8)) for _ in sites]
    quotes = [next(fresh) for _ in range(5)]
    unique = [_unique(draw, fresh, quotes) for _ in range(round(0.55 * count))]
    bodies = [("unique", own) for own in unique]
    template_of = [draw.sample(NAMES, 40) for _ in TEMPLATES]
    while len(bodies) < count:
        kind = draw.choice(("exact", "near", "near", "near", "template", "spam"))
        if kind == "template":
            number = draw.randrange(len(TEMPLATES))
            slots = draw.choice(template_of[number]), draw.choice(NAMES), draw.randint(12, 400)
            bodies.append((kind, (TEMPLATES[number].format(*slots),)))
        elif kind == "spam":
            bodies.append((kind, tuple(draw.choice(SPAM)(draw).split("\n"))))
        else:
            own = draw.choice(unique)
            bodies.append((kind, own if kind == "exact" else _edited(draw, own)))
    head, rest = bodies[: len(unique)], bodies[len(unique) :]
    draw.shuffle(rest)  # the first of a template stays; copies come after what they copy
    seen = set()
    pages = []
    for kind, own in [*head, *rest]:
        if kind == "template" and (first := own[0][:9]) not in seen:
            seen.add(first)
            kind = "unique"
        site = draw.choices(sites, sizes)[0]
        pages.append(_page(draw, kind, own, site))
    return pages


def _unique(draw, fresh, quotes):
    own = [next(fresh) for _ in range(draw.choice((1, 2, 2, 3, 5)))]
    while sum(len(line.split()) for line in own) < 70:
        own.append(next(fresh))
    if draw.random() < 0.1:
        own.insert(1, draw.choice(quotes))  # a quotation that several pages share
    if draw.random() < 0.05:
        own.append(
            f"In {draw.choice(NAMES)} write &lt; for <; {draw.choice(NAMES)} < 7 && {draw.choice(NAMES)} > 2 has both."
        )
    if draw.random() < 0.05:
        own.append(
            f"He said that the privacy policy of {draw.choice(NAMES)} was longer than the law itself, and that "
            f"nobody in {draw.choice(NAMES)} had ever read it to the end, least of all those who were to keep it."
        )
    if draw.random() < 0.1:
        own.append(f"{draw.choice(NAMES)} had {draw.randint(2, 99)} apples at {draw.randint(2, 99)} pence.")
    return tuple(own)


def _edited(draw, own):
    """Change a text as those do who copy it."""
    lines = [line.split() for line in own]
    share = draw.uniform(0.01, 0.08)
    for words in lines:
        for place in range(len(words)):
            if draw.random() < share:
                words[place] = draw.choice((draw.choice(NAMES), words[draw.randrange(len(words))], ""))
    lines = [" ".join(filter(None, words)) for words in lines]
    how = draw.randrange(5)
    if how == 0:
        lines = [" ".join(lines)]
    elif how == 1:
        lines = [f"{draw.choice(NAMES)}, {draw.randint(1, 28)} May {draw.randint(1990, 2024)}", *lines]
    elif how == 2:
        lines = [line.upper() for line in lines]
    elif how == 3:
        words = lines[-1].split()
        lines[-1] = " ".join(words[: -max(len(words) // 10, 1)])
    else:
        lines = [line.replace(", ", "; ") for line in lines]
    return tuple(lines)


def _site(draw, number):
    name = NAMES[number * 3]
    menu = [f"{word} {name}" for word in draw.sample(("Home of", "About", "News of", "Shop", "Contact", "Login"), 4)]
    legal = f"© {name} Ltd. All rights reserved. {name} is a registered company at {draw.randint(1, 99)} Main Street."
    cookie = f"We use cookies to make {name} better for you."
    foot = [legal, cookie, f"Read more stories on {name}", "Share this page with your friends"]
    return menu, foot, draw.random() < 0.4


def _page(draw, kind, own, site):
    menu, foot, is_html = site
    dated = f"Posted on {draw.randint(1, 28)}.{draw.randint(1, 12)}. by {menu[0].split()[-1]}"
    around = (*menu, dated, *foot)
    lines = [*menu, dated, *own, *foot]
    if not is_html:
        return Page("\n".join(lines), kind, own, around)
    links = "".join(f"<li><a href='/{n}'>{html.escape(line)}</a></li>" for n, line in enumerate(menu[1:]))
    text = (
        f"<!DOCTYPE html><html><head><style>p {{ color: red }}</style><title>{html.escape(menu[0])}</title></head>"
        f"<body><ul>{links}</ul><div class=date>{dated}</div><!-- page --><script>if (1 < 2) {{ a('<p>') }}</script>"
        f"{''.join(f'<p>{html.escape(line)}</p>' for line in own)}<footer>{'<br/>'.join(map(html.escape, foot))}"
        "</footer></body></html>"
    )
    return Page(text, kind, own, around)
