"""What a recorder refuses."""


class RecorderError(Exception):
    """A graph or a request that is not recorded; the text is for the user."""
