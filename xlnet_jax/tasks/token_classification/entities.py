"""Find entities in tags and score them, as seqeval in its default mode and conlleval do. A tag is O, or the place of a
word in an entity and its type, as B-PER."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Scheme = Literal["IOB1", "IOB2", "BIOES"]
# BILOU, BMEWO and BMES are BIOES by other letters; seqeval's default mode joins their neighbouring entities.
SAME_PLACE = {"L": "E", "U": "S", "W": "S", "M": "I"}
OUTSIDE = "O"
_TAG = re.compile(r"O|[BIESLUWM]([-_].+)?")


class Entity(NamedTuple):
    """Words of one name."""

    kind: str
    begin: int  # its first word
    end: int  # the word after its last


class Scores(NamedTuple):
    """Scores of all entities or of one type, 0 to 1; 0.0 where the denominator is 0."""

    precision: float
    recall: float
    f1: float
    true: int
    predicted: int


def is_tag(label: str) -> bool:
    """Return True where a label gives the place of a word in an entity."""
    return _TAG.fullmatch(label) is not None


def kind_of(tag: str) -> str:
    """Return the type of the entity that a word with this tag belongs to, "_" where the tag names none; O outside."""
    return OUTSIDE if _place(tag) == OUTSIDE else tag[2:] or "_"


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence (`get_entities` of seqeval): one begins at B and S, after O, E and S, and
    where the type changes, whatever the tag. So all schemes are read alike, and every sequence of tags has a
    reading."""
    found: list[Entity] = []
    last_place, last_kind = OUTSIDE, ""
    for i, tag in enumerate(tags):
        place, kind = _place(tag), tag[2:] or "_"
        if place != "O" and (place in "BS" or last_place in "OES" or kind != last_kind):
            found.append(Entity(kind, i, i + 1))
        elif place != "O":
            found[-1] = found[-1]._replace(end=i + 1)
        last_place, last_kind = place, kind
    return found


def strict_entities(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Return the entities that are tagged as their scheme demands (seqeval's strict mode): IOB2 begins with B; BIOES
    begins with B and ends with E, or is one S; IOB1 demands nothing."""
    wanted = {"IOB1": ("B", "I"), "IOB2": ("B",), "BIOES": ("BE", "S")}[scheme]
    kept = []
    for entity in entities(tags):
        first, last = _place(tags[entity.begin]), _place(tags[entity.end - 1])
        if (first if scheme != "BIOES" or first == "S" else first + last) in wanted:
            kept.append(entity)
    return kept


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme of these tags: BIOES has E or S; IOB1 begins most entities with I."""
    begins: Counter[str] = Counter()
    for tags in sentences:
        if any(_place(tag) in "ES" for tag in tags):
            return "BIOES"
        begins.update(tags[entity.begin][0] for entity in entities(tags))
    return "IOB1" if begins["I"] > begins["B"] else "IOB2"


def entity_scores(true: Iterable[Sequence[Entity]], predicted: Iterable[Sequence[Entity]]) -> dict[str | None, Scores]:
    """Return the scores of all entities (key None, the micro average) and of each type. A predicted entity is right
    where its words and its type are."""
    of_true, of_predicted, of_found = Counter[str](), Counter[str](), Counter[str]()
    for wanted, given in zip(true, predicted, strict=True):
        of_true.update(entity.kind for entity in wanted)
        of_predicted.update(entity.kind for entity in given)
        of_found.update(entity.kind for entity in set(wanted) & set(given))
    total = _scores(of_found.total(), of_true.total(), of_predicted.total())
    return {None: total} | {
        k: _scores(of_found[k], of_true[k], of_predicted[k]) for k in sorted(of_true | of_predicted)
    }


def _place(tag: str) -> str:
    return SAME_PLACE.get(tag[0], tag[0])


def _scores(found: int, true: int, predicted: int) -> Scores:
    f1 = 2 * found / max(true + predicted, 1)
    return Scores(found / max(predicted, 1), found / max(true, 1), f1, true, predicted)
