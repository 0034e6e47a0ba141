"""Leave out the log of Orbax: it reports all its work, warns of metadata that only a folder of many steps has, and logs
the errors that it raises as well. What others write to absl's log, which Orbax uses, stays."""

import logging


def keep_orbax_quiet() -> None:
    """Drop the messages of Orbax from absl's log."""
    logging.getLogger("absl").addFilter(_is_of_another)


def _is_of_another(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname.replace("\\", "/")
