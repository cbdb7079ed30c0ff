"""Who learns from whom (paper, sec. III-IV): pure array functions."""

from ucfl.collaboration.mixing import Mixing

__all__ = ["Mixing"]
