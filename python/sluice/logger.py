"""The package's logger. SLUICE_LOG_LEVEL (debug, info, warning, error, off) also sets the engine's level."""

import logging
import os

from sluice import _core

logger = logging.getLogger("sluice")

if level := os.environ.get("SLUICE_LOG_LEVEL"):
    _core.set_log_level(level)
