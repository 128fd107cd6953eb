"""German passages that are drawn from a small grammar: the hostile set in another language of `setting`.

They are correct German and made up. Real text would be better, but neither Python nor a package that the project needs
brings enough of it (no message catalogue; the largest pieces are lists of stop words and names), and the corpora are
English alone. The same seed gives the same passages on every machine.
"""

from __future__ import annotations

import random

SHORTEST = 300
"""Characters of a passage: it ends with the sentence that reaches them."""
ARTICLES = {"der": "den", "die": "die", "das": "das"}
"""In the nominative, and in the accusative."""
PEOPLE = (
    "die Ärztin", "der Bäcker", "die Bürgermeisterin", "der Briefträger", "der Dichter", "die Enkelin",
    "der Fischer", "die Försterin", "der Gärtner", "das Kind", "die Köchin", "der Lehrer", "das Mädchen",
    "die Müllerin", "die Nachbarin", "der Onkel", "die Pianistin", "der Richter", "die Schneiderin", "der Wirt",
)  # fmt: skip
THINGS = (
    "der Apfel", "das Bild", "die Brille", "der Brief", "das Brot", "das Buch", "die Decke", "das Fahrrad",
    "das Fenster", "die Flasche", "der Garten", "die Geige", "das Geschenk", "der Hut", "die Karte", "der Korb",
    "die Lampe", "der Mantel", "das Messer", "der Ofen", "die Rechnung", "der Schlüssel", "der Schrank",
    "der Stuhl", "die Tasche", "der Teppich", "die Tür", "die Uhr", "der Wagen", "die Zeitung",
)  # fmt: skip
STEMS = (
    "alt", "braun", "bunt", "ehrlich", "einfach", "freundlich", "groß", "jung", "klein", "langsam", "lustig",
    "neu", "schmal", "schwer", "schön", "seltsam", "still", "stolz", "streng", "vergesslich", "vornehm",
    "wunderlich",
)  # fmt: skip
"""Of adjectives: with the definite article they end in -e, in the accusative of masculine nouns in -en."""
VERBS = (
    "bemerkt", "beschreibt", "bewundert", "bezahlt", "findet", "holt", "kauft", "lobt", "malt", "prüft",
    "putzt", "repariert", "sucht", "trägt", "verkauft", "verliert", "vergisst", "verschenkt", "versteckt",
    "wünscht",
)  # fmt: skip
TIMES = (
    "am frühen Morgen", "am Sonntag", "an jedem zweiten Abend", "bald", "gegen Mittag", "gestern wie heute",
    "im Herbst", "in diesem Jahr", "jeden Freitag", "kurz vor Weihnachten", "manchmal", "nach dem Essen",
    "seit drei Wochen", "wieder",
)  # fmt: skip
PLACES = (
    "auf dem Markt", "auf der Brücke", "bei den Großeltern", "hinter dem Rathaus", "im Hafen", "im Keller",
    "in der Küche", "in einem Dorf an der Elbe", "neben der Kirche", "ohne ein Wort", "unter dem Kirschbaum",
    "vor der Schule", "zwischen zwei Häusern",
)  # fmt: skip
JOINTS = ("weil", "obwohl", "während", "bevor", "sobald", "wenn", "damit", "solange")


def passages(count: int, *, seed: int) -> list[str]:
    """So many passages of at least 300 characters."""
    draw = random.Random(seed)
    return [_passage(draw) for _ in range(count)]


def _passage(draw: random.Random) -> str:
    text = _sentence(draw)
    while len(text) < SHORTEST:
        text += " " + _sentence(draw)
    return text


def _sentence(draw: random.Random) -> str:
    """A statement that begins with the subject or the time, or a question; half of them with a clause behind."""
    who, does, what = _person(draw), draw.choice(VERBS), _thing(draw)
    when, where = draw.choice(TIMES), draw.choice(PLACES)
    forms = (
        f"{who} {does} {when} {what} {where}",
        f"{when} {does} {who} {what} {where}",
        f"{who} {does} {what} {where}",
    )
    text = draw.choice((*forms, f"warum {does} {who} {what} {where}"))
    end = "?" if text.startswith("warum") else "."
    if draw.random() < 0.5:
        text += f", {draw.choice(JOINTS)} {_person(draw)} {draw.choice(TIMES)} {_thing(draw)} {draw.choice(VERBS)}"
    return text[0].upper() + text[1:] + end


def _person(draw: random.Random) -> str:
    """A subject, in the nominative."""
    article, noun = draw.choice(PEOPLE).split()
    return f"{article} {draw.choice(STEMS)}e {noun}" if draw.random() < 0.5 else f"{article} {noun}"


def _thing(draw: random.Random) -> str:
    """An object, in the accusative."""
    article, noun = draw.choice(THINGS).split()
    ending = "en" if article == "der" else "e"
    return f"{ARTICLES[article]} {draw.choice(STEMS)}{ending} {noun}"
