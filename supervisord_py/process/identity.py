"""Another name of process/host.py, for as long as the rooms use it."""

from supervisord_py.process.host import boot_id, identity_of, liveness, new_key, start_time

__all__ = ["boot_id", "identity_of", "liveness", "new_key", "start_time"]
