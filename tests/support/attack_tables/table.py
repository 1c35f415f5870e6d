"""All attacks and all honest solutions."""

from support.attack_tables import (
    assertions,
    escaping,
    exhausting,
    forging,
    honest,
    hooking,
    leaving,
    outliving,
    proxying,
    reading,
    way_out,
)
from support.attacks import Attack, Honest

ATTACKS: list[Attack] = [
    attack
    for module in (forging, leaving, assertions, hooking, reading, outliving, way_out, exhausting, escaping, proxying)
    for attack in module.ATTACKS
]
HONEST: list[Honest] = honest.HONEST
