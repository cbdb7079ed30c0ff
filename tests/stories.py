"""What tests look up in a story."""


def learnt_first(users):
    """Who learns from whom, by the method that the page shows first."""
    return next(iter(users["collaborations"].values()))
