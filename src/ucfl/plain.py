"""Values as JSON can say them."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for: NaN and the infinities."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
