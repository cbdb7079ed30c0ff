"""What a round costs on air (paper, sec. V-E)."""

from ucfl.wireless.traffic import Traffic

__all__ = ["Traffic"]
