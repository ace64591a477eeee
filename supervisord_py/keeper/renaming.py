"""A child that was started for nobody in particular becomes somebody's: another key, another unit, its own log.

Law: the process goes on and notices nothing. What it printed before is the old unit's; what it prints from now on, and
its end, are the new one's. Only one that runs undisturbed can be renamed: never one that ended or is being stopped.
"""

from __future__ import annotations

import time

from supervisord_py.keeper import order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.pump import Pump


def rename(instances: dict[str, Instance], pump: Pump, message: Mapping[str, Any]) -> Instance:
    """Return the instance under its new key; one that has it already, by the same order, is returned as it is.

    Args:
        instances: The registry's, by key.
        pump: Takes the output.
        message: RENAME of the protocol.

    Raises:
        order.Refusal: There is no such child, it ended or is being stopped, or the new key is taken.
    """
    key, new_key, unit = (order.text(message, name) for name in ("key", "new_key", "unit"))
    present = instances.get(new_key)
    if present is not None and present.born == key:
        return present
    if present is not None:
        raise order.Refusal("exists", f"key {new_key!r} belongs to another child, of {present.unit}")
    instance = instances.get(key)
    if instance is None:
        raise order.Refusal("unknown_key", f"no child has the key {key!r}")
    if instance.exit is not None or instance.stopping or instance.report >= 0:
        raise order.Refusal("dead", f"{instance.unit} has ended, is being stopped, or has not begun")
    _move_log(instance, pump, unit)
    instance.key, instance.unit, instance.tag = new_key, unit, order.text(message, "tag")
    instance.started_at = time.time()
    instances[new_key] = instances.pop(key)
    return instance


def _move_log(instance: Instance, pump: Pump, unit: str) -> None:
    try:
        log = pump.log(unit)
    except ValueError as error:
        raise order.Refusal("bad_request", str(error)) from None
    pump.move(instance.outlets, log)
    instance.log, instance.log_position = log, log.position
    pump.saw(instance, log.position)
